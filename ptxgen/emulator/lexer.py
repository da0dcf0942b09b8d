"""PTX text -> tokens. A token knows its line; what tokens mean is parse.py's work."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from ptxgen.errors import ParseError
from ptxgen.printable import excerpt

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
          |[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_])|[0-9]+[eE][+-]?[0-9]+|[0-9]+U?)
      | (?P<word>[A-Za-z_$%][A-Za-z0-9_$]*(?:(?:\.|::)[A-Za-z0-9_$]+)*|\.[A-Za-z_][A-Za-z0-9_]*(?:(?:\.|::)[A-Za-z0-9_]+)*)
      | (?P<string>"[^"\n]*")
      | (?P<mark>[-+{}()\[\],;:@!|=<>*])""",
    re.VERBOSE | re.DOTALL,
)

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


def float_of_bits(kind: str, bits: int) -> float:
    """The float that these bits spell; kind is f32 or f64."""
    codes = ("<I", "<f") if kind == "f32" else ("<Q", "<d")
    return float(struct.unpack(codes[1], struct.pack(codes[0], bits))[0])


def _line(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)]
