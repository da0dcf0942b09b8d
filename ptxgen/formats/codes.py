"""Small pieces that decoders share: loading codes, cutting bit fields, turning stored scales into f32."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.formats.packed import Bytes
from ptxgen.types import F16, F32, U8, U16, U32

# lop3's table of (a & b) | c.
_AND_OR = 0xEA

BIAS = 2.0**23
"""Its lowest mantissa bit is 1, so BIAS + byte is the bits of BIAS with the byte in them."""

_ABOVE = 0x4B000000  # the bits of BIAS
_UNDER = 0x7440  # prmt's selector: byte 0 of its first operand under the upper bytes of the second

_WORD = {1: U8, 2: U16, 4: U32}

# prmt's selector of the lower half of so many bytes from either operand; the upper bytes of two are zeros.
_JOINED = {2: 0x3340, 4: 0x5410}


def load_codes(k: KernelBuilder, codes: Bytes, width: int, align: int = 4) -> Value:
    """The first `width` (1, 2 or 4) bytes of `codes` as a u32, the first byte lowest; in halves or bytes where they are aligned
    to 2 or 1 (`align`)."""
    if width <= align:
        return k.load(codes[0], _WORD[width])
    low, high = (load_codes(k, codes.at(offset), width // 2, align) for offset in (0, width // 2))
    return k.prmt(low, high, _JOINED[width], result=U32)


def load_words(k: KernelBuilder, codes: Bytes, count: int) -> Sequence[Value]:
    """The first `count` (1, 2 or 4) u32 of `codes`, in one load."""
    return k.load_vector(codes[0], count, U32) if count > 1 else [k.load(codes[0], U32)]


def bit_field(word: Value, position: int, length: int, size: int = 32) -> Value:
    """`length` bits of a u32 from bit `position` on, of which no bit from `size` on is set."""
    if position + length == size:
        return word >> position if position else word
    shifted = word >> position if position else word
    return shifted & ((1 << length) - 1)


def nibble_bytes(word: Value, upper: int, width: int) -> Value:
    """The lower (0) or upper (1) nibble of each of the `width` bytes of a u32, as bytes."""
    if width == 1:
        return bit_field(word, 4 * upper, 4, 8)
    return (word >> 4 if upper else word) & 0x0F0F0F0F


def pair_bytes(word: Value, number: int, width: int) -> Value:
    """Bit pair `number`, counted from the lowest, of each of the `width` bytes of a u32, as bytes."""
    if width == 1:
        return bit_field(word, 2 * number, 2, 8)
    return (word >> 2 * number if number else word) & 0x03030303


def products(k: KernelBuilder, codes: Value, width: int, scale: Value) -> list[Value]:
    """code * scale as f32, rounded once, for each of the `width` bytes of a u32. For several the scale must be finite, and a
    zero is +0 whatever its sign."""
    if width == 1:
        return [k.f32(codes) * scale]
    return scaled(k, biased(k, codes, width), scale)


def centred(k: KernelBuilder, codes: Value, width: int, centre: int) -> list[Value]:
    """code - centre as f32, for each of the `width` bytes of a u32."""
    if width == 1:
        return [k.f32(codes) - float(centre)]
    return [number - (BIAS + centre) for number in biased(k, codes, width)]


def biased(k: KernelBuilder, word: Value, count: int, first: int = 0) -> list[Value]:
    """BIAS + byte as f32, for `count` bytes of a u32 from number `first` on: one instruction each, where cutting a byte out and
    converting it takes three. Subtracting BIAS, and at most 2^23 more, is exact."""
    return [k.bits(k.prmt(word, _ABOVE, _UNDER + first + i, result=U32), F32) for i in range(count)]


def scaled(k: KernelBuilder, numbers: Sequence[Value], scale: Value) -> list[Value]:
    """(number - BIAS) * scale, rounded once, for a finite scale; zeros are +0."""
    bias = scale * -BIAS  # exact: a power of two
    return [k.fma(number, scale, bias) for number in numbers]


def move_bit(word: Value, source: int, target: int) -> Value:
    """The word shifted so that bit `source` comes to stand at `target`."""
    if source == target:
        return word
    return word >> (source - target) if source > target else word << (target - source)


def merge(k: KernelBuilder, high: Value, mask: Value | int, low: Value | int) -> Value:
    """(high & mask) | low, in one instruction."""
    merged: Value = k.lop3(high, mask, low, _AND_OR)
    return merged


def load_scale(k: KernelBuilder, block: Bytes, offset: int) -> Value:
    """The f16 at byte `offset` of the block, as f32."""
    return k.f32(k.load(block[offset], F16))


def load_two_scales(k: KernelBuilder, block: Bytes) -> tuple[Value, Value]:
    """The two f16 that a 4-byte aligned block starts with, as f32."""
    return split_scales(k, k.load(block[0], U32))


def split_scales(k: KernelBuilder, word: Value) -> tuple[Value, Value]:
    """Two f16 packed in a u32, the lower first, as f32."""
    low, high = k.write("mov", [word], result=F16)
    return k.f32(low), k.f32(high)
