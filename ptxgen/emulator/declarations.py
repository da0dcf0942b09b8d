"""Reads PTX tokens and declarations of variables with their types, sizes and initial values. Functions are parse.py's."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ptxgen.emulator.initialisers import InitialReader
from ptxgen.emulator.lexer import Token
from ptxgen.emulator.program import Initial, Variable
from ptxgen.types import BF16, BF16X2, BY_NAME, TF32, DType

LARGEST_VARIABLE = 1 << 30
LARGEST = {"local": 512 << 10, "param": 32764}
"""Bytes of a variable by space (CUDA C++ Programming Guide, "Compute Capabilities"; PTX ISA 5.2): a Blackwell GPU's."""
MOST_VARIABLES = 1 << 16  # of the module, or of a function
_MOST_DIMENSIONS = 16
_OF_INSTRUCTIONS = (BF16, BF16X2, TF32)


class DeclarationReader(InitialReader):
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
            elif word.text[1:] in BY_NAME and kind is None:
                kind = BY_NAME[word.text[1:]]
            else:
                fault = "is not a type" if kind is None else "follows the type"
                raise self.fail(f"{word.text!r} {fault}", word.line)
        if kind is None:
            raise self.fail("a declaration needs a type")
        if kind in _OF_INSTRUCTIONS:
            raise self.fail(f"a declaration has no type .{kind}, which lives in .{kind.register}")
        return kind, length, max(alignment, kind.bytes * length)

    def dimensions(self) -> list[int]:
        """Read the element counts of `[2][3]`; the first is 0 for `[]`. None are a variable that is no array."""
        counts: list[int] = []
        while self.accept("["):
            open_ended = self.token.text == "]" and not counts
            counts.append(0 if open_ended else self.integer())
            self.expect("]")
            if counts[-1] < 1 and not open_ended:
                raise self.fail("an array has at least one element")
            if len(counts) > _MOST_DIMENSIONS:
                raise self.fail(f"an array has at most {_MOST_DIMENSIONS} dimensions")
        return counts

    def variables(self, space: str, external: bool) -> Iterator[Variable]:
        """Read what follows the space of a declaration of variables."""
        kind, length, alignment = self.type_and_alignment()
        while True:
            name = self.identifier()
            repeat = self.repeat_count()
            if repeat > MOST_VARIABLES:
                raise self.fail(f"{repeat} variables cannot be declared; at most {MOST_VARIABLES} can", name.line)
            shape = self.dimensions()
            size = self.size_of(name, space, kind, length, shape)
            initial = Initial()
            if self.accept("="):
                if space not in ("global", "const") or external:
                    raise self.fail(f"{name.text} cannot have an initial value", name.line)
                initial = self.initial(kind, shape, length, name.text)
                if not size:
                    size = self.size_of(name, space, kind, length, [initial.count, *shape[1:]])
            if not size and not external:
                raise self.fail(f"{name.text} has no size; only what is .extern may leave it open", name.line)
            for i in range(repeat or 1):
                label = f"{name.text}{i}" if repeat else name.text
                yield Variable(label, space, kind, size, alignment, initial, external)
            if self.accept(";"):
                return
            self.expect(",")

    def size_of(self, name: Token, space: str, kind: DType, length: int, shape: list[int]) -> int:
        """The bytes of a variable or parameter in memory, which is what no space can hold more of."""
        if not kind.bytes:
            raise self.fail(f"{name.text} is .{kind}, which lives in registers only", name.line)
        size = kind.bytes * length * prod(shape)
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
