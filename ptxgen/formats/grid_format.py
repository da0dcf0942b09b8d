"""What the formats have in common whose codes are points of a grid: 256 values, of which a lane takes 32 with one or two small
scales. A weight is code * (2 scale + 1) * (d * unit), where code is a signed byte; each product is exact. Not a format."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import bit_field, centred, load_scale
from ptxgen.formats.format import Decoder, Format, LaneAddress, Weight
from ptxgen.formats.half_weights import STEPS, HalfStep, HalfWeights, biased_bytes, byte_pairs, constant_pair
from ptxgen.formats.packed import Bytes, Run
from ptxgen.types import B32

_SIGNS = 0x80808080


@dataclass(frozen=True)
class Codes:
    """Those of 32 values: eight words of four signed bytes each, and the odd numbers 2 scale + 1 (u32), one for all or one for
    every 16 values. d: f32."""

    words: Sequence[Value]
    odd: Sequence[Value]
    d: Value


class GridFormat(Format):
    """Group g of the block has the values 32 g to 32 g + 31."""

    common = False
    block = 256
    groups = 8
    columns = 32
    depth = 1
    widths = (1, 2, 4)
    packed_width = 32
    half_run = 64
    unit: ClassVar[float]

    @abstractmethod
    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        """See Format."""

    @abstractmethod
    def codes(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> Codes:
        """Those of a group, from what `load_packed` loaded."""

    @abstractmethod
    def four(self, k: KernelBuilder, block: Bytes, group: Index, number: Value) -> tuple[Value, Value]:
        """Load four codes of a group, of the values from 4 * number on, and their odd number."""

    def super_scale(self, k: KernelBuilder, block: Bytes) -> Value:
        """Load d, f32."""
        return load_scale(k, block, self.scales[0].offset)

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d = self.super_scale(k, place.block) * self.unit
        column = k.u32(place.column)

        def decode(group: Index) -> list[Weight]:
            word, odd = self.four(k, place.block, group, column // 4)
            word = word ^ _SIGNS
            if width < 4:
                word = word >> (column % 4) * 8
            scale = k.f32(odd) * d
            numbers = centred(k, word & 0xFF if width == 1 else word, width, 128)
            return [Weight(i, number * scale) for i, number in enumerate(numbers)]

        return decode

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        codes = self.codes(k, raw, group)
        d, size = codes.d * self.unit, len(codes.words) // len(codes.odd)
        return [
            Run(4 * size * i, codes.words[size * i : size * (i + 1)], True, k.f32(odd) * d) for i, odd in enumerate(codes.odd)
        ]

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        place = LaneAddress(window, window, 0)
        return tuple(value for group in _groups(lane) for value in self.load_packed(k, place, group))

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        """A code times its odd number has no more than 11 bits."""
        size = len(raw) // 2
        both = [self.codes(k, raw[i * size : (i + 1) * size], group) for i, group in enumerate(_groups(lane))]
        scales = [[biased_bytes(k, odd, 0, 0) + constant_pair(k, -1024) for odd in codes.odd] for codes in both]

        def step(number: int) -> HalfStep:
            group, four = divmod(number, STEPS // 2)
            scale = scales[group][four * len(scales[group]) // (STEPS // 2)]
            first, second = (k.bits(pair * scale, B32) for pair in byte_pairs(k, both[group].words[four] ^ _SIGNS, 128))
            return HalfStep((first, second))

        return HalfWeights([both[0].d * self.unit], step, range(STEPS))


def _groups(lane: Sequence[Value]) -> list[Value]:
    return [lane[0] * 2, lane[0] * 2 + 1]


def four_signs(k: KernelBuilder, seven: Value, half: Index) -> Value:
    """The lower (0) or upper (1) four of eight signs, of which seven are stored: the eighth makes their number even. As
    `negated` takes them."""
    if isinstance(half, int) and half == 0:
        return seven
    eight = seven ^ k.popc(seven) << 7
    return eight >> 4 if isinstance(half, int) else (eight >> half * 4) & 0xF


def odd_nibble(scales: Value, half: Index) -> Value:
    """2 scale + 1, for the scale in the low (0) or high (1) nibble of a byte."""
    if isinstance(half, int):
        return bit_field(scales, 4 * half, 4, 8) * 2 + 1
    return ((scales >> half * 4) & 0xF) * 2 + 1
