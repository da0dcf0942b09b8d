"""TQ1_0: 256 ternary values with one scale, five in a byte: 48 bytes of five, 4 bytes of four, f16 d. A weight is
d * (digit - 1). Its 54 bytes keep only 2-byte alignment.

A byte is a fraction of 256 in base 3, rounded up: its first digit is the integer part of three times it, and so on."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import load_codes, load_scale
from ptxgen.formats.format import Decoder, Format, LaneAddress, ScaleField, Weight, register_format
from ptxgen.formats.packed import Bytes, Run, fetch, joined, load_u16s, low_half
from ptxgen.types import S32, U16, U32

_FIVES, _FOURS, _D = 0, 48, 52  # byte offsets in the block

_EVEN = 0x00FF00FF

# The powers of three by number, from 0 to 4: eight bytes, of which prmt takes one where the other three are 0.
_POWERS, _FOURTH, _ONE_BYTE = 1 | 3 << 8 | 9 << 16 | 27 << 24, 81, 0x7770

_LESS_ONE, _TOPS = 0x7F7F7F7F, 0x80808080

# The first group of the second region, and that of the fours.
_SECOND, _LAST = 10, 15


@register_format
class Tq10(Format):
    """Group g has the values 16 g to 16 g + 15. The first 32 bytes hold the digits of one place for two groups each, the next
    16 those for one, from group 10 on; of the last group byte j of the fours has the values j, 4 + j, 8 + j and 12 + j."""

    name = "TQ1_0"
    common = False
    id = "tq1_0"
    ggml_type = 34
    block = 256
    block_bytes = 54
    groups = 16
    columns = 16
    depth = 1
    widths = (1, 2, 4)
    scales = (ScaleField(_D, 1.17, signed=True),)
    packed_width = 16

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d = load_scale(k, place.block, _D)
        column = k.u32(place.column)

        def decode(group: Index) -> list[Weight]:
            number = k.u32(group)
            offset, digit = _place(k, number)
            last = number == _LAST
            start = k.select(last, column & 3, column)
            word = load_codes(k, place.block.at(offset).at(start), width, align=2)
            word = _digits(word, _power(k, k.select(last, column >> 2, digit)))
            digits = [k.f32(k.prmt(word, 0, 0x8880 + 0x1111 * i, result=S32)) for i in range(width)]
            return [Weight(i, digit * d) for i, digit in enumerate(digits)]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        """Four words of codes; those of the last group are the same."""
        number = k.u32(group)
        start = place.block.at(_place(k, number)[0])
        apart = k.select(number == _LAST, k.u32(0), 4)
        starts: list[Bytes] = [start, *(start.at(apart * i) for i in range(1, 4))]
        return (*(half for one in starts for half in load_u16s(k, one, 2)), fetch(k, place.block[_D], U16))

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        number = k.u32(group)
        last, power = number == _LAST, _power(k, _place(k, number)[1])
        words = [joined(k, *raw[i : i + 2]) for i in range(0, 8, 2)]
        digits = [_digits(word, k.select(last, 3**i, power)) for i, word in enumerate(words)]
        return [Run(0, digits, True, low_half(k, raw[-1]))]


def _place(k: KernelBuilder, group: Value) -> tuple[Value, Value]:
    """Where the bytes of a group begin, and the place of its digits."""
    first = group < _SECOND
    offset = k.select(first, (group & 1) * 16, k.select(group == _LAST, k.u32(_FOURS), 32))
    return offset, k.select(first, group >> 1, group - _SECOND)


def _power(k: KernelBuilder, exponent: Value) -> Value:
    """3^exponent; of an exponent over 4 anything."""
    power: Value = k.prmt(_POWERS, _FOURTH, exponent | _ONE_BYTE, result=U32)
    return power


def _digits(word: Value, power: Value) -> Value:
    """The digits of the four bytes of a word at the place of this power of three, less one, as signed bytes."""
    even, odd = ((((part & _EVEN) * power & _EVEN) * 3 >> 8) & _EVEN for part in (word, word >> 8))
    return ((even | odd << 8) + _LESS_ONE) ^ _TOPS
