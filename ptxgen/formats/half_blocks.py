"""What formats of 32 values share where they decode to integers in f16: a window is eight blocks, and lane t of a quad takes of
each the values 4 t to 4 t + 3 and those 16 further. Not a format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import merge
from ptxgen.formats.half_weights import (
    ONCE,
    STEPS,
    THOUSANDS,
    HalfMinima,
    HalfStep,
    HalfWeights,
    Pair,
    biased_pair,
    byte_pairs,
    centred_pair,
    lower_bytes,
)
from ptxgen.formats.packed import PREFETCH, joined
from ptxgen.types import B32, U16

BLOCKS: Final = STEPS // 2
"""Blocks of a window."""

_FIELDS = 0x000F000F

# The fifth bits of two halves, and the factor that brings bits 0 and 2 of a nibble there.
_FIFTHS, _APART = 0x00100010, 1 << 4 | 1 << 18


def block_of(k: KernelBuilder, window: GlobalArray, last: Index, number: Index, nbytes: int) -> GlobalArray:
    """The block of this number in a window, or the row's last one (number `last`) where that comes earlier."""
    if isinstance(number, int) and isinstance(last, int):
        return window.at(min(number, last) * nbytes)
    if isinstance(number, int) and number == 0:
        return window
    return window.at(k.min(last, number) * nbytes)


def blocks_of(k: KernelBuilder, window: GlobalArray, last: Index, nbytes: int) -> list[GlobalArray]:
    """The blocks of a window; those past the row's last one are that again."""
    return [block_of(k, window, last, number, nbytes) for number in range(BLOCKS)]


def load_half(k: KernelBuilder, place: GlobalArray) -> Value:
    """The load of two bytes, which the lanes of a quad may share."""
    return k.load(place[0], U16, nc=True, prefetch=PREFETCH)


def load_word(k: KernelBuilder, place: GlobalArray) -> tuple[Value, Value]:
    """The loads of four bytes at an address that is a multiple of 2."""
    low, high = (k.load(place[offset], U16, nc=True, prefetch=PREFETCH, **ONCE) for offset in (0, 2))
    return low, high


def by_block(raw: Sequence[Value], count: int) -> list[tuple[Value, ...]]:
    """What was loaded, in tuples of `count` for each block."""
    return [tuple(raw[i : i + count]) for i in range(0, len(raw), count)]


def weights_of(scales: Sequence[Value], pair: Callable[[int, int], Pair], minima: HalfMinima | None = None) -> HalfWeights:
    """The weights of eight blocks with a scale each. pair: the integers of a block's lower or upper 16 values."""
    return HalfWeights(scales, lambda number: HalfStep(pair(*divmod(number, 2))), range(STEPS), minima)


def nibble_pairs(k: KernelBuilder, words: Sequence[Value], centre: int = 0) -> Callable[[int, int], Pair]:
    """Nibble - centre, of a word of four low and four high ones for each block."""
    pairs = lower_bytes(words)

    def pair(block: int, upper: int) -> Pair:
        first, second = (
            k.bits(centred_pair(k, biased_pair(k, word, _FIELDS << 4 * upper), centre, 4 * upper), B32) for word in pairs(block)
        )
        return first, second

    return pair


def five_bit_pairs(
    k: KernelBuilder, words: Sequence[Value], fifths: Sequence[tuple[Value, Value]], centre: int = 0
) -> Callable[[int, int], Pair]:
    """As `nibble_pairs`, of nibbles with a fifth bit: the lowest four bits of two words for each block, for its lower and its
    upper values."""
    pairs = lower_bytes(words)

    def pair(block: int, upper: int) -> Pair:
        fifth = (fifths[block][upper] & 0xF) * _APART
        first, second = (
            k.bits(centred_pair(k, biased_pair(k, word, _FIELDS, merge(k, bits, _FIFTHS, THOUSANDS)), centre), B32)
            for word, bits in zip((one >> 4 if upper else one for one in pairs(block)), (fifth, fifth >> 1), strict=True)
        )
        return first, second

    return pair


def byte_halves(k: KernelBuilder, words: Callable[[int], Sequence[Value]], centre: int) -> Callable[[int, int], Pair]:
    """Byte - centre, of two words for each block, of which the first has the lower values."""

    def pair(block: int, upper: int) -> Pair:
        first, second = byte_pairs(k, words(block)[upper], centre)
        return k.bits(first, B32), k.bits(second, B32)

    return pair


def load_minima(
    k: KernelBuilder, window: GlobalArray, lane: Value, last: Index, nbytes: int, offset: int
) -> tuple[Value, Value]:
    """The loads of the two f16 at byte `offset` of the blocks 2 t and 2 t + 1."""
    first, second = (load_half(k, block_of(k, window, last, lane * 2 + number, nbytes).at(offset)) for number in range(2))
    return first, second


def added(k: KernelBuilder, first: Value, second: Value) -> HalfMinima:
    """What is added to all weights of a block, f16, of the two blocks that `load_minima` loaded it of."""
    both = k.bits(joined(k, first, second), B32)
    return HalfMinima((both, both), k.f32(-1.0))
