"""IQ4_XS: 256 values of 4 bits on IQ4_NL's levels, a 6-bit scale for every 32: f16 d, the top bit pairs of the scales in 2
bytes, their low nibbles in 4, then 128 bytes of codes. A weight is (d * (scale - 32)) * level."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.code_table import IQ4
from ptxgen.formats.codes import bit_field, load_codes, merge, move_bit
from ptxgen.formats.format import Decoder, Format, LaneAddress, ScaleField, Weight, register_format
from ptxgen.formats.half_weights import (
    ONCE,
    STEPS,
    HalfStep,
    HalfWeights,
    byte_pairs,
    exact_product,
    same_halves,
)
from ptxgen.formats.packed import PREFETCH, Run, fetch_words, low_half
from ptxgen.types import U32

_UNSIGNED = IQ4.unsigned()

# Steps whose codes lie in the same words one after the other.
_ORDER = tuple(8 * group + 4 * upper + word for group in range(STEPS // 8) for word in range(4) for upper in range(2))


@register_format
class Iq4Xs(Format):
    """Byte j of the 16 of group g holds values 32 g + j (low nibble) and 32 g + 16 + j."""

    name = "IQ4_XS"
    id = "iq4xs"
    ggml_type = 23
    block = 256
    block_bytes = 136
    groups = 8
    columns = 16
    depth = 2
    widths = (1, 2, 4)
    header_bytes = 8
    scales = (ScaleField(0, 0.00077, signed=True),)
    packed_width = 16
    half_run = 64
    half_low = True

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d_and_tops, nibbles = place.header(k, 2)
        d = low_half(k, d_and_tops)

        def decode(group: Index) -> list[Weight]:
            levels = IQ4.decode(k, load_codes(k, place.at(8, group, 16), width), width)
            scale = (k.f32(_scale(k, d_and_tops, nibbles, group)) - 32.0) * d
            return [Weight(16 * t + i, levels[i][t] * scale) for i in range(width) for t in range(2)]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        codes = place.at(8, group, 16)
        pairs = (fetch_words(k, array[0], 2) for array in (place.block, codes, codes.at(8)))
        return tuple(word for pair in pairs for word in pair)

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        d_and_tops, nibbles, *codes = raw
        scale = (k.f32(_scale(k, d_and_tops, nibbles, group)) - 32.0) * low_half(k, d_and_tops)
        return [Run(0, IQ4.look_up_halves(k, codes), True, scale)]

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        codes = window.at(lane[0] * 32).at(8)
        return (
            *k.load_vector(window[0], 2, U32, nc=True),
            *(
                word
                for offset in range(0, 32, 8)
                for word in k.load_vector(codes[offset], 2, U32, nc=True, prefetch=PREFETCH, **ONCE)
            ),
        )

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        d_and_tops, nibbles, *codes = raw
        groups = [lane[0] * 2, lane[0] * 2 + 1]
        first, second = (_scale(k, d_and_tops, nibbles, group) for group in groups)
        scales = same_halves(k, first | second << 8, 32)[:2]

        @cache
        def numbers(word: int) -> list[tuple[Value, Value]]:
            low, high = _UNSIGNED.look_up_halves(k, [codes[word]])
            return [byte_pairs(k, low, 128), byte_pairs(k, high, 128)]

        def step(number: int) -> HalfStep:
            group, upper, word = number // 8, number // 4 % 2, number % 4
            first, other = (exact_product(k, scales[group], code) for code in numbers(4 * group + word)[upper])
            return HalfStep((first[0], other[0]), (first[1], other[1]))

        return HalfWeights([low_half(k, d_and_tops)], step, _ORDER)


def _scale(k: KernelBuilder, tops: Value, nibbles: Value, group: Index) -> Value:
    """The 6-bit scale of a group; `tops` has the top pairs in its upper half."""
    if isinstance(group, int):
        return merge(k, move_bit(tops, 16 + 2 * group, 4), 3 << 4, bit_field(nibbles, 4 * group, 4))
    return merge(k, tops >> (group * 2 + 12), 3 << 4, bit_field(nibbles >> (group * 4), 0, 4))
