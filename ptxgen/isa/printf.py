"""Printing from a kernel: what the CUDA driver's function `vprintf` takes (CUDA C++ Programming Guide, "Formatted Output"), and
its formats taken apart. No instruction; which values an author may print is ptxgen/dsl/printing.py's, how they look as text
ptxgen/emulator/printing.py's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

VPRINTF: Final = "vprintf"
"""The function: addresses of a format and of its values, both generic, to the number of values."""
MOST_VALUES: Final = 32
FLOATS: Final = frozenset("fFeEgG")
SIGNED: Final = frozenset("di")
UNSIGNED: Final = frozenset("uxXo")
LETTERS: Final = "d, i, u, x, X, o, c, p, s, f, F, e, E, g, G and %%"

_CONVERSION: Final = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\d{0,6})(?P<precision>(?:\.\d{0,6})?)(?P<length>hh|h|ll|l|)(?P<letter>.)?", re.DOTALL
)


@dataclass(frozen=True)
class Conversion:
    """`%08.3f` and the like. flags, width, precision (with its point) and length as they are written."""

    flags: str
    width: str
    precision: str
    length: str
    letter: str

    @property
    def is_float(self) -> bool:
        """Whether it takes a float, which is passed as f64."""
        return self.letter in FLOATS

    @property
    def size(self) -> int:
        """Bytes that its value takes, and is aligned to."""
        return 8 if self.is_float or self.letter in "ps" or self.length in ("l", "ll") else 4

    def __str__(self) -> str:
        return f"%{self.flags}{self.width}{self.precision}{self.length}{self.letter}"


def pieces(format: str) -> Iterator[str | Conversion]:
    """The texts and conversions of a format, `%%` as the text it stands for. ValueError says which conversion there is not."""
    end = 0
    for match in _CONVERSION.finditer(format):
        yield format[end : match.start()]
        end = match.end()
        conversion = Conversion(**{name: value or "" for name, value in match.groupdict().items()})
        if str(conversion) == "%%":
            yield "%"
        elif conversion.letter not in FLOATS | SIGNED | UNSIGNED | {"c", "p", "s"}:
            raise ValueError(f"{match[0]!r} is no conversion of vprintf here; known: {LETTERS}")
        elif conversion.length and (conversion.is_float or conversion.letter in "cps"):
            raise ValueError(f"{match[0]!r} has a length ({conversion.length}), which only whole numbers have")
        else:
            yield conversion
    yield format[end:]


def places(conversions: Iterator[Conversion]) -> Iterator[tuple[Conversion, int]]:
    """Each conversion with the offset of its value, as C lays variable arguments out."""
    offset = 0
    for conversion in conversions:
        offset = -(-offset // conversion.size) * conversion.size
        yield conversion, offset
        offset += conversion.size
