"""Q5_K: 256 values of 5 bits, a 6-bit scale and minimum for every 32: the header of k_scales.py, 32 bytes of fifth bits, then
128 bytes of low nibbles. A weight is (d * scale) * code - (dmin * minimum)."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import load_codes, merge, move_bit, nibble_bytes, products
from ptxgen.formats.format import Decoder, Format, LaneAddress, LargestMinimum, ScaleField, Weight, register_format
from ptxgen.formats.half_weights import ONCE, THOUSANDS, HalfStep, HalfWeights, Scaling, biased_pair, lower_bytes
from ptxgen.formats.k_scales import KScales, halves, header_constants, pair_of_group
from ptxgen.formats.packed import NIBBLES, BlockPiece, Bytes, Run, load_pieces, pieces, stream

# Where the fifth bit of four packed codes stands.
_FIFTH = 0x10101010

# The nibbles of two halves, and their fifth bits above them.
_FIELDS, _FIFTH_OF_HALVES = 0x000F000F, 0x00100010


@register_format
class Q5K(Format):
    """Nibbles as in Q4_K; bit s of byte j of the fifth bits belongs to value j of sub-block s."""

    name = "Q5_K"
    id = "q5k"
    ggml_type = 13
    block = 256
    block_bytes = 176
    groups = 4
    columns = 32
    depth = 2
    widths = (1, 2, 4)
    header_bytes = 16
    scales = (ScaleField(0, 0.0019), ScaleField(2, 0.029))
    packed_width = 32
    minimum = LargestMinimum(2, 63)
    half_run = 64
    half_bytes = 80

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        scales = KScales(k, place)
        fifth = load_codes(k, place.at(16, 0, 0), width)

        def decode(group: Index) -> list[Weight]:
            nibbles = load_codes(k, place.at(48, group, 32), width)
            mine, first = (fifth, 2 * group) if isinstance(group, int) else (fifth >> (group * 2), 0)
            weights = []
            for t, (scale, minimum) in enumerate(scales.of(group) if width == 1 else scales.finite(group)):
                lower = nibble_bytes(nibbles, t, width)
                codes = merge(k, move_bit(mine, first + t, 4), _FIFTH if width > 1 else 1 << 4, lower)
                weights += [Weight(32 * t + i, one - minimum) for i, one in enumerate(products(k, codes, width, scale))]
            return weights

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        return stream(k, place.block, 48) + stream(k, place.at(48, group, 32), 32)

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        (scale, minimum), (high_scale, high_minimum) = pair_of_group(k, raw[:4], group)
        left = 4 - 2 * group  # brings the fifth bits of the group's first sub-block to bit 4; modulo 32
        low, high = [], []
        for fifth, word in zip(raw[4:12], raw[12:], strict=True):
            turned = k.shf(fifth, fifth, left % 32 if isinstance(left, int) else left, direction="l", mode="wrap")
            low.append(merge(k, turned, _FIFTH, word & NIBBLES))
            high.append(merge(k, turned >> 1, _FIFTH, (word >> 4) & NIBBLES))
        return [Run(0, low, False, scale, minimum), Run(32, high, False, high_scale, high_minimum)]

    def half_lane(self, k: KernelBuilder, number: Value) -> tuple[Value, ...]:
        """The number, how far left the fifth bits of its first sub-block are from bit 4, and what the header needs."""
        return (number, 4 - number * 2, *header_constants(k, number))

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        return load_pieces(k, self.f16_pieces(window, lane), **ONCE)

    def f16_pieces(self, window: Bytes, lane: Sequence[Value]) -> tuple[BlockPiece, ...]:
        return pieces(window, 48) + pieces(window.at(lane[0] * 32).at(48), 32)

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        fifths = lower_bytes([k.shf(word, word, lane[1], direction="l", mode="wrap") for word in raw[4:12]])
        words = lower_bytes(raw[12:])

        def step(number: int, scalings: Sequence[Scaling]) -> HalfStep:
            second, word = divmod(number, 8)
            numbers = (
                biased_pair(k, nibbles, _FIELDS << 4 * second, merge(k, high, _FIFTH_OF_HALVES << 4 * second, THOUSANDS))
                for nibbles, high in zip(words(word), (one << 3 if second else one for one in fifths(word)), strict=True)
            )
            return HalfStep(scalings[second].of_biased(k, numbers))

        return halves(k, raw[:4], lane[2:], step, shift=4)
