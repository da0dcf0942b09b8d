"""Q5_0: 32 values of 5 bits with one scale: f16 d, 4 bytes of fifth bits, 16 bytes of low nibbles. A weight is
d * (code - 16)."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import centred, load_codes, load_scale
from ptxgen.formats.fifth_bits import five_bit_codes, halves_by_column, packed_codes
from ptxgen.formats.format import Decoder, Format, LaneAddress, LargestMinimum, ScaleField, Weight, register_format
from ptxgen.formats.half_blocks import blocks_of, by_block, five_bit_pairs, load_half, load_word, weights_of
from ptxgen.formats.half_weights import HalfWeights
from ptxgen.formats.packed import Run, even_words, joined, load_even, low_half
from ptxgen.types import U16


@register_format
class Q50(Format):
    """Byte j of the nibbles holds values j and j + 16; bit i of the fifth bits belongs to value i."""

    name = "Q5_0"
    id = "q5_0"
    ggml_type = 6
    block = 32
    block_bytes = 22
    columns = 16
    depth = 2
    widths = (1, 2, 4)
    scales = (ScaleField(0, 0.108, signed=True),)
    packed_width = 16
    half_run = 4
    minimum = LargestMinimum(0, 16)

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d = load_scale(k, place.block, 0)
        fifth = halves_by_column(k.load(place.block[2], U16), k.load(place.block[4], U16), place.column)

        def decode(group: Index) -> list[Weight]:
            codes = five_bit_codes(k, load_codes(k, place.at(6, group, 16), width, align=2), fifth, width)
            return [
                Weight(16 * t + i, number * d)
                for t, word in enumerate(codes)
                for i, number in enumerate(centred(k, word, width, 16))
            ]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        return load_even(k, place.block, 5)

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        first, (fifth, *words) = even_words(k, raw)
        d = low_half(k, first)
        return [Run(0, packed_codes(k, words, fifth), False, d, d * 16.0)]

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        return tuple(
            value
            for block in blocks_of(k, window, last, self.block_bytes)
            for value in (*(load_half(k, block.at(i)) for i in (0, 2, 4)), *load_word(k, block.at(6).at(lane[0] * 4)))
        )

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        ds, low, high, *words = zip(*by_block(raw, 5), strict=True)
        codes = [joined(k, *halves) for halves in zip(*words, strict=True)]
        fifths = [(k.u32(one) >> lane[0] * 4, k.u32(other) >> lane[0] * 4) for one, other in zip(low, high, strict=True)]
        return weights_of([low_half(k, d) for d in ds], five_bit_pairs(k, codes, fifths, 16))
