"""IQ2_XS: 256 values as 32 points of eight, a sign of each, and a 4-bit scale for every 16: f16 d, 64 bytes of points and
signs, 8 bytes of scales. A weight is (d * (scale + 0.5) / 4) * level. Its 74 bytes keep only 2-byte alignment."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.format import LaneAddress, ScaleField, register_format
from ptxgen.formats.grid import Grid, negated
from ptxgen.formats.grid_format import Codes, GridFormat, four_signs, odd_nibble
from ptxgen.formats.iq2_xxs import LEVELS
from ptxgen.formats.packed import Bytes, fetch, load_u16s, low_half, region
from ptxgen.types import U8, U16

_D, _POINTS, _SCALES = 0, 2, 66  # byte offsets in the block

GRID = Grid(
    "iq2xs_grid",
    LEVELS,
    8,
    "RaI3{RYgG+MFCV*RZvAi5Cs7MR8bH>K?DE+0RT`{ML`u60TcuPP(?ui1px#E002Ni01yQL06+i$Kve}16a)bf06;(m0RRL506-7`009650RR9101yFGRZ&ny"
    "K|loo08~*BKtTWi0Z;%?5dc5{0096108m9i07U^11ONa)K>z>&0000006+i)00031000001qA>EKmY&)000pH000001ONa400000KmY&$003205I{iy00965"
    "P!Iq>5C9MW000mG0096100aO4L_q*R0RR91002M$000CK0000G0096200000000m{0R#X50RRvH1ONa40000G009610T2KH002Y*08mv$K~)726a)ZJML_@s"
    "0RTh*KtMqOKmh;%0000$6-5CQ1ON~K0RRO75Ci}K002M$0RaF&5C8xG000yO01yEI0RR911P}lKK>$Di002M$0000000000P(?uy1pxpA002Ni1ONp900000"
    "KmY&$5C8xG002M*0R#j95I_I`0YLx&0000$5C8xG01yBG01yBG1Oz|;KtKQh0003101!X{000000000000000KmY(hK>z>&5D)+X08jt`0000000000000mG"
    "1ONa40RRC&000000000000aOK0RR9101yBG00000000005C8xG000010000000aO40000000aO401yxW002N01pyTV08jt`P!$0H1P}xO0000100aO406+l%"
    "K@?N~5CA{`KmY&)0000100000KmY&)000000RR9H1ONm8009&L00aa80000000000000C4000mK1P}!Q00aO5009610RRvH00031000000000406+i$L;wH)"
    "K@b1{0000001yBG000yK000000RR910000000004000001ONa400961000005C8xG5C8xG07U@=1ONa4000310000$5C8xGKokK05C8xG0RRL5002M$0000$"
    "0000000000000000000006+i$1OPw)MF0Q*002M`1ONa4000050000000jU5000310R",
)
"""iq2xs_grid of ggml-common.h."""


@register_format
class Iq2Xs(GridFormat):
    """Of u16 j, which is for the values 8 j to 8 j + 7, the nine low bits are the point and the others seven signs. Byte g of
    the scales has those of the lower (low nibble) and the upper 16 values of group g."""

    name = "IQ2_XS"
    id = "iq2xs"
    ggml_type = 17
    block_bytes = 74
    scale_values = 16
    scales = (ScaleField(_D, 0.0172, signed=True),)
    unit = 0.125

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        points, scales = region(place.block, _POINTS, group, 8), region(place.block, _SCALES, group, 1)
        return (*load_u16s(k, points, 4), fetch(k, scales[0], U8), fetch(k, place.block[_D], U16))

    def codes(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> Codes:
        words = []
        for one in raw[:4]:
            point = GRID.load(k, one & 0x1FF)
            words += [negated(GRID.four(k, point, half), four_signs(k, one >> 9, half)) for half in range(2)]
        return Codes(words, [odd_nibble(raw[4], half) for half in range(2)], low_half(k, raw[5]))

    def four(self, k: KernelBuilder, block: Bytes, group: Index, number: Value) -> tuple[Value, Value]:
        one = k.load(region(block, _POINTS, group, 8).at((number // 2) * 2)[0], U16)
        point, scales = GRID.load(k, one & 0x1FF), k.load(region(block, _SCALES, group, 1)[0])
        word = negated(GRID.four(k, point, number % 2), four_signs(k, one >> 9, number % 2))
        return word, odd_nibble(scales, number // 4)
