"""Q4_K: 256 values of 4 bits, a 6-bit scale and minimum for every 32: the header of k_scales.py, then 128 bytes of codes. A
weight is (d * scale) * code - (dmin * minimum)."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import load_codes, nibble_bytes, products
from ptxgen.formats.format import Decoder, Format, LaneAddress, LargestMinimum, ScaleField, Weight, register_format
from ptxgen.formats.half_weights import ONCE, HalfStep, HalfWeights, Scaling, lower_bytes
from ptxgen.formats.k_scales import KScales, halves, header_constants, pair_of_group
from ptxgen.formats.packed import BlockPiece, Bytes, Run, high_nibbles, load_pieces, low_nibbles, pieces, stream

# The lower nibbles of two halves.
_FIELDS = 0x000F000F


@register_format
class Q4K(Format):
    """Byte j of the 32 of group g holds values 64 g + j (low nibble) and 64 g + 32 + j."""

    name = "Q4_K"
    id = "q4k"
    ggml_type = 12
    block = 256
    block_bytes = 144
    groups = 4
    columns = 32
    depth = 2
    widths = (1, 2, 4)
    header_bytes = 16
    scales = (ScaleField(0, 0.0039), ScaleField(2, 0.029))
    packed_width = 32
    minimum = LargestMinimum(2, 63)
    half_run = 64
    half_bytes = 48

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        scales = KScales(k, place)

        def decode(group: Index) -> list[Weight]:
            word = load_codes(k, place.at(16, group, 32), width)
            return [
                Weight(32 * t + i, product - minimum)
                for t, (scale, minimum) in enumerate(scales.of(group) if width == 1 else scales.finite(group))
                for i, product in enumerate(products(k, nibble_bytes(word, t, width), width, scale))
            ]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        return stream(k, place.block, 16) + stream(k, place.at(16, group, 32), 32)

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        (scale, minimum), (high_scale, high_minimum) = pair_of_group(k, raw[:4], group)
        return [
            Run(0, low_nibbles(raw[4:]), False, scale, minimum),
            Run(32, high_nibbles(raw[4:]), False, high_scale * 0.0625, high_minimum),
        ]

    def half_lane(self, k: KernelBuilder, number: Value) -> tuple[Value, ...]:
        return (number, *header_constants(k, number))

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        return load_pieces(k, self.f16_pieces(window, lane), **ONCE)

    def f16_pieces(self, window: Bytes, lane: Sequence[Value]) -> tuple[BlockPiece, ...]:
        return pieces(window, 16) + pieces(window.at(lane[0] * 32).at(16), 32)

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        words = lower_bytes(raw[4:])

        def step(number: int, scalings: Sequence[Scaling]) -> HalfStep:
            second, word = divmod(number, 8)
            return HalfStep(scalings[second].products(k, words(word), _FIELDS << 4 * second))

        return halves(k, raw[:4], lane[1:], step, shift=4)
