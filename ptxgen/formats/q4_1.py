"""Q4_1: 32 values of 4 bits with a scale and a minimum: f16 d and m, then 16 bytes of codes. A weight is d * code + m."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import load_codes, load_two_scales, nibble_bytes, products, split_scales
from ptxgen.formats.format import Decoder, Format, LaneAddress, LargestMinimum, ScaleField, Weight, register_format
from ptxgen.formats.half_blocks import added, blocks_of, by_block, load_minima, nibble_pairs, weights_of
from ptxgen.formats.half_weights import HalfWeights
from ptxgen.formats.packed import PREFETCH, Run, fetch, low_half, nibbles
from ptxgen.types import U32


@register_format
class Q41(Format):
    """Byte j of the codes holds value j in its low and value j + 16 in its high nibble."""

    name = "Q4_1"
    id = "q4_1"
    ggml_type = 3
    block = 32
    block_bytes = 20
    columns = 16
    depth = 2
    widths = (1, 2, 4)
    scales = (ScaleField(0, 0.22), ScaleField(2, -1.63))
    packed_width = 16
    half_run = 4
    minimum = LargestMinimum(2, 1)

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d, m = load_two_scales(k, place.block)

        def decode(group: Index) -> list[Weight]:
            word = load_codes(k, place.at(4, group, 16), width)
            return [
                Weight(16 * t + i, product + m)
                for t in range(2)
                for i, product in enumerate(products(k, nibble_bytes(word, t, width), width, d))
            ]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        return tuple(fetch(k, place.block[offset], U32) for offset in range(0, 20, 4))

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        d, m = split_scales(k, raw[0])
        return [Run(0, nibbles(raw[1:]), False, d, -m)]

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        words = (
            k.load(place[0], U32, nc=True, prefetch=PREFETCH)
            for block in blocks_of(k, window, last, self.block_bytes)
            for place in (block, block.at(4).at(lane[0] * 4))
        )
        return (*words, *load_minima(k, window, lane[0], last, self.block_bytes, 2))

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        ds, codes = zip(*by_block(raw[:-2], 2), strict=True)
        return weights_of([low_half(k, d) for d in ds], nibble_pairs(k, codes), added(k, *raw[-2:]))
