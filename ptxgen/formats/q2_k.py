"""Q2_K: 256 values of 2 bits, a 4-bit scale and minimum for every 16: 16 bytes of scales (low nibble) and minima, 64 bytes of
codes, f16 d and dmin. A weight is (d * scale) * code - (dmin * minimum)."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import bit_field, load_codes, pair_bytes, products, split_scales
from ptxgen.formats.format import Decoder, Format, LaneAddress, LargestMinimum, ScaleField, Weight, register_format
from ptxgen.formats.half_weights import (
    BY_WORD,
    ONCE,
    HalfMinima,
    HalfStep,
    HalfWeights,
    integers,
    lower_bytes,
    scaling,
)
from ptxgen.formats.packed import NIBBLES, PREFETCH, Run, fetch
from ptxgen.types import U32

_SCALES, _CODES, _D = 0, 16, 80  # byte offsets in the block

_PAIRS = 0x03030303
_PAIRS_OF_HALVES = 0x00030003


@register_format
class Q2K(Format):
    """In each half of 128 values, byte j of 32 holds values j, 32 + j, 64 + j and 96 + j, from its lowest bits on."""

    name = "Q2_K"
    id = "q2k"
    ggml_type = 10
    block = 256
    block_bytes = 84
    groups = 2
    columns = 32
    depth = 4
    widths = (1, 2, 4)
    scales = (ScaleField(_D, 0.069), ScaleField(_D + 2, 0.104))
    packed_width = 16
    scale_values = 16
    minimum = LargestMinimum(_D + 2, 15)
    half_run = 64

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d, dmin = split_scales(k, k.load(place.block[_D], U32))
        # A scale serves 16 values, so the lane's column says which of two; a reader's columns do not straddle them.
        scales = place.block.at(_SCALES).at(place.column // 16)

        def decode(group: Index) -> list[Weight]:
            word = load_codes(k, place.at(_CODES, group, 32), width)
            mine = scales.at(group * 8)
            weights = []
            for t in range(4):
                pair = k.load(mine[2 * t])
                scale, minimum = k.f32(bit_field(pair, 0, 4, 8)) * d, k.f32(bit_field(pair, 4, 4, 8)) * dmin
                codes = products(k, pair_bytes(word, t, width), width, scale)
                weights += [Weight(32 * t + i, code - minimum) for i, code in enumerate(codes)]
            return weights

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        """The 16 bytes of codes, the 8 of the group's scales, d and dmin, and which bit of the scales is the lane's first."""
        codes, scales = place.at(_CODES, group, 32), place.block.at(_SCALES).at(group * 8)
        words = [fetch(k, array[offset], U32) for array, size in ((codes, 16), (scales, 8)) for offset in range(0, size, 4)]
        return (*words, fetch(k, place.block[_D], U32), k.u32(place.column // 2))

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        codes, scales, first = raw[:4], raw[4:6], raw[7]
        d, dmin = split_scales(k, raw[6])
        mine = [word >> first for word in scales]
        runs = []
        for t in range(4):
            at = t % 2 * 16
            scale, minimum = (bit_field(mine[t // 2], position, 4) for position in (at, at + 4))
            # In place: 4^t times the codes, which the scale makes good, so that no shift is needed.
            words = [word & (_PAIRS << 2 * t) for word in codes]
            runs.append(Run(32 * t, words, False, k.f32(scale) * d * 0.25**t, k.f32(minimum) * dmin))
        return runs

    def half_lane(self, k: KernelBuilder, number: Value) -> tuple[Value, ...]:
        """The number, and how many bits the lane's codes stand high in their bytes."""
        return number, (number & 1) * 4

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        """The codes of the lane's half of the values, of which it takes two in a byte; its four scales and minima; d, dmin."""
        number = lane[0]
        codes, scales = window.at((number >> 1) * 32), window.at(number * 4)
        return (
            *(k.load(codes[_CODES + i], U32, nc=True, prefetch=PREFETCH, **ONCE) for i in range(0, 32, 4)),
            k.load(scales[_SCALES], U32, nc=True),
            k.load(window[_D], U32, nc=True),
        )

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        *codes, packed, both = raw
        d, dmin = split_scales(k, both)
        words = lower_bytes([word >> lane[1] for word in codes])
        scales, minima = packed & NIBBLES, (packed >> 4) & NIBBLES
        scalings = [scaling(k, scales, i, shift=i // 2 * 2) for i in range(4)]

        def step(number: int) -> HalfStep:
            second, word = divmod(number, 8)
            return HalfStep(scalings[number // 4].products(k, words(word), _PAIRS_OF_HALVES << 2 * second))

        return HalfWeights([d], step, BY_WORD, HalfMinima((integers(k, minima, 0, 2), integers(k, minima, 1, 3)), dmin))
