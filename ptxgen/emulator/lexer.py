"""PTX text -> tokens, and a reader of them. A token knows its line; what tokens mean is the work of further readers."""

from __future__ import annotations

import math
import re
import struct
import sys
from typing import NamedTuple

from ptxgen.errors import ParseError
from ptxgen.printable import excerpt
from ptxgen.target import WARP_SIZE

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
          |[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_])|[0-9]+[eE][+-]?[0-9]+|[0-9]+U?)
      | (?P<word>[A-Za-z_$%][A-Za-z0-9_$]*(?:(?:\.|::)[A-Za-z0-9_$]+)*|\.[A-Za-z_][A-Za-z0-9_]*(?:(?:\.|::)[A-Za-z0-9_]+)*)
      | (?P<string>"[^"\n]*")
      | (?P<mark><<|>>|<=|>=|==|!=|&&|\|\||[-+{}()\[\],;:@!|=<>*/&^~?])""",
    re.VERBOSE | re.DOTALL,
)

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_$]*|[_$%][A-Za-z0-9_$]+")
_BITS = 64  # PTX ISA 4.5: every integer constant


class Token(NamedTuple):
    """A piece of PTX, and its line."""

    kind: str  # number, word, string, mark, or end
    text: str
    line: int


def tokenise(text: str) -> list[Token]:
    """The tokens of `text` and an `end` token; ParseError at a character that starts none."""
    tokens: list[Token] = []
    line, position, size = 1, 0, len(text)
    match = _TOKEN.match
    while position < size:
        token = match(text, position)
        if token is None:
            raise ParseError(f"no PTX token starts with {text[position]!r}", line, _line(text, position))
        kind = token.lastgroup or ""
        piece = token.group()
        if kind == "space" or kind == "comment":
            line += piece.count("\n")
        else:
            tokens.append(Token(kind, piece, line))
        position = token.end()
    tokens.append(Token("end", "", line))
    return tokens


def number(token: Token) -> tuple[str, int | float]:
    """(`int`, value), (`f32`, bits), (`f64`, bits) or (`decimal`, value) of a number token (PTX ISA 4.5). ValueError for one
    that PTX does not have."""
    kind, value = _number(token.text)
    if kind == "int" and int(value) >> _BITS:
        raise ValueError(f"{excerpt(token.text, 40)} does not fit {_BITS} bits")
    if kind == "decimal" and (math.isinf(value) or (abs(value) < sys.float_info.min and re.match("[0.]*[1-9]", token.text))):
        raise ValueError(f"{excerpt(token.text, 40)} does not fit a double that is not subnormal")
    return kind, value


def _number(text: str) -> tuple[str, int | float]:
    start = text[:2].lower()
    if start == "0f":
        return "f32", int(text[2:], 16)
    if start == "0d":
        return "f64", int(text[2:], 16)
    if start in ("0x", "0b"):
        return "int", int(text.rstrip("U"), 0)
    if any(c in text for c in ".eE"):
        return "decimal", float(text)
    digits = text.rstrip("U")
    if len(digits) > 1 and digits[0] == "0":
        if set(digits) - set("01234567"):
            raise ValueError(f"{excerpt(digits, 40)} is not an octal number")
        return "int", int(digits, 8)
    return "int", int(digits[:_BITS])  # as many are too many anyway, and Python makes no number of thousands


class Reader:
    """Tokens one after the other, and the ParseError that names where reading stopped."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self._tokens = tokenise(text)
        self._position = 0
        self.token = self._tokens[0]
        """The token that is next."""

    @property
    def following(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._position + 1, len(self._tokens) - 1)]

    def _advance(self) -> None:
        self._position += 1
        self.token = self._tokens[self._position]

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
        self._advance()
        return token

    def accept(self, text: str) -> bool:
        """Read the next token if it is this mark or word; whether it was."""
        if self.token.text == text and self.token.kind in ("mark", "word"):
            self._advance()
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

    def identifier(self) -> Token:
        """Read a name that a declaration may give (PTX ISA 4.4)."""
        token = self.take("word")
        if not _IDENTIFIER.fullmatch(token.text) or token.text == "WARP_SZ":
            raise self.fail(f"{token.text!r} is not a name", token.line)
        return token

    def whole(self, token: Token) -> int:
        """The value of a token that must be a whole number."""
        kind, value = self.number(token)
        if kind != "int":
            raise self.fail(f"expected a whole number, got {token.text}", token.line)
        return int(value)

    def integer(self) -> int:
        """Read a whole number, which may be negative, or WARP_SZ."""
        if self.accept("WARP_SZ"):
            return WARP_SIZE
        sign = -1 if self.accept("-") else 1
        return sign * self.whole(self.take("number"))

    def rest_of_line(self, line: int) -> list[Token]:
        """Read the tokens up to the end of the line."""
        taken = []
        while self.token.line == line and self.token.kind != "end":
            taken.append(self.take())
        return taken


def float_of_bits(kind: str, bits: int) -> float:
    """The float that these bits spell; kind is f32 or f64."""
    codes = ("<I", "<f") if kind == "f32" else ("<Q", "<d")
    return float(struct.unpack(codes[1], struct.pack(codes[0], bits))[0])


def _line(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)]
