"""Reads PTX tokens and declarations of variables with their types, sizes and initial values. Functions are parse.py's."""

from __future__ import annotations

from ptxgen.emulator.bind import RawLiteral
from ptxgen.emulator.lexer import Token, number, tokenise
from ptxgen.emulator.program import Variable
from ptxgen.errors import ParseError
from ptxgen.types import BY_NAME, DType

LARGEST_VARIABLE = 1 << 30
LARGEST = {"local": 512 << 10, "param": 32764}
"""Bytes of a variable by space (CUDA C++ Programming Guide, "Compute Capabilities"; PTX ISA 5.2): a Blackwell GPU's."""
MOST_VARIABLES = 1 << 16  # of the module, or of a function


class Reader:
    """Tokens one after the other, and the ParseError that names where reading stopped."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.tokens = tokenise(text)
        self.position = 0

    # Tokens
    @property
    def token(self) -> Token:
        """The token that is next."""
        return self.tokens[self.position]

    def fail(self, message: str, line: int | None = None) -> ParseError:
        """The error to raise for a line, by default that of the next token."""
        line = self.token.line if line is None else line
        return ParseError(message, line, self.lines[line - 1] if 0 < line <= len(self.lines) else "")

    def take(self, kind: str = "") -> Token:
        """The next token, which is read then; ParseError if it is not of this kind."""
        token = self.token
        if token.kind == "end":
            raise self.fail("the text ends in the middle of something")
        if kind and token.kind != kind:
            raise self.fail(f"expected a {kind}, got {token.text!r}")
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        """Read the next token if it is this mark or word; whether it was."""
        if self.token.text == text and self.token.kind in ("mark", "word"):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Read this mark or word; ParseError if another is next."""
        if not self.accept(text):
            raise self.fail(f"expected {text!r}, got {self.token.text or 'the end of the text'!r}")

    def number(self, token: Token) -> tuple[str, int | float]:
        """What lexer.number makes of it, or a ParseError."""
        try:
            return number(token)
        except ValueError as error:
            raise self.fail(str(error), token.line) from None

    def whole(self, token: Token) -> int:
        """The value of a token that must be a whole number."""
        kind, value = self.number(token)
        if kind != "int":
            raise self.fail(f"expected a whole number, got {token.text}", token.line)
        return int(value)

    def integer(self) -> int:
        """Read a whole number, which may be negative."""
        sign = -1 if self.accept("-") else 1
        return sign * self.whole(self.take("number"))

    def rest_of_line(self, line: int) -> list[Token]:
        """Read the tokens up to the end of the line."""
        taken = []
        while self.token.line == line and self.token.kind != "end":
            taken.append(self.take())
        return taken


