"""Grids: sets of points whose numbers are codes of several weights at once, and their look-up. Not a format.

A point's values are numbers of levels. A module holds the points of a grid as nibbles in global memory, so the largest table
has 8 KB and stays in the L1 cache; `prmt` makes bytes of the nibbles."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.types import U16, U32

# The four lowest bits of a number, times this, stand at the lowest bits of four bytes; up to seven bits do not disturb them.
_SPREAD, _ONES, _BYTE = 1 | 1 << 7 | 1 << 14 | 1 << 21, 0x01010101, 0xFF

_NIBBLE = 4
"""Bits of a level's number."""


@dataclass(frozen=True)
class Grid:
    """Points of `count` (4 or 8) values each, in ascending order, the last value counting most.

    name: of the table in a module. levels: what a value can be, up to eight signed bytes. points: the set of them, in base 85:
    bit i of the little-endian number stands for the point that is i in the base of the number of levels."""

    name: str
    levels: tuple[int, ...]
    count: int
    points: str

    @cached_property
    def numbers(self) -> tuple[tuple[int, ...], ...]:
        """Of each point, the numbers of the levels of its values."""
        base = len(self.levels)
        members = int.from_bytes(base64.b85decode(self.points), "little")
        every = (i for i in range(base**self.count) if members >> i & 1)
        return tuple(tuple(i // base**place % base for place in range(self.count)) for i in every)

    @cached_property
    def table(self) -> tuple[int, ...]:
        """The points as nibbles, the first value lowest."""
        return tuple(sum(number << _NIBBLE * i for i, number in enumerate(point)) for point in self.numbers)

    def load(self, k: KernelBuilder, index: Value) -> Value:
        """The nibbles of a point, as a u32. That they come from global memory is decided here alone."""
        table = k.constants(self.name, U16 if self.count == 4 else U32, self.table)
        point: Value = k.load(table[index])
        return point

    def four(self, k: KernelBuilder, point: Value, half: Index = 0) -> Value:
        """The lower (0) or upper (1) four values of a point, as the bytes of a u32."""
        return four_levels(k, self.levels, point >> (half * 4 * _NIBBLE) if isinstance(half, Value) or half else point)


def four_levels(k: KernelBuilder, levels: tuple[int, ...], numbers: Value) -> Value:
    """The levels, signed bytes, that the four lowest nibbles of a u32 number."""
    stored = bytes(level & _BYTE for level in levels).ljust(8, b"\0")
    first, second = (int.from_bytes(stored[i : i + 4], "little") for i in (0, 4))
    word: Value = k.prmt(first, second, numbers, result=U32)
    return word


def spread(bits: Value) -> Value:
    """A u32 with the four lowest bits of a number, whose bits from the seventh on are 0, as its bytes."""
    return (bits * _SPREAD) & _ONES


def negated(word: Value, signs: Value) -> Value:
    """The bytes of a word, from 1 to 127 each, negated where the bit of their number is set in `signs`, whose bits from the
    seventh on are 0. No byte becomes 0, so none carries."""
    ones = spread(signs)
    return (word ^ ones * _BYTE) + ones
