"""IQ3_XXS: 256 values as 64 points of four, a sign of each, and a 4-bit scale for every 32: f16 d, 64 bytes of points, 32 bytes
of signs and scales. A weight is (d * (scale + 0.5) / 2) * level. Its 98 bytes keep only 2-byte alignment."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import bit_field, load_codes
from ptxgen.formats.format import LaneAddress, ScaleField, register_format
from ptxgen.formats.grid import Grid, negated
from ptxgen.formats.grid_format import Codes, GridFormat, four_signs
from ptxgen.formats.packed import Bytes, fetch, joined, load_u16s, low_half, region
from ptxgen.types import U16

_D, _POINTS, _SIGNS = 0, 2, 66  # byte offsets in the block

GRID = Grid(
    "iq3xxs_grid",
    (4, 12, 20, 28, 36, 44, 52, 62),
    4,
    "6^aD{1ONai3I!qs0uTTJ6#@l{0D=G@f(0M|0000100;np5P$$Ef&c&n00aO40000W000mG08sz{2mk^A3Iz%kfB^si1p);C000003IzfI000041pom8Kmb4h"
    "A^-pY00961000pHKmY&&AOHXW00000000C40RR911qww11ONa4Dg^=o004*q1%d^D0U!VX0ucZJ0000H0000W00;m82mpWp0ssII00000000003P1n=AOHXW"
    "0tE^H00AHb1pom8Pyhe`3IQMh00aO800ICA0000000001fB*mlK>!2*03ZMW01yB`000O800008000315P$%n0Ehqp000000000G0004i0RTY&fB*mhAOHXW"
    "5C8xG00IyI001BW2mk;90000000000AO!#c0000000aO40ssI3K>$Di03ZMW01yBK000041ONa400;m800D>q000041ONa6000000000000961000mG1ONa4"
    "000mGPyi4B00062000620Du4h000mG0000%00000000005C8xGAOHXW00aO400008000002mk^A00000r~v>300aO4002M$0RR9100aO4AOrva0U!Vf00031"
    "000620ssI21pp8L0000000001000000000000000",
)
"""iq3xxs_grid of ggml-common.h."""


@register_format
class Iq3Xxs(GridFormat):
    """Byte j of the points is that of the values 4 j to 4 j + 3. Of the four bytes of a group: four times seven signs, from the
    lowest bit on, each of eight values, and the scale."""

    name = "IQ3_XXS"
    id = "iq3xxs"
    ggml_type = 18
    block_bytes = 98
    scales = (ScaleField(_D, 0.0068, signed=True),)
    unit = 0.25

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        points, signs = region(place.block, _POINTS, group, 8), region(place.block, _SIGNS, group, 4)
        return (*load_u16s(k, points, 4), *load_u16s(k, signs, 2), fetch(k, place.block[_D], U16))

    def codes(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> Codes:
        points, signs = raw[:4], joined(k, *raw[4:6])
        words = []
        for i in range(8):
            seven = bit_field(signs, 7 * (i // 2), 7)
            word = GRID.four(k, GRID.load(k, bit_field(points[i // 2], 8 * (i % 2), 8, 16)))
            words.append(negated(word, four_signs(k, seven, i % 2)))
        return Codes(words, [_odd(signs)], low_half(k, raw[6]))

    def four(self, k: KernelBuilder, block: Bytes, group: Index, number: Value) -> tuple[Value, Value]:
        point = GRID.load(k, k.load(region(block, _POINTS, group, 8).at(number)[0]))
        signs = load_codes(k, region(block, _SIGNS, group, 4), 4, align=2)
        seven = (signs >> (number // 2) * 7) & 0x7F
        return negated(GRID.four(k, point), four_signs(k, seven, number % 2)), _odd(signs)


def _odd(signs: Value) -> Value:
    return (signs >> 27) | 1
