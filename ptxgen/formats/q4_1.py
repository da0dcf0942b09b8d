"""Q4_1: 32 values of 4 bits with a scale and a minimum: f16 d and m, then 16 bytes of codes. A weight is d * code + m."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.formats.codes import bit_field, load_codes, load_two_scales
from ptxgen.formats.format import Decoder, Format, Place, ScaleField, Weight, known
from ptxgen.memory import Index

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder


@known
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

    def reader(self, k: KernelBuilder, place: Place, width: int = 1) -> Decoder:
        d, m = load_two_scales(k, place.block)

        def decode(group: Index) -> list[Weight]:
            word = load_codes(k, place.at(4, group, 16), width)
            return [
                Weight(16 * t + i, k.f32(bit_field(word, 8 * i + 4 * t, 4, 8 * width)) * d + m)
                for i in range(width)
                for t in range(2)
            ]

        return decode
