"""Q4_0: 32 values of 4 bits with one scale: f16 d, then 16 bytes of codes. A weight is d * (code - 8)."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import centred, load_codes, load_scale, nibble_bytes
from ptxgen.formats.format import Decoder, Format, LaneAddress, LargestMinimum, ScaleField, Weight, register_format
from ptxgen.formats.half_blocks import blocks_of, by_block, load_half, load_word, nibble_pairs, weights_of
from ptxgen.formats.half_weights import HalfWeights
from ptxgen.formats.packed import Run, even_words, joined, load_even, low_half, nibbles


@register_format
class Q40(Format):
    """Byte j of the codes holds value j in its low and value j + 16 in its high nibble."""

    name = "Q4_0"
    id = "q4_0"
    ggml_type = 2
    block = 32
    block_bytes = 18
    columns = 16
    depth = 2
    widths = (1, 2, 4)
    scales = (ScaleField(0, 0.22, signed=True),)
    packed_width = 16
    half_run = 4
    minimum = LargestMinimum(0, 8)

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d = load_scale(k, place.block, 0)

        def decode(group: Index) -> list[Weight]:
            word = load_codes(k, place.at(2, group, 16), width, align=2)
            return [
                Weight(16 * t + i, number * d)
                for t in range(2)
                for i, number in enumerate(centred(k, nibble_bytes(word, t, width), width, 8))
            ]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        return load_even(k, place.block, 4)

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        first, words = even_words(k, raw)
        d = low_half(k, first)
        return [Run(0, nibbles(words), False, d, d * 8.0)]

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        return tuple(
            value
            for block in blocks_of(k, window, last, self.block_bytes)
            for value in (load_half(k, block), *load_word(k, block.at(2).at(lane[0] * 4)))
        )

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        ds, *words = zip(*by_block(raw, 3), strict=True)
        codes = [joined(k, *halves) for halves in zip(*words, strict=True)]
        return weights_of([low_half(k, d) for d in ds], nibble_pairs(k, codes, 8))
