"""Q2_K: 256 values of 2 bits, a 4-bit scale and minimum for every 16: 16 bytes of scales (low nibble) and minima, 64 bytes of
codes, f16 d and dmin. A weight is (d * scale) * code - (dmin * minimum)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.formats.codes import bit_field, load_codes, split_scales
from ptxgen.formats.format import Decoder, Format, LargestMinimum, Place, ScaleField, Weight, known
from ptxgen.memory import Index
from ptxgen.types import U32

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder

_SCALES, _CODES, _D = 0, 16, 80  # byte offsets in the block


@known
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
    minimum = LargestMinimum(_D + 2, 15)

    def reader(self, k: KernelBuilder, place: Place, width: int = 1) -> Decoder:
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
                for i in range(width):
                    code = k.f32(bit_field(word, 8 * i + 2 * t, 2, 8 * width))
                    weights.append(Weight(32 * t + i, code * scale - minimum))
            return weights

        return decode
