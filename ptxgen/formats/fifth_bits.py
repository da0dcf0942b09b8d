"""The codes of Q5_0 and Q5_1, whose fifth bits stand apart from their nibbles. Not a format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.formats.codes import bit_field, merge, move_bit
from ptxgen.formats.packed import nibbles
from ptxgen.memory import Index
from ptxgen.value import Value

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder


_SPREAD = 1 << 4 | 1 << 11 | 1 << 18 | 1 << 25
_FIFTH = 0x10101010


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


def packed_codes(k: KernelBuilder, words: Sequence[Value], fifth: Value) -> list[Value]:
    """The 32 codes of a block, four in a u32, from the four words of nibbles and the word of fifth bits."""
    codes = []
    for i, word in enumerate(nibbles(words)):
        four = move_bit(fifth, 4 * i, 0) & 0xF
        # Bits 0 to 3 spread to bit 4 of each byte: shifted copies by 4, 11, 18 and 25 do not overlap there.
        spread = (four * _SPREAD) & _FIFTH
        codes.append(word | spread)
    return codes
