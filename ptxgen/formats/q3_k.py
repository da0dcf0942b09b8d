"""Q3_K: 256 values of 3 bits, a 6-bit scale for every 16: 32 bytes of third bits, 64 bytes of low bit pairs, 12 bytes of
scales, f16 d. A weight is (d * (scale - 32)) * (code - 4). Its 110 bytes keep only 2-byte alignment.

Of scale s, byte s % 8 of the scales holds the low four bits, in its nibble s / 8; byte 8 + s % 4 the top two, in its bit pair
s / 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import bit_field, centred, load_codes, load_scale, merge, move_bit, pair_bytes
from ptxgen.formats.format import Decoder, Format, LaneAddress, ScaleField, Weight, register_format
from ptxgen.formats.half_weights import (
    BY_WORD,
    ONCE,
    THOUSANDS,
    HalfStep,
    HalfWeights,
    biased_pair,
    centred_pair,
    lower_bytes,
    same_halves,
)
from ptxgen.formats.packed import NIBBLES, PREFETCH, Run, even_words, fetch, load_even, low_half, shifted_down
from ptxgen.types import B32, U16, U32

_THIRD, _PAIRS, _SCALES, _D = 0, 32, 96, 108  # byte offsets in the block

_ONES = 0x01010101


# Where the third bits of four codes belong.
_THIRDS = 0x04040404

# Of four scales: their top two bits.
_TOP_BITS = 0x30303030

# The bit pairs of two halves, and their third bits above them.
_PAIRS_OF_HALVES, _THIRDS_OF_HALVES = 0x00030003, 0x00040004


@register_format
class Q3K(Format):
    """Bit pairs as in Q2_K; bit s of byte j of the third bits belongs to value j of the 32 values from 32 s on."""

    name = "Q3_K"
    id = "q3k"
    ggml_type = 11
    block = 256
    block_bytes = 110
    groups = 2
    columns = 32
    depth = 4
    widths = (1, 2, 4)
    scales = (ScaleField(_D, 0.022, signed=True),)
    packed_width = 16
    scale_values = 16
    half_run = 64

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d = load_scale(k, place.block, _D)
        # A scale serves 16 values, so the lane's column says which of two; a reader's columns do not straddle them.
        mine = place.block.at(_SCALES).at(place.column // 16)
        low = [k.load(mine[2 * t]) for t in range(4)]
        top = [k.load(mine[8 + 2 * t]) for t in range(2)]
        third = load_codes(k, place.at(_THIRD, 0, 0), width, align=2)

        def of_group(word: Value, group: Index) -> tuple[Value, int]:
            """A word with four bits a group, and where this group's stand in it."""
            return (word, 4 * group) if isinstance(group, int) else (word >> (group * 4), 0)

        def decode(group: Index) -> list[Weight]:
            pairs = load_codes(k, place.at(_PAIRS, group, 32), width, align=2)
            thirds, first_third = of_group(third, group)
            weights = []
            for t in range(4):
                nibbles, first = of_group(low[t], group)
                tops, first_top = of_group(top[t % 2], group)
                six_bits = merge(k, move_bit(tops, first_top + t // 2 * 2, 4), 3 << 4, bit_field(nibbles, first, 4))
                scale = (k.f32(six_bits) - 32.0) * d
                pair = pair_bytes(pairs, t, width)
                codes = merge(k, move_bit(thirds, first_third + t, 2), _THIRDS if width > 1 else 1 << 2, pair)
                weights += [Weight(32 * t + i, number * scale) for i, number in enumerate(centred(k, codes, width, 4))]
            return weights

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        """The fragment's 16 bytes of third bits and 16 of bit pairs: of each the first two bytes and the aligned words from
        there or from two bytes further; the scales and d (see load_even); which bit of the scales is the lane's first."""
        raw: list[Value] = []
        odd = k.u32(place.block.base) & 2
        for start in (place.at(_THIRD, 0, 0), place.at(_PAIRS, group, 32)):
            aligned = start.at(odd)
            raw += [fetch(k, start[0], U16), *(fetch(k, aligned[i], U32) for i in range(0, 16, 4))]
        return (*raw, *load_even(k, place.block.at(_SCALES), 3), k.u32(place.column // 2))

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        odd = raw[14]
        thirds, pairs = _from_the_first_byte(k, raw[:5], odd), _from_the_first_byte(k, raw[5:10], odd)
        first, (second, third, fourth) = even_words(k, raw[10:15])
        d = low_half(k, fourth >> 16)
        mine = raw[15] + group * 4
        first, second, third, fourth = (word >> mine for word in (first, second, third, fourth))
        low, top = ((first, 0), (second, 0), (second, 16), (third, 0)), ((third, 16), (fourth, 0))
        lacking = [~word >> (group * 4) for word in thirds]
        runs = []
        for t in range(4):
            (nibbles, at), (tops, top_at) = low[t], top[t % 2]
            six_bits = merge(k, move_bit(tops, top_at + t // 2 * 2, 4), 3 << 4, bit_field(nibbles, at, 4))
            # A code whose third bit is not set is negative: its byte has all bits from the third on.
            words = [
                k.mad(move_bit(lack, t, 0) & _ONES, 0xFC, move_bit(pair, 2 * t, 0) & 3 * _ONES)
                for lack, pair in zip(lacking, pairs, strict=True)
            ]
            runs.append(Run(32 * t, words, True, (k.f32(six_bits) - 32.0) * d))
        return runs

    def half_lane(self, k: KernelBuilder, number: Value) -> tuple[Value, ...]:
        """The number, how many bits the lane's pairs stand high in their bytes, how far left its third bits are from bit 2."""
        return number, (number & 1) * 4, 2 - number * 2

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        """All third bits, and the pairs of the lane's half of the values: aligned words, and one more than they fill; the bytes
        of its four scales with the low four bits, those with the top two, in halves; d; how far the first byte is behind a
        word."""
        number = lane[0]
        odd = (k.u32(window.base) + window.offset) & 2
        aligned = replace(window, base=window.base - k.u64(odd))
        pairs, scales = aligned.at((number >> 1) * 32), window.at((number & 1) * 4)
        return (
            *(k.load(aligned[_THIRD + i], U32, nc=True, prefetch=PREFETCH, **ONCE) for i in range(0, 36, 4)),
            *(k.load(pairs[_PAIRS + i], U32, nc=True, prefetch=PREFETCH, **ONCE) for i in range(0, 36, 4)),
            *(k.load(scales[_SCALES + i], U16, nc=True) for i in (0, 2)),
            *(k.load(window[_SCALES + i], U16, nc=True) for i in (8, 10)),
            k.load(window[_D], U16, nc=True),
            odd,
        )

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        *words, low, more_low, top, more_top, d, odd = raw
        number, bits, left = lane
        thirds = lower_bytes(
            [k.shf(word, word, left, direction="l", mode="wrap") for word in shifted_down(k, words[:9], odd << 3)]
        )
        pairs = lower_bytes(shifted_down(k, words[9:], (odd << 3) + bits))
        low, top = (k.prmt(first, second, 0x5410, result=U32) for first, second in ((low, more_low), (top, more_top)))
        six_bits = merge(k, (top >> number * 2) << 4, _TOP_BITS, (low >> (number >> 1) * 4) & NIBBLES)
        scales = same_halves(k, six_bits, 32)

        def step(number: int) -> HalfStep:
            second, word = divmod(number, 8)
            scale, numbers = scales[number // 4], []
            for pair, third in zip(pairs(word), thirds(word), strict=True):
                high = merge(k, third << 1 if second else third, _THIRDS_OF_HALVES << 2 * second, THOUSANDS)
                biased = biased_pair(k, pair, _PAIRS_OF_HALVES << 2 * second, high)
                numbers.append(k.bits(centred_pair(k, biased, 4, 2 * second) * scale, B32))
            return HalfStep((numbers[0], numbers[1]))

        return HalfWeights([low_half(k, d)], step, BY_WORD)


def _from_the_first_byte(k: KernelBuilder, raw: Sequence[Value], odd: Value) -> list[Value]:
    """The words of a region: as they were loaded, or two bytes earlier if `odd` is 2."""
    half, *words = raw
    shift = 32 - (odd << 3)
    return [k.shf(a, b, shift, direction="r", mode="clamp") for a, b in zip([half << 16, *words[:-1]], words, strict=True)]
