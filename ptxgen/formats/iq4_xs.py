"""IQ4_XS: 256 values of 4 bits on IQ4_NL's levels, a 6-bit scale for every 32: f16 d, the top bit pairs of the scales in 2
bytes, their low nibbles in 4, then 128 bytes of codes. A weight is (d * (scale - 32)) * level."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.code_table import IQ4
from ptxgen.formats.codes import bit_field, load_codes, merge, move_bit
from ptxgen.formats.format import Decoder, Format, LaneAddress, ScaleField, Weight, register_format
from ptxgen.formats.packed import Run, low_half
from ptxgen.types import U32


@register_format
class Iq4Xs(Format):
    """Byte j of the 16 of group g holds values 32 g + j (low nibble) and 32 g + 16 + j."""

    name = "IQ4_XS"
    id = "iq4xs"
    ggml_type = 23
    block = 256
    block_bytes = 136
    groups = 8
    columns = 16
    depth = 2
    widths = (1, 2, 4)
    header_bytes = 8
    scales = (ScaleField(0, 0.00077, signed=True),)
    packed_width = 16

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d_and_tops, nibbles = place.header(k, 2)
        d = low_half(k, d_and_tops)

        def decode(group: Index) -> list[Weight]:
            levels = IQ4.decode(k, load_codes(k, place.at(8, group, 16), width), width)
            scale = (k.f32(_scale(k, d_and_tops, nibbles, group)) - 32.0) * d
            return [Weight(16 * t + i, levels[i][t] * scale) for i in range(width) for t in range(2)]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        codes = place.at(8, group, 16)
        pairs = (k.load_vector(array[0], 2, U32, nc=True) for array in (place.block, codes, codes.at(8)))
        return tuple(word for pair in pairs for word in pair)

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        d_and_tops, nibbles, *codes = raw
        scale = (k.f32(_scale(k, d_and_tops, nibbles, group)) - 32.0) * low_half(k, d_and_tops)
        return [Run(0, IQ4.look_up_halves(k, codes), True, scale)]


def _scale(k: KernelBuilder, tops: Value, nibbles: Value, group: Index) -> Value:
    """The 6-bit scale of a group; `tops` has the top pairs in its upper half."""
    if isinstance(group, int):
        return merge(k, move_bit(tops, 16 + 2 * group, 4), 3 << 4, bit_field(nibbles, 4 * group, 4))
    return merge(k, tops >> (group * 2 + 12), 3 << 4, bit_field(nibbles >> (group * 4), 0, 4))
