"""Q8_0: 32 signed bytes with one scale: f16 d, then the codes. A weight is d * code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import centred, load_codes, load_scale
from ptxgen.formats.format import Decoder, Format, LaneAddress, ScaleField, Weight, register_format
from ptxgen.formats.half_blocks import blocks_of, by_block, byte_halves, load_half, load_word, weights_of
from ptxgen.formats.half_weights import HalfWeights
from ptxgen.formats.packed import Run, even_words, fetch, joined, load_even, low_half
from ptxgen.types import S8, U16

_SIGNS = 0x80808080


@register_format
class Q80(Format):
    """Byte j of the codes is value j."""

    name = "Q8_0"
    id = "q8_0"
    ggml_type = 8
    block = 32
    block_bytes = 34
    columns = 32
    depth = 1
    widths = (1, 2, 4)
    scales = (ScaleField(0, 0.0135, signed=True),)
    packed_width = 16
    half_run = 4

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d = load_scale(k, place.block, 0)

        def decode(group: Index) -> list[Weight]:
            codes = place.at(2, group, 32)
            if width == 1:
                return [Weight(0, k.f32(k.load(codes[0], S8)) * d)]
            word = load_codes(k, codes, width, align=2) ^ _SIGNS
            return [Weight(i, number * d) for i, number in enumerate(centred(k, word, width, 128))]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        return (*load_even(k, place.lane, 4), fetch(k, place.block[0], U16))

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        _, words = even_words(k, raw[:-1])
        return [Run(0, words, True, low_half(k, raw[-1]))]

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        return tuple(
            value
            for block in blocks_of(k, window, last, self.block_bytes)
            for mine in (block.at(2).at(lane[0] * 4),)
            for value in (load_half(k, block), *load_word(k, mine), *load_word(k, mine.at(16)))
        )

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        blocks = by_block(raw, 5)
        words = cache(lambda block: [joined(k, *blocks[block][i : i + 2]) ^ _SIGNS for i in (1, 3)])
        return weights_of([low_half(k, block[0]) for block in blocks], byte_halves(k, words, 128))
