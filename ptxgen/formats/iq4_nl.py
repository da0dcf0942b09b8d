"""IQ4_NL: 32 values of 4 bits with one scale, on 16 uneven levels: f16 d, then 16 bytes of codes. A weight is d * level."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.code_table import IQ4
from ptxgen.formats.codes import load_codes, load_scale
from ptxgen.formats.format import Decoder, Format, LaneAddress, ScaleField, Weight, register_format
from ptxgen.formats.half_blocks import blocks_of, by_block, byte_halves, load_half, load_word, weights_of
from ptxgen.formats.half_weights import HalfWeights
from ptxgen.formats.packed import Run, even_words, joined, load_even, low_half

_UNSIGNED = IQ4.unsigned()


@register_format
class Iq4Nl(Format):
    """Byte j of the codes holds value j in its low and value j + 16 in its high nibble."""

    name = "IQ4_NL"
    id = "iq4nl"
    ggml_type = 20
    block = 32
    block_bytes = 18
    columns = 16
    depth = 2
    widths = (1, 2, 4)
    scales = (ScaleField(0, 0.0143, signed=True),)
    packed_width = 16
    half_run = 4

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d = load_scale(k, place.block, 0)

        def decode(group: Index) -> list[Weight]:
            levels = IQ4.decode(k, load_codes(k, place.at(2, group, 16), width, align=2), width)
            return [Weight(16 * t + i, levels[i][t] * d) for i in range(width) for t in range(2)]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        return load_even(k, place.block, 4)

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        d, codes = even_words(k, raw)
        return [Run(0, IQ4.look_up_halves(k, codes), True, low_half(k, d))]

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        return tuple(
            value
            for block in blocks_of(k, window, last, self.block_bytes)
            for value in (load_half(k, block), *load_word(k, block.at(2).at(lane[0] * 4)))
        )

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        ds, *words = zip(*by_block(raw, 3), strict=True)
        codes = [joined(k, *halves) for halves in zip(*words, strict=True)]
        levels = cache(lambda block: _UNSIGNED.look_up_halves(k, [codes[block]]))
        return weights_of([low_half(k, d) for d in ds], byte_halves(k, levels, 128))
