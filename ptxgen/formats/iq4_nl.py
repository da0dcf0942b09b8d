"""IQ4_NL: 32 values of 4 bits with one scale, on 16 uneven levels: f16 d, then 16 bytes of codes. A weight is d * level."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.code_table import IQ4
from ptxgen.formats.codes import load_codes, load_scale
from ptxgen.formats.format import Decoder, Format, LaneAddress, ScaleField, Weight, register_format
from ptxgen.formats.packed import Run, even_words, load_even, low_half


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