class DeclarationReader(Reader):
    """Reads the declarations of variables and parameters."""

    def type_and_alignment(self) -> tuple[DType, int, int]:
        """(element type, vector length, alignment); what follows `.ptr` is of the memory pointed to, and is read over."""
        alignment, length, kind, pointed = 0, 1, None, False
        while self.token.text.startswith("."):
            word = self.take("word")
            if word.text == ".align":
                value = self.integer()
                if value < 1 or value & (value - 1) or value > 4096:
                    raise self.fail("an alignment must be a power of two up to 4096", word.line)
                alignment = alignment if pointed else value
            elif word.text in (".v2", ".v4", ".v8"):
                length = int(word.text[2:])
            elif word.text == ".attribute":
                self.expect("(")
                while not self.accept(")"):
                    self.take()
            elif word.text == ".ptr":
                pointed = True
            elif word.text in (".global", ".shared", ".const", ".local", ".param"):
                continue
            elif word.text[1:] in BY_NAME:
                kind = BY_NAME[word.text[1:]]
            else:
                raise self.fail(f"{word.text!r} is not a type", word.line)
        if kind is None:
            raise self.fail("a declaration needs a type")
        return kind, length, max(alignment, kind.bytes * length if not alignment else 1)

    def dimensions(self) -> int | None:
        """The element count of `[2][3]`, 0 for `[]`, None where there are no brackets."""
        count: int | None = None
        while self.accept("["):
            n = 0 if self.token.text == "]" else self.integer()
            self.expect("]")
            if n < 0:
                raise self.fail("an array cannot have a negative size")
            count = n if count is None else count * n
        return count

    def variables(self, space: str, external: bool) -> list[Variable]:
        """Read what follows the space of a declaration of variables."""
        kind, length, alignment = self.type_and_alignment()
        variables = []
        while True:
            name = self.take("word")
            repeat = self.repeat_count()
            if repeat > MOST_VARIABLES:
                raise self.fail(f"{repeat} variables cannot be declared; at most {MOST_VARIABLES} can", name.line)
            count = self.dimensions()
            size = self.size_of(name, space, kind, length, count)
            initial, pointers = (None, ()) if not self.accept("=") else self.initialiser(kind)
            if initial is not None and len(initial) > size and count != 0:
                raise self.fail(f"{name.text} has {size} bytes and is given {len(initial)}", name.line)
            if initial is not None:
                size = max(size, len(initial))
            for i in range(repeat or 1):
                label = f"{name.text}{i}" if repeat else name.text
                is_dynamic = external or (space == "shared" and count == 0)
                variables.append(Variable(label, space, kind, size, alignment, initial, pointers, is_dynamic))
            if self.accept(";"):
                return variables
            self.expect(",")

    def size_of(self, name: Token, space: str, kind: DType, length: int, count: int | None) -> int:
        """The bytes of a variable or parameter in memory, which is what no space can hold more of."""
        if not kind.bytes:
            raise self.fail(f"{name.text} is .{kind}, which lives in registers only", name.line)
        size = kind.bytes * length * (1 if count is None else count)
        limit = LARGEST.get(space, LARGEST_VARIABLE)
        if size > limit:
            raise self.fail(f"{name.text} has {size} bytes, more than {limit}", name.line)
        return size

    def repeat_count(self) -> int:
        """Read `<n>` of a declaration of n names; 0 where there is none."""
        if not self.accept("<"):
            return 0
        count = self.integer()
        self.expect(">")
        if not 0 < count <= 1 << 20:
            raise self.fail(f"{count} names cannot be declared at once")
        return count

    def initialiser(self, kind: DType) -> tuple[bytes, tuple[tuple[int, str, int], ...]]:
        """Read the initial bytes of a variable, and (offset, symbol, addend) of the addresses to put among them."""
        data = bytearray()
        pointers: list[tuple[int, str, int]] = []
        depth = 0
        while True:
            if self.accept("{"):
                depth += 1
                continue
            if self.token.text != "}":
                self.initial_element(kind, data, pointers)
            while depth and self.accept("}"):
                depth -= 1
            if not depth:
                return bytes(data), tuple(pointers)
            if self.token.text != "}":
                self.expect(",")

    def initial_element(self, kind: DType, data: bytearray, pointers: list[tuple[int, str, int]]) -> None:
        """Read a number, or a symbol whose address stands there, onto the end of `data`."""
        if self.token.kind == "word":
            name = self.take("word").text
            if name == "generic":
                self.expect("(")
                name = self.take("word").text
                self.expect(")")
            pointers.append((len(data), name, self.integer() if self.accept("+") else 0))
            data += bytes(8)
            return
        raw = self.literal()
        data += (raw.bits(kind) & ((1 << kind.bits) - 1)).to_bytes(kind.bytes, "little")

    def literal(self) -> RawLiteral:
        """Read a number and its sign."""
        negative = self.accept("-")
        if not negative:
            self.accept("+")
        kind, value = self.number(self.take("number"))
        if negative:
            value = -value if kind in ("int", "decimal") else int(value) ^ (1 << (31 if kind == "f32" else 63))
        return RawLiteral(kind, value)
