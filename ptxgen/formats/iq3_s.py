"""IQ3_S: 256 values as 64 points of four, a sign of each, and a 4-bit scale for every 32: f16 d, 64 bytes of the low eight bits
of points, 8 bytes of ninth bits, 32 bytes of signs, 4 bytes of scales. A weight is (d * (2 scale + 1)) * level. Its 110 bytes
keep only 2-byte alignment."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import bit_field, merge, move_bit
from ptxgen.formats.format import LaneAddress, ScaleField, register_format
from ptxgen.formats.grid import Grid, negated
from ptxgen.formats.grid_format import Codes, GridFormat, odd_nibble
from ptxgen.formats.packed import Bytes, fetch, joined, load_u16s, low_half, region
from ptxgen.types import U8, U16

_D, _POINTS, _NINTHS, _SIGNS, _SCALES = 0, 2, 66, 74, 106  # byte offsets in the block

GRID = Grid(
    "iq3s_grid",
    (1, 3, 5, 7, 9, 11, 13, 15),
    4,
    "r&l8gr3wX-7bA%x5C9?sqe&tWqzV8D2qFba5CwoD0f-U=2?78C6aYmCq5wb$Knef?00aO66#zvD01*HH7pnzQ08j!1OA!JI0tEm;0i+QG2_OLkk_mzl0ssU7"
    "C=>t+L=gZ00to^I00IC2005ByPyhe`3Izfn0ssU7t5u2xDg}Tk1&JgQ1Ofm6k^l;U0*C+-B?1%*1OY$*f&d950ssIc5CQ~%0SEvAg#ZEo03ZSYAOb)E2mt^9"
    "1gZoolmZ9>Di8_)0RRC+0R#aQ009610uhP<iXZ?82tot`00a>L0tFxh5I_J306+i$0ssI23IGKl000005d@J00s#O4gbD;92qFLg3Lydr0e}Pn5DEn%00000"
    "1pp9$0RR93pa22@000C400;mO0003103iSY2m$~A1Q7%Pkpw^xDg*)q000040Rjj?00;m8gaLp65CR|w5&!`NKmY&$00ck)015yA000001ONa46aWMO00000"
    "04e|q000310RVvj000mG00aOK1Rw+f0T2QJ0RR91001BW2mk~C2><{P00031AOHXW0RR91015yA00000kpKli0T2WL1OgBMC;$Ke5<vn100IC21ONae00;m8"
    "A_xHh00961000C41ONa41ONa6000000RR9100000",
)
"""iq3s_grid of ggml-common.h."""


@register_format
class Iq3S(GridFormat):
    """Byte j of the points is that of the values 4 j to 4 j + 3, bit j of the ninths its ninth bit; bit i of the signs belongs
    to value i. The scale of group g is nibble g."""

    name = "IQ3_S"
    id = "iq3s"
    ggml_type = 21
    block_bytes = 110
    scales = (ScaleField(_D, 0.0069, signed=True),)
    unit = 1.0

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        block = place.block
        return (
            *load_u16s(k, region(block, _POINTS, group, 8), 4),
            *load_u16s(k, region(block, _SIGNS, group, 4), 2),
            fetch(k, region(block, _NINTHS, group, 1)[0], U8),
            fetch(k, region(block, _SCALES, group // 2, 1)[0], U8),
            fetch(k, block[_D], U16),
        )

    def codes(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> Codes:
        points, signs, ninths, scales, d = raw[:4], joined(k, *raw[4:6]), *raw[6:]
        words = []
        for i in range(8):
            index = merge(k, move_bit(ninths, i, 8), 1 << 8, bit_field(points[i // 2], 8 * (i % 2), 8, 16))
            words.append(negated(GRID.four(k, GRID.load(k, index)), bit_field(signs, 4 * i, 4)))
        return Codes(words, [odd_nibble(scales, group % 2)], low_half(k, d))

    def four(self, k: KernelBuilder, block: Bytes, group: Index, number: Value) -> tuple[Value, Value]:
        ninth = (k.load(region(block, _NINTHS, group, 1)[0]) >> number) & 1
        point = GRID.load(k, k.load(region(block, _POINTS, group, 8).at(number)[0]) | ninth << 8)
        signs = k.load(region(block, _SIGNS, group, 4).at(number // 2)[0]) >> (number % 2) * 4
        scales = k.load(region(block, _SCALES, group // 2, 1)[0])
        return negated(GRID.four(k, point), signs & 0xF), odd_nibble(scales, group % 2)
