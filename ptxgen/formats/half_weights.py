"""What a format decodes to for tensor cores that multiply f16: integers of at most 11 bits, which f16 holds exactly, with the
scales that make weights of them. The contract is in format.py; which lane takes which row is a kernel's business
(ptxgen/kernels/gemm)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import merge
from ptxgen.types import B32, F16X2, U32

WINDOW: Final = 256
"""Values of a row that are decoded together."""

STEPS: Final = 16
"""Steps of a window: a lane has four values of each, its quad 16."""

ONCE: Final = {"evict": "L1::evict_first"}
"""The cache modifiers of loads of weights: nobody reads them again, and activations that all rows need should stay."""

Pair = tuple[Value, Value]
"""Two b32 of two f16 each: values 0 and 2 of four neighbours, then values 1 and 3."""

THOUSANDS: Final = 0x64006400
"""The bits of 1024 in both halves. Its lowest mantissa bit is 1, so these with a number in the lower bits are 1024 + number."""

_THOUSANDS_ABOVE = 0x64646464
_SIGNS = 0x80808080


BY_WORD: Final = tuple(step for word in range(STEPS // 2) for step in (word, word + STEPS // 2))
"""An order of steps for formats whose words have four values of a step and four of the step eight later."""


class HalfStep(NamedTuple):
    """The integers of a row's step, as the lane holds them in the left operand of `mma` m16n8k16. low: what `high`, rounded to
    f16, lacks; None where the integers of the format have no more than 11 bits."""

    high: Pair
    low: Pair | None = None


class HalfMinima(NamedTuple):
    """What is taken off: `scale`, f32, times the sum of minima times sums of 16 activations. Sum 4 t + c + 2 u of the 16 is
    multiplied with half u of register c of lane t."""

    halves: Pair
    scale: Value


@dataclass(frozen=True)
class HalfWeights:
    """A lane's share of 256 weights of a row. A weight is its integer times its scale, less the minima.

    scales: f32, one for all steps, or one for every 32 values, that is two steps. step: writes what decodes the step of a
    number; called once for each of the 16, best in `order`, in which what several steps share dies soonest."""

    scales: Sequence[Value]
    step: Callable[[int], HalfStep]
    order: Sequence[int]
    minima: HalfMinima | None = None


@dataclass(frozen=True)
class Scaling:
    """f16x2 scale and -1024 scale, of integers so small that all products are exact."""

    scale: Value
    bias: Value

    def products(self, k: KernelBuilder, words: Sequence[Value], mask: int) -> Pair:
        """The scale times the field of each half of two words that `mask` cuts out of the ten lowest bits."""
        return self.of_biased(k, (biased_pair(k, word, mask) for word in words))

    def of_biased(self, k: KernelBuilder, numbers: Iterable[Value]) -> Pair:
        """The scale times the fields of two f16x2 of 1024 + field."""
        first, second = (k.bits(k.fma(number, self.scale, self.bias), B32) for number in numbers)
        return first, second


def constant_pair(k: KernelBuilder, value: float) -> Value:
    """A f16x2 with this number in both halves."""
    half = k.f16(value)
    return k.bits(k.write("mov", [(half, half)], result=B32)[0], F16X2)


def biased_pair(k: KernelBuilder, word: Value, mask: int, rest: Value | int = THOUSANDS) -> Value:
    """1024 + field as f16x2, for the field of each half of a word that `mask` cuts out of the ten lowest bits. rest: THOUSANDS,
    with bits of the fields that stand elsewhere."""
    return k.bits(merge(k, word, mask, rest), F16X2)


def centred_pair(k: KernelBuilder, biased: Value, centre: int, shift: int = 0) -> Value:
    """field - centre of a f16x2 of 1024 + field, where fields stand `shift` bits high."""
    if not shift:
        return biased + constant_pair(k, -1024 - centre)
    return k.fma(biased, constant_pair(k, 2.0**-shift), constant_pair(k, -1024 * 2.0**-shift - centre))


def same_halves(k: KernelBuilder, word: Value, centre: int) -> list[Value]:
    """byte - centre of the four bytes of a word, each as both halves of a f16x2."""
    bias = constant_pair(k, -1024 - centre)
    return [biased_bytes(k, word, i, i) + bias for i in range(4)]


def byte_pairs(k: KernelBuilder, word: Value, centre: int) -> tuple[Value, Value]:
    """byte - centre of the bytes 0 and 2, and of 1 and 3, of a word."""
    first, second = (centred_pair(k, biased_bytes(k, word, i, i + 2), centre) for i in range(2))
    return first, second


def biased_bytes(k: KernelBuilder, word: Value, first: int, second: int) -> Value:
    """1024 + byte as f16x2, for two bytes of a word by number."""
    return k.bits(k.prmt(word, _THOUSANDS_ABOVE, 0x4040 | first | second << 8, result=U32), F16X2)


def scaling(k: KernelBuilder, word: Value, byte: int, shift: int = 0) -> Scaling:
    """For fields that stand `shift` bits high and are multiplied with this unsigned byte of a word: below 64, and exact where
    the fields are below 32."""
    share = 2.0**-shift
    biased = biased_bytes(k, word, byte, byte)
    if shift:
        scale = k.fma(biased, constant_pair(k, share), constant_pair(k, -1024 * share))
    else:
        scale = biased + constant_pair(k, -1024)
    return Scaling(scale, scale * constant_pair(k, -1024))


def integers(k: KernelBuilder, word: Value, first: int, second: int) -> Value:
    """Two unsigned bytes of a word, by number, as the f16 of a b32."""
    return k.bits(biased_bytes(k, word, first, second) + constant_pair(k, -1024), B32)


def signed_integers(k: KernelBuilder, word: Value) -> list[Value]:
    """The four signed bytes of a word, each as both halves of a f16x2."""
    return same_halves(k, word ^ _SIGNS, 128)


def lower_bytes(words: Sequence[Value]) -> Callable[[int], Pair]:
    """Gives word i and the same 8 bits lower, which is written once: the bytes of values 0 and 2, of values 1 and 3, as the
    lower bytes of halves."""

    @cache
    def pair(i: int) -> Pair:
        return words[i], words[i] >> 8

    return pair


def exact_product(k: KernelBuilder, scale: Value, code: Value) -> tuple[Value, Value]:
    """The product of two f16x2 of small integers, as the f16 of two b32: rounded, and what that lacks."""
    high = scale * code
    return k.bits(high, B32), k.bits(k.fma(scale, code, -high), B32)
