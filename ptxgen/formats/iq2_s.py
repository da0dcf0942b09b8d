"""IQ2_S: 256 values as 32 points of eight, a sign of each, and a 4-bit scale for every 16: f16 d, 32 bytes of the low eight
bits of points, 32 bytes of signs, 8 bytes of the top two bits of points, 8 bytes of scales. A weight is
(d * (scale + 0.5) / 4) * level. Its 82 bytes keep only 2-byte alignment."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import bit_field, merge, move_bit
from ptxgen.formats.format import LaneAddress, ScaleField, register_format
from ptxgen.formats.grid import Grid, negated
from ptxgen.formats.grid_format import Codes, GridFormat, odd_nibble
from ptxgen.formats.iq2_xxs import LEVELS
from ptxgen.formats.packed import Bytes, fetch, load_u16s, low_half, region
from ptxgen.types import U8, U16

_D, _POINTS, _SIGNS, _TOPS, _SCALES = 0, 2, 34, 66, 74  # byte offsets in the block

GRID = Grid(
    "iq2s_grid",
    LEVELS,
    8,
    "RaI3{RYg@51rb$MQBXxy6a^I&R8bI6RRjPL5fD&SMO9T*6;wr0P*qhFRaF#JQ4l~?1OQPK1W*tFKowOHRaH?C0Rcb-RRly)5I{fx009&b1rPuL06+j#RZ&qz"
    "RTULc6jW7JMO76ARTKbF6hT1*1ppKT08m9$6jfCeR8bH>RTTwQ6a-KZ06-K40TcuP5C8x`RZ#>~Q4l}@0031K1W*tF5C8xK5Ci}a00aO4002}`6;VM21OX8M"
    "R8T=c1qA^V1ON~a08s=1000F5L{$_8RTKnJ5CA|F1pyQU01*HH00jX61ONm80000H6aY{V002M$02KrP0000001yBG1V8`)00ck*08mv`MO9T56hu)_MO6h="
    "RTNZF5I{i{1W^<OPyhfxRaI3~RZ&nyK>$@%6jV_VP(c6yRTKnJ5CA{`01y;aQBXxe00aR5R8bH>K>z>&Kmbq>06+i$00000P(@W0RaF#JQ2;<y6$Mok1W*tF"
    "KokW56a)Yi00010RTNZF5I{iy096zOP!Iq>0000K1OO2L0000008~*BKtVtN0RR9{5CA{`0000001yBW00000KmY(lMHK~66a+vJ06-N50TcuP5C9MW1OWg9"
    "0096100B`H1W*tFKmY&$6a)Ye5C9MW1ONm800000000mGP!IqB000mG009sH06+i$00000000001ONa406;($MG+KK5fDKE07X?4R8asxK>$Dz6#!5W00000"
    "08~{GP(?ui1pxq5Q4l~u0003208kJBPyhe`0000GK>+{-0RR91KtKTi0096%00000000C400lq*00Bi+5L8hRKtTWi5flJW5D)+W000yO01yBG0000$R8bH>"
    "K>z>&Kmbq>06+i$0000H5C8xG5C9MW002Ni01yEH00000Pyhe`01*HH0000000000002M$01*)oR1g3F000C5000mG00aO401yN~6aWAKL;(O%5CA{`00001"
    "Ko9^B0000000000000001ONa4002M$KmY&$0000100000KmY&)002M%6afGL01yBG0R",
)
"""iq2s_grid of ggml-common.h."""


@register_format
class Iq2S(GridFormat):
    """Byte j of the points is that of the values 8 j to 8 j + 7, bit pair j of the tops its top two bits; bit i of the signs
    belongs to value i. Scales as in IQ2_XS."""

    name = "IQ2_S"
    id = "iq2s"
    ggml_type = 22
    block_bytes = 82
    scale_values = 16
    scales = (ScaleField(_D, 0.0172, signed=True),)
    unit = 0.125

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        block = place.block
        return (
            *load_u16s(k, region(block, _POINTS, group, 4), 2),
            *load_u16s(k, region(block, _SIGNS, group, 4), 2),
            fetch(k, region(block, _TOPS, group, 1)[0], U8),
            fetch(k, region(block, _SCALES, group, 1)[0], U8),
            fetch(k, block[_D], U16),
        )

    def codes(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> Codes:
        points, signs, tops, scales, d = raw[:2], raw[2:4], *raw[4:]
        words = []
        for i in range(4):
            index = merge(k, move_bit(tops, 2 * i, 8), 3 << 8, bit_field(points[i // 2], 8 * (i % 2), 8, 16))
            point = GRID.load(k, index)
            for half in range(2):
                words.append(negated(GRID.four(k, point, half), bit_field(signs[i // 2], 8 * (i % 2) + 4 * half, 4, 16)))
        return Codes(words, [odd_nibble(scales, half) for half in range(2)], low_half(k, d))

    def four(self, k: KernelBuilder, block: Bytes, group: Index, number: Value) -> tuple[Value, Value]:
        octet = number // 2
        top = (k.load(region(block, _TOPS, group, 1)[0]) >> octet * 2) & 3
        point = GRID.load(k, k.load(region(block, _POINTS, group, 4).at(octet)[0]) | top << 8)
        signs = k.load(region(block, _SIGNS, group, 4).at(octet)[0]) >> (number % 2) * 4
        scales = k.load(region(block, _SCALES, group, 1)[0])
        return negated(GRID.four(k, point, number % 2), signs & 0xF), odd_nibble(scales, number // 4)
