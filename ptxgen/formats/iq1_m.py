"""IQ1_M: 256 values as 32 points of IQ1_S, a shift of the levels for every eight, and a 3-bit scale for every 16: 32 bytes of
the low eight bits of points, 16 bytes of their top bits and of shifts, 8 bytes of scales, in whose top bits d is. A weight is
as in IQ1_S."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import bit_field, merge, move_bit
from ptxgen.formats.format import LaneAddress, ScaleField, register_format
from ptxgen.formats.grid_format import Codes, GridFormat
from ptxgen.formats.iq1_s import GRID, shifted
from ptxgen.formats.packed import Bytes, fetch, fetch_words, low_half, region
from ptxgen.types import U16, U32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_POINTS, _TOPS, _SCALES = 0, 32, 48  # byte offsets in the block


@register_format
class Iq1M(GridFormat):
    """Byte j of the points is that of the values 8 j to 8 j + 7, nibble j of the tops its top three bits and whether its shift
    is down. Of each of the four u16 of scales: four scales, from the lowest bit on, and a nibble of the f16 d."""

    name = "IQ1_M"
    id = "iq1m"
    ggml_type = 29
    block_bytes = 56
    scale_values = 16
    scales = (ScaleField(_SCALES, 0.133, signed=True),)
    unit = 0.125

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        points, tops = region(place.block, _POINTS, group, 4), region(place.block, _TOPS, group, 2)
        return (fetch(k, points[0], U32), fetch(k, tops[0], U16), *fetch_words(k, place.block[_SCALES], 2))

    def codes(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> Codes:
        points, tops, *scales = raw
        words = []
        for i in range(4):
            index = merge(k, move_bit(tops, 4 * i, 8), 7 << 8, bit_field(points, 8 * i, 8))
            point = GRID.load(k, index)
            down = bit_field(tops, 4 * i + 3, 1, 16)
            words += [shifted(k, point, down, half) for half in range(2)]
        mine = _scales_of(k, scales, group)
        return Codes(words, [_odd(mine, half) for half in range(2)], _super_scale(k, scales))

    def four(self, k: KernelBuilder, block: Bytes, group: Index, number: Value) -> tuple[Value, Value]:
        octet = number // 2
        top = k.load(region(block, _TOPS, group, 2)[0], U16) >> octet * 4
        point = GRID.load(k, k.load(region(block, _POINTS, group, 4).at(octet)[0]) | (top & 7) << 8)
        mine = _scales_of(k, k.load_vector(block[_SCALES], 2, U32), group)
        return shifted(k, point, (top >> 3) & 1, number % 2), _odd(mine, number // 4)

    def super_scale(self, k: KernelBuilder, block: Bytes) -> Value:
        return _super_scale(k, k.load_vector(block[_SCALES], 2, U32))

    def write_scale(self, blocks: NDArray[np.uint8], scale: ScaleField, values: NDArray[np.float16]) -> None:
        scattered = blocks[:, _SCALES:].copy().view("<u2")
        nibbles = values.view("<u2")[:, None] >> [0, 4, 8, 12] & 0xF
        blocks[:, _SCALES:] = (scattered & 0xFFF | nibbles << 12).astype("<u2").view("u1")


def _super_scale(k: KernelBuilder, scales: Sequence[Value]) -> Value:
    low = merge(k, scales[0] >> 24, 0xF0, (scales[0] >> 12) & 0xF)
    return low_half(k, merge(k, scales[1] >> 4, 0xF00, merge(k, scales[1] >> 16, 0xF000, low)))


def _scales_of(k: KernelBuilder, scales: Sequence[Value], group: Index) -> Value:
    """A u32 whose six low bits are the two scales of the group."""
    if isinstance(group, int):
        position = 16 * (group // 2 % 2) + 6 * (group % 2)
        return scales[group // 4] >> position if position else scales[group // 4]
    word = k.select(group < 4, scales[0], scales[1])
    return word >> ((group // 2) % 2) * 16 + (group % 2) * 6


def _odd(scales: Value, half: Index) -> Value:
    return ((scales >> half * 3) & 7) * 2 + 1
