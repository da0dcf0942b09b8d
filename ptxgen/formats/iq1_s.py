"""IQ1_S: 256 values as 32 points of eight, a shift of the levels and a 3-bit scale for every 32: f16 d, 32 bytes of the low
eight bits of points, 16 bytes of what else there is. A weight is (d * (2 scale + 1)) * (level + shift), where levels are -1, 0
and 1 and the shift is 1/8 or -1/8: an eighth of an odd integer. Its 50 bytes keep only 2-byte alignment."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import bit_field, merge, move_bit
from ptxgen.formats.format import LaneAddress, ScaleField, register_format
from ptxgen.formats.grid import Grid, four_levels
from ptxgen.formats.grid_format import Codes, GridFormat
from ptxgen.formats.packed import Bytes, fetch, load_u16s, low_half, region
from ptxgen.types import U16

_D, _POINTS, _TOPS = 0, 2, 34  # byte offsets in the block

GRID = Grid(
    "iq1s_grid",
    (-1, 0, 1),
    8,
    "RV5UKpaMcs2t_fdh9HWf8VD*N6opU}f*?diB^3pr0)ilj7yt-@paUwPh`Xu^kg5v+A^-}ijDnyDKv4)qA&7ub6hcu5iZBS6pa_5}2t^?jg&;^mRR~1^EW)55"
    "iY5RmB&e#Q2;#2@2q-83paMcDswg0+fFKH+2)VkbAj+<ZqOPhseCz7EyMhk5BD%`c4w3>Q03sl$in<Dd0tf&qO5mb9A|NZG0D(Y(s){HGA^{YIP!)n82}L1P"
    "g`fxmBd9tcgn}ScLQx2!APALE6ap#;xTu1FphyBB2!f($q5>$ZDhP!j2!b#OML+;WAryt6076j!MFA;-0E&Vt2%#_(1yB@%C<sL%6onuH0wAg?03Z^vimoWA"
    "x}mD5Z~%e|2m&Y~0)zm907!tK>aZ%R!XS&fBI??wi;HfklCUbOa*K*Y3@RW<gg_{YDhR3|$jqW5qOY2u=%@k!0stzghyWmfpo^lSD7v74f-(xazPP&n>!P45"
    "q6mr#DC(jBp)vvt`lRaK?<=S-jlO>C`uBgo=6$-}Y5OPtzb5(;>EVhZ5URcogsKR#s0)Iw|GFgUgMb8LENJqm3ZyFl0xAdy;;Iq=0)i?ErXb0JiI9RQ0HOel"
    "fD-_M2nYadimIx+0;ax-pvnS(YnLw2vgr_l5H70TC>7DA1ON(x0E&Vj2mzrWf~q;XA~J-a34j;?ilSlyffPhh07W6Jf>0DfQ3$FaD5{4F5-JEqAru9m2trW^"
    "MFAiJpg^J`0Ehqxq6lh=Zn&zdfB+y0g5t;`AqYfJ6hcu6iXat*P!xs=2&yV7fB*_YQ3ypLr~ptDLQx3fAc%qr7=kJYs-miju!{l;DykqTf`F<DC<rJ3sfYq1"
    "puP(zxCn~6OR}#2x}^B7svuG*Xttm*=70(UC<r2IVt^nD0;;Mjs_LStprQx}5Fnt6A^?I807W4bg`f&RQ3ypLsRjT_ssae501ypC6oM!SMIjUg00@GDtnwfL"
    "0062AC<?kD>Y@Swf=CG{=@bAFOGQxtMFFS+P!vK@2#6#Ih$sp`2mnO^6a}CHKv4)q0R",
)
"""iq1s_grid of ggml-common.h, of IQ1_M, too."""

_SHIFTED = (-7, 1, 9, 0, -9, -1, 7, 0)
"""Eight times the levels, shifted up; from the fourth on down."""

_DOWN = 0x44444444


@register_format
class Iq1S(GridFormat):
    """Byte j of the points is that of the values 8 j to 8 j + 7. Of the u16 of a group: four times the top three bits of its
    points, from the lowest bit on, the scale, and whether the shift is down."""

    name = "IQ1_S"
    id = "iq1s"
    ggml_type = 19
    block_bytes = 50
    scales = (ScaleField(_D, 0.133, signed=True),)
    unit = 0.125

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        points, tops = region(place.block, _POINTS, group, 4), region(place.block, _TOPS, group, 2)
        return (*load_u16s(k, points, 2), fetch(k, tops[0], U16), fetch(k, place.block[_D], U16))

    def codes(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> Codes:
        points, (tops, d) = raw[:2], raw[2:]
        words = []
        for i in range(4):
            index = merge(k, move_bit(tops, 3 * i, 8), 7 << 8, bit_field(points[i // 2], 8 * (i % 2), 8, 16))
            point = GRID.load(k, index)
            words += [shifted(k, point, tops >> 15, half) for half in range(2)]
        return Codes(words, [_odd(tops)], low_half(k, d))

    def four(self, k: KernelBuilder, block: Bytes, group: Index, number: Value) -> tuple[Value, Value]:
        tops = k.load(region(block, _TOPS, group, 2)[0], U16)
        top = (tops >> (number // 2) * 3) & 7
        point = GRID.load(k, k.load(region(block, _POINTS, group, 4).at(number // 2)[0]) | top << 8)
        return shifted(k, point, tops >> 15, number % 2), _odd(tops)


def shifted(k: KernelBuilder, point: Value, down: Value, half: Index) -> Value:
    """Eight times the lower (0) or upper (1) four values of a point, shifted down if `down` is 1 and up if it is 0."""
    numbers = point | down * _DOWN
    return four_levels(k, _SHIFTED, numbers if isinstance(half, int) and not half else numbers >> half * 16)


def _odd(tops: Value) -> Value:
    return ((tops >> 11) & 0xE) | 1
