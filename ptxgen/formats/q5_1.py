"""Q5_1: 32 values of 5 bits with a scale and a minimum: f16 d and m, 4 bytes of fifth bits, 16 bytes of low nibbles. A weight
is d * code + m."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import load_codes, load_two_scales, products, split_scales
from ptxgen.formats.fifth_bits import five_bit_codes, halves_by_column, packed_codes
from ptxgen.formats.format import Decoder, Format, LaneAddress, LargestMinimum, ScaleField, Weight, register_format
from ptxgen.formats.half_blocks import added, blocks_of, by_block, five_bit_pairs, load_minima, weights_of
from ptxgen.formats.half_weights import HalfWeights
from ptxgen.formats.packed import PREFETCH, Run, fetch_words, low_half
from ptxgen.types import U16, U32


@register_format
class Q51(Format):
    """Byte j of the nibbles holds values j and j + 16; bit i of the fifth bits belongs to value i."""

    name = "Q5_1"
    id = "q5_1"
    ggml_type = 7
    block = 32
    block_bytes = 24
    columns = 16
    depth = 2
    widths = (1, 2, 4)
    scales = (ScaleField(0, 0.108), ScaleField(2, -1.68))
    packed_width = 16
    half_run = 4
    minimum = LargestMinimum(2, 1)

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d, m = load_two_scales(k, place.block)
        fifth = halves_by_column(k.load(place.block[4], U16), k.load(place.block[6], U16), place.column)

        def decode(group: Index) -> list[Weight]:
            codes = five_bit_codes(k, load_codes(k, place.at(8, group, 16), width), fifth, width)
            return [
                Weight(16 * t + i, product + m)
                for t, word in enumerate(codes)
                for i, product in enumerate(products(k, word, width, d))
            ]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        pairs = [fetch_words(k, place.block[offset], 2) for offset in (0, 8, 16)]
        return tuple(word for pair in pairs for word in pair)

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        d, m = split_scales(k, raw[0])
        return [Run(0, packed_codes(k, raw[2:], raw[1]), False, d, -m)]

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        words = (
            value
            for block in blocks_of(k, window, last, self.block_bytes)
            for value in (
                *k.load_vector(block[0], 2, U32, nc=True, prefetch=PREFETCH),
                k.load(block.at(8).at(lane[0] * 4)[0], U32, nc=True, prefetch=PREFETCH),
            )
        )
        return (*words, *load_minima(k, window, lane[0], last, self.block_bytes, 2))

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        ds, fifths, codes = zip(*by_block(raw[:-2], 3), strict=True)
        mine = [fifth >> lane[0] * 4 for fifth in fifths]
        pair = five_bit_pairs(k, codes, [(bits, bits >> 16) for bits in mine])
        return weights_of([low_half(k, d) for d in ds], pair, added(k, *raw[-2:]))
