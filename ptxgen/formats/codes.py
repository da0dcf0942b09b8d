"""Small pieces that decoders share: loading codes, cutting bit fields, turning stored scales into f32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.memory import GlobalArray
from ptxgen.types import F16, U8, U16, U32
from ptxgen.value import Value

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder

# lop3's table of (a & b) | c.
_AND_OR = 0xEA

_WORD = {1: U8, 2: U16, 4: U32}


def load_codes(k: KernelBuilder, codes: GlobalArray, width: int) -> Value:
    """The first `width` (1, 2 or 4) bytes of `codes` as a u32, the first byte lowest."""
    return k.load(codes[0], _WORD[width])


def load_words(k: KernelBuilder, codes: GlobalArray, count: int) -> Sequence[Value]:
    """The first `count` (1, 2 or 4) u32 of `codes`, in one load."""
    return k.load_vector(codes[0], count, U32) if count > 1 else [k.load(codes[0], U32)]


def bit_field(word: Value, position: int, length: int, size: int = 32) -> Value:
    """`length` bits of a u32 from bit `position` on, of which no bit from `size` on is set."""
    if position + length == size:
        return word >> position if position else word
    shifted = word >> position if position else word
    return shifted & ((1 << length) - 1)


def move_bit(word: Value, source: int, target: int) -> Value:
    """The word shifted so that bit `source` comes to stand at `target`."""
    if source == target:
        return word
    return word >> (source - target) if source > target else word << (target - source)


def merge(k: KernelBuilder, high: Value, mask: int, low: Value | int) -> Value:
    """(high & mask) | low, in one instruction."""
    merged: Value = k.lop3(high, mask, low, _AND_OR)
    return merged


def load_scale(k: KernelBuilder, block: GlobalArray, offset: int) -> Value:
    """The f16 at byte `offset` of the block, as f32."""
    return k.f32(k.load(block[offset], F16))


def load_two_scales(k: KernelBuilder, block: GlobalArray) -> tuple[Value, Value]:
    """The two f16 that a 4-byte aligned block starts with, as f32."""
    return split_scales(k, k.load(block[0], U32))


def split_scales(k: KernelBuilder, word: Value) -> tuple[Value, Value]:
    """Two f16 packed in a u32, the lower first, as f32."""
    low, high = k.write("mov", [word], result=F16)
    return k.f32(low), k.f32(high)
