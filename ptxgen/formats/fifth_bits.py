"""The codes of Q5_0 and Q5_1, whose fifth bits stand apart from their nibbles. Not a format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.formats.codes import bit_field, merge
from ptxgen.memory import Index
from ptxgen.value import Value

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder


def halves_by_column(low: Value, high: Value, column: Index) -> tuple[Value, Value]:
    """The fifth bits of values 0-15 and of 16-31 (u16 in u32), moved so that bit 4 belongs to the lane's first column."""
    return (low << 4) >> column, (high << 4) >> column


def five_bit_codes(
    k: KernelBuilder, nibbles: Value, fifth: tuple[Value, Value], width: int
) -> list[tuple[int, Value]]:  # fmt: skip
    """(offset, code) of the values of `width` columns; `fifth` comes from halves_by_column."""
    codes = []
    for i in range(width):
        for t in range(2):
            bits = fifth[t] >> i if i else fifth[t]
            codes.append((16 * t + i, merge(k, bits, 1 << 4, bit_field(nibbles, 8 * i + 4 * t, 4, 8 * width))))
    return codes
