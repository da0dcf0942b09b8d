"""The 16-byte header of Q4_K and Q5_K: two f16 and eight 6-bit scales and minima packed in 12 bytes. Not a format.

Bytes 0-3 hold the low scales, 4-7 the low minima, each in 6 bits; bytes 8-11 hold the low nibbles of the high scales and (in
the upper nibble) of the high minima, whose top two bits are the top two bits of bytes 0-3 and 4-7."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import biased, bit_field, merge, scaled, split_scales
from ptxgen.formats.format import LaneAddress
from ptxgen.formats.half_weights import BY_WORD, HalfMinima, HalfStep, HalfWeights, Scaling, integers, scaling
from ptxgen.types import U32

_SIX_BITS = 0x3F3F3F3F
_NIBBLES = 0x0F0F0F0F
_TOP_BITS = 0x30303030

# prmt's selector of the two lower bytes of both operands, and what makes the two upper ones of it.
_LOWEST_TWO, _NEXT_TWO = 0x5410, 0x2222

# lop3's table of: where a bit of the first is set that of the second, else that of the third.
_CHOOSE = 0xCA


class KScales:
    """The header of a 16-byte aligned super-block, unpacked to a byte a scale."""

    def __init__(self, k: KernelBuilder, place: LaneAddress) -> None:
        self._k = k
        pair, scales, minima, rest = place.header(k, 4)
        self._d, self._dmin = split_scales(k, pair)
        self._scales = (scales & _SIX_BITS, merge(k, scales >> 2, _TOP_BITS, rest & _NIBBLES))
        self._minima = (minima & _SIX_BITS, merge(k, minima >> 2, _TOP_BITS, (rest >> 4) & _NIBBLES))

    def of(self, group: Index) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
        """(scale, minimum) of the two sub-blocks of 32 values in this group of 64, as f32 products with d and dmin."""
        scales, minima = self._pair(self._scales, group), self._pair(self._minima, group)
        first, second = (
            (self._k.f32(scale) * self._d, self._k.f32(minimum) * self._dmin)
            for scale, minimum in zip(scales, minima, strict=True)
        )
        return first, second

    def finite(self, group: Index) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
        """As `of`, in fewer instructions, for finite d and dmin; zeros are +0."""
        (scale, next_scale), (minimum, next_minimum) = (
            scaled(self._k, self._biased(packed, group), factor)
            for packed, factor in ((self._scales, self._d), (self._minima, self._dmin))
        )
        return (scale, minimum), (next_scale, next_minimum)

    def _biased(self, packed: tuple[Value, Value], group: Index) -> list[Value]:
        if isinstance(group, int):
            return biased(self._k, packed[group // 2], 2, group % 2 * 2)
        return biased(self._k, self._k.select(group < 2, packed[0], packed[1]) >> ((group & 1) << 4), 2)

    def _pair(self, packed: tuple[Value, Value], group: Index) -> tuple[Value, Value]:
        if isinstance(group, int):
            word, position = packed[group // 2], group % 2 * 16
            return bit_field(word, position, 8), bit_field(word, position + 8, 8)
        word = self._k.select(group < 2, packed[0], packed[1]) >> ((group & 1) << 4)
        return bit_field(word, 0, 8), bit_field(word, 8, 8)


def pair_of_group(k: KernelBuilder, header: Sequence[Value], group: Index) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    """(scale, minimum) of the two sub-blocks of a group of 64, as KScales.of, when only one group of the header is wanted: the
    four 6-bit numbers are cut out together. `header` is its four u32."""
    d, dmin = split_scales(k, header[0])
    scales, minima, rest = header[1:]
    number = k.u32(group) if isinstance(group, int) else group
    selector = k.mad(number & 1, _NEXT_TWO, _LOWEST_TWO)
    # A mask in a register, although late groups always take the nibbles: with a constant loops of long rows spill registers.
    nibbles = k.select(number < 2, k.u32(0), _NIBBLES)
    early = k.prmt(scales, minima, selector, result=U32)
    late = k.lop3(nibbles, k.prmt(rest, rest >> 4, selector, result=U32), early >> 2, _CHOOSE, result=U32)
    mine = k.select(nibbles == 0, early, late) & _SIX_BITS
    # The assembler makes one instruction of a bfe of eight bits and the conversion.
    scale, next_scale, minimum, next_minimum = (k.f32(k.bfe(mine, 8 * byte, 8)) for byte in range(4))
    return (scale * d, minimum * dmin), (next_scale * d, next_minimum * dmin)


def header_constants(k: KernelBuilder, lane: Value) -> tuple[Value, ...]:
    """What `halves` needs of the number (u32) of a lane of a quad: where its two bytes stand in a word and in the next, how far
    the words of six bits are moved, and what of these and of the nibbles it takes."""
    early = lane < 2
    return (
        k.mad(lane & 1, _NEXT_TWO, _LOWEST_TWO),
        lane & 2,
        k.select(early, k.u32(_SIX_BITS), _TOP_BITS),
        k.select(early, k.u32(0), _NIBBLES),
    )


def halves(
    k: KernelBuilder,
    header: Sequence[Value],
    constants: Sequence[Value],
    step: Callable[[int, Sequence[Scaling]], HalfStep],
    shift: int = 0,
) -> HalfWeights:
    """The weights of a lane of a quad that takes the two sub-blocks of its group. `step` decodes a step with the scaling of one
    of them; the fields of the second stand `shift` bits high."""
    selector, moved, mask, nibbles = constants
    pair, scales, minima, rest = header
    d, dmin = split_scales(k, pair)
    six_bits = k.prmt(scales, minima, selector, result=U32) >> moved
    high_nibbles = k.prmt(rest, rest >> 4, selector, result=U32) & nibbles
    mine = merge(k, six_bits, mask, high_nibbles)  # two bytes of scales, two of minima
    scalings = scaling(k, mine, 0), scaling(k, mine, 1, shift)
    both = integers(k, mine, 2, 3)
    return HalfWeights([d], lambda number: step(number, scalings), BY_WORD, HalfMinima((both, both), dmin))
