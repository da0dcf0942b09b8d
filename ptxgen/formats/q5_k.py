"""Q5_K: 256 values of 5 bits, a 6-bit scale and minimum for every 32: the header of k_scales.py, 32 bytes of fifth bits, then
128 bytes of low nibbles. A weight is (d * scale) * code - (dmin * minimum)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.formats.codes import bit_field, load_codes, merge, move_bit
from ptxgen.formats.format import Decoder, Format, Place, ScaleField, Weight, known
from ptxgen.formats.k_scales import KScales
from ptxgen.memory import Index

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder


@known
class Q5K(Format):
    """Nibbles as in Q4_K; bit s of byte j of the fifth bits belongs to value j of sub-block s."""

    name = "Q5_K"
    id = "q5k"
    ggml_type = 13
    block = 256
    block_bytes = 176
    groups = 4
    columns = 32
    depth = 2
    widths = (1, 2, 4)
    scales = (ScaleField(0, 0.0019), ScaleField(2, 0.029))

    def reader(self, k: KernelBuilder, place: Place, width: int = 1) -> Decoder:
        scales = KScales(k, place.block)
        fifth = load_codes(k, place.at(16, 0, 0), width)

        def decode(group: Index) -> list[Weight]:
            nibbles = load_codes(k, place.at(48, group, 32), width)
            mine, first = (fifth, 2 * group) if isinstance(group, int) else (fifth >> (group * 2), 0)
            weights = []
            for t, (scale, minimum) in enumerate(scales.of(group)):
                for i in range(width):
                    nibble = bit_field(nibbles, 8 * i + 4 * t, 4, 8 * width)
                    code = k.f32(merge(k, move_bit(mine, 8 * i + first + t, 4), 1 << 4, nibble))
                    weights.append(Weight(32 * t + i, code * scale - minimum))
            return weights

        return decode
