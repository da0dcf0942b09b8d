"""The codes of Q5_0 and Q5_1, whose fifth bits stand apart from their nibbles. Not a format."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import merge, move_bit, nibble_bytes
from ptxgen.formats.packed import nibbles

_SPREAD = 1 << 4 | 1 << 11 | 1 << 18 | 1 << 25
_FIFTH = 0x10101010


def halves_by_column(low: Value, high: Value, column: Index) -> tuple[Value, Value]:
    """The fifth bits of values 0-15 and of 16-31 (u16 in u32), moved so that bit 4 belongs to the lane's first column."""
    return (low << 4) >> column, (high << 4) >> column


def five_bit_codes(k: KernelBuilder, nibbles: Value, fifth: tuple[Value, Value], width: int) -> list[Value]:
    """The codes of the values 0-15 and of 16-31 in `width` columns, each as the bytes of a u32; `fifth` comes from
    halves_by_column."""
    codes = []
    for t in range(2):
        lower = nibble_bytes(nibbles, t, width)
        if width == 1:
            codes.append(merge(k, fifth[t], 1 << 4, lower))
        else:
            codes.append(lower | spread_bits(fifth[t] >> 4))
    return codes


def spread_bits(bits: Value) -> Value:
    """Bits 0 to 3 of a u32, moved to bit 4 of each byte."""
    # Shifted copies by 4, 11, 18 and 25 do not overlap there.
    return ((bits & 0xF) * _SPREAD) & _FIFTH


def packed_codes(k: KernelBuilder, words: Sequence[Value], fifth: Value) -> list[Value]:
    """The 32 codes of a block, four in a u32, from the four words of nibbles and the word of fifth bits."""
    codes = []
    for i, word in enumerate(nibbles(words)):
        codes.append(word | spread_bits(move_bit(fifth, 4 * i, 0)))
    return codes
