"""IQ2_XXS: 256 values as 32 points of eight, a sign of each, and a 4-bit scale for every 32: f16 d, then for every 32 values
4 bytes of points, 4 bytes of signs and scale. A weight is (d * (scale + 0.5) / 4) * level. Its 66 bytes keep only 2-byte
alignment."""

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

_D, _GROUPS = 0, 2  # byte offsets in the block

LEVELS = (8, 25, 43)
"""Of IQ2_XXS, IQ2_XS and IQ2_S."""

GRID = Grid(
    "iq2xxs_grid",
    LEVELS,
    8,
    "RTUIf5JW*i00b0701yBG00ck)6aYW~00004002-BKtT}z0Tcv4Py|2#5C8xL5C8yB0003106+i$K@<c)6chje1ONa8000C40000000a;K000000000K1P~Aa"
    "KmY_000aRL06;(h0RR91000350000001yN~1V8`)1ONa401yBG01yBG06+i`00000000001pxpA002M$000pH000000000100000KmY&$000yO000310R;d6"
    "0000G5C8xG002+`0000000000KtTWi0YCr%002M$000C4KmY&$0000000000KmY(h00aO400004000000000000000000010000008kJ_K@boD6a)Ye06+i$"
    "00cw;06;(h06;(h0RR9%5C8!H000mG5C8xK5C8xG000000RR9100000000yO01yEH000001ONa401yEL00000000C4000C45JXS_000040RR92000C400000"
    "0RR9100000KmY&$00000002M%000310000000004000000RR9100a;O0000400000002M$00000000C40000000000K>z>&0003106+i$002M$0000006+i$"
    "01yBG000pH000000000002BZK00004000000000000000000000RR910000000000000000000000000002Ni000C406+i$00ck)1ONa4000001ONa400000"
    "02D+35CA{`00004000040000G000C4KmY&%0000$00000000000003100000000000096100000000C55Ci}K0000106+i$002M$0000000031000001OPw)"
    "0RR910000000001000000000000000000000000001yBG000010000000000000000000000aO401yBG1ONa40RR910000000aO4000000000000aO400000"
    "000000000000000000000000000000000C4000001ONa40000000000000000000000",
)
"""iq2xxs_grid of ggml-common.h."""


@register_format
class Iq2Xxs(GridFormat):
    """Byte j of the points of a group is that of its values 8 j to 8 j + 7. Of the four bytes after these: four times seven
    signs, from the lowest bit on, each of eight values, and the scale."""

    name = "IQ2_XXS"
    id = "iq2xxs"
    ggml_type = 16
    block_bytes = 66
    scales = (ScaleField(_D, 0.018, signed=True),)
    unit = 0.125

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        return (*load_u16s(k, region(place.block, _GROUPS, group, 8), 4), fetch(k, place.block[_D], U16))

    def codes(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> Codes:
        points, signs = raw[:2], joined(k, *raw[2:4])
        words = []
        for i in range(4):
            point = GRID.load(k, bit_field(points[i // 2], 8 * (i % 2), 8, 16))
            seven = bit_field(signs, 7 * i, 7)
            words += [negated(GRID.four(k, point, half), four_signs(k, seven, half)) for half in range(2)]
        return Codes(words, [_odd(signs)], low_half(k, raw[4]))

    def four(self, k: KernelBuilder, block: Bytes, group: Index, number: Value) -> tuple[Value, Value]:
        mine = region(block, _GROUPS, group, 8)
        point = GRID.load(k, k.load(mine.at(number // 2)[0]))
        signs = load_codes(k, mine.at(4), 4, align=2)
        seven = (signs >> (number // 2) * 7) & 0x7F
        return negated(GRID.four(k, point, number % 2), four_signs(k, seven, number % 2)), _odd(signs)


def _odd(signs: Value) -> Value:
    return (signs >> 27) | 1
