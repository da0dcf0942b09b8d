"""Q3_K: 256 values of 3 bits, a 6-bit scale for every 16: 32 bytes of third bits, 64 bytes of low bit pairs, 12 bytes of
scales, f16 d. A weight is (d * (scale - 32)) * (code - 4). Its 110 bytes keep only 2-byte alignment.

Of scale s, byte s % 8 of the scales holds the low four bits, in its nibble s / 8; byte 8 + s % 4 the top two, in its bit pair
s / 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.formats.codes import bit_field, load_codes, load_scale, merge, move_bit
from ptxgen.formats.format import Decoder, Format, Place, ScaleField, Weight, known
from ptxgen.memory import Index
from ptxgen.value import Value

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder

_THIRD, _PAIRS, _SCALES, _D = 0, 32, 96, 108  # byte offsets in the block


@known
class Q3K(Format):
    """Bit pairs as in Q2_K; bit s of byte j of the third bits belongs to value j of the 32 values from 32 s on."""

    name = "Q3_K"
    id = "q3k"
    ggml_type = 11
    block = 256
    block_bytes = 110
    groups = 2
    columns = 32
    depth = 4
    widths = (1, 2)
    scales = (ScaleField(_D, 0.022, signed=True),)

    def reader(self, k: KernelBuilder, place: Place, width: int = 1) -> Decoder:
        d = load_scale(k, place.block, _D)
        # A scale serves 16 values, so the lane's column says which of two; a reader's columns do not straddle them.
        mine = place.block.at(_SCALES).at(place.column // 16)
        low = [k.load(mine[2 * t]) for t in range(4)]
        top = [k.load(mine[8 + 2 * t]) for t in range(2)]
        third = load_codes(k, place.at(_THIRD, 0, 0), width)

        def of_group(word: Value, group: Index) -> tuple[Value, int]:
            """A word with four bits a group, and where this group's stand in it."""
            return (word, 4 * group) if isinstance(group, int) else (word >> (group * 4), 0)

        def decode(group: Index) -> list[Weight]:
            pairs = load_codes(k, place.at(_PAIRS, group, 32), width)
            thirds, first_third = of_group(third, group)
            weights = []
            for t in range(4):
                nibbles, first = of_group(low[t], group)
                tops, first_top = of_group(top[t % 2], group)
                six_bits = merge(k, move_bit(tops, first_top + t // 2 * 2, 4), 3 << 4, bit_field(nibbles, first, 4))
                scale = (k.f32(six_bits) - 32.0) * d
                for i in range(width):
                    pair = bit_field(pairs, 8 * i + 2 * t, 2, 8 * width)
                    code = merge(k, move_bit(thirds, 8 * i + first_third + t, 2), 1 << 2, pair)
                    weights.append(Weight(32 * t + i, (k.f32(code) - 4.0) * scale))
            return weights

        return decode
