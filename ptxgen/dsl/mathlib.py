"""The math library of kernels: functions of a builder and an f32 value, made of correctly rounded instructions only, so that a
GPU and the emulator give the same bits. No `.approx` here; who wants one calls the instruction.

Accuracy is given in ulp, units in the last place of the right result: a bound that tests/ptxgen/dsl/test_mathlib.py holds, and
the largest error seen over 2^24 random arguments. Polynomials are weighted least-squares fits, reweighted until the largest
error is smallest (Lawson's method), rounded to f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, pi, sqrt
from typing import TYPE_CHECKING

from ptxgen.dsl.value import Value
from ptxgen.errors import TypeMismatch
from ptxgen.types import B32, F32, S32, U32

if TYPE_CHECKING:
    from ptxgen.dsl.builder import KernelBuilder

# ln 2 in two parts; the first has 15 significant bits, so that its product with any exponent is exact (Cody and Waite).
LN2_HIGH = 0.693145751953125
LN2_LOW = 1.4286068202862268e-06

# (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2; the fit is off by 0.05 of 2^-24.
EXP_TAIL = (0.5, 0.166665181517601, 0.04166620597243309, 0.008368889801204205, 0.001395049155689776)

# (tanh(x) - x) / x^3 as a polynomial in x^2 for |x| <= 0.625; the fit is off by 0.07 of 2^-24.
TANH_TAIL = (-0.3333328366279602, 0.13331490755081177, -0.05374349653720856, 0.020650586113333702, -0.005717044696211815)
TANH_SMALL = 0.625

# Below, exp rounds to 0; above, to infinity. In between the exponent of the result fits two factors.
EXP_LOWEST, EXP_HIGHEST = -104.0, 89.0

# What the bits of an f32 are subtracted from for a guess of its reciprocal.
RECIPROCAL_GUESS = 0x7EF311C7

# A divisor beyond is made smaller.
LARGE = 2.0**100

# What half the bits of an f32 are subtracted from for a guess of 1 / sqrt of it (Lomont, Fast Inverse Square Root, 2003).
RSQRT_GUESS = 0x5F375A86

# 1.5 * 2^23: what is added to it is rounded to a whole number, which stands in the low bits of the sum.
ROUNDER = 12582912.0
ROUNDER_BITS = 0x4B400000


def exp(k: KernelBuilder, x: Value) -> Value:
    """e^x, within 1.1 ulp (seen: 1.03); subnormal results, 0, infinity and NaN are those of the right result."""
    _need_f32(k, x, "exp")
    inside = k.op("min", k.op("max", x, EXP_LOWEST), EXP_HIGHEST)
    rounded = k.fma(inside, log2(2.718281828459045), ROUNDER)
    power = rounded - ROUNDER
    r = k.fma(power, -LN2_LOW, k.fma(power, -LN2_HIGH, inside))
    mantissa = k.fma(_polynomial(k, r, EXP_TAIL), r * r, r) + 1.0
    exponent = k.bits(rounded, S32) - ROUNDER_BITS
    half = exponent >> 1  # one factor 2^exponent would overflow, and a subnormal result must be rounded once
    result = mantissa * _power_of_two(k, half) * _power_of_two(k, exponent - half)
    return k.select(x != x, x, result)


def sigmoid(k: KernelBuilder, x: Value) -> Value:
    """1 / (1 + e^-x), within 3 ulp (seen: 2.47)."""
    return 1.0 / (exp(k, -x) + 1.0)


def sigmoid_of_each(k: KernelBuilder, xs: Sequence[Value]) -> list[Value]:
    """sigmoid of several values, with its bits and without the branch of its division; the exponentials before the
    quotients."""
    divisors = [exp(k, -x) + 1.0 for x in xs]
    return [_over_one_or_more(k, k.f32(1.0), divisor) for divisor in divisors]


def silu(k: KernelBuilder, x: Value) -> Value:
    """x * sigmoid(x) as x / (1 + e^-x), within 3 ulp (seen: 2.38); 0 where e^-x overflows (x < -88.7)."""
    return silu_of_each(k, [x])[0]


def silu_of_each(k: KernelBuilder, xs: Sequence[Value]) -> list[Value]:
    """silu of several values, the exponentials before the quotients."""
    divisors = [exp(k, -x) + 1.0 for x in xs]
    return [_over_one_or_more(k, x, divisor) for x, divisor in zip(xs, divisors, strict=True)]


def gelu(k: KernelBuilder, x: Value) -> Value:
    """x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3), GGML's GELU, written as x / (1 + e^-2u): the same
    function, which does not cancel for negative x. The error is within 3e-7 |x| (seen: 1.3e-7)."""
    _need_f32(k, x, "gelu")
    return x / _gelu_divisor(k, x)


def gelu_of_each(k: KernelBuilder, xs: Sequence[Value]) -> list[Value]:
    """gelu of several values, with its bits and without the branch of its division; the exponentials before the quotients."""
    divisors = [_gelu_divisor(k, x) for x in xs]
    return [_over_one_or_more(k, x, divisor) for x, divisor in zip(xs, divisors, strict=True)]


def _gelu_divisor(k: KernelBuilder, x: Value) -> Value:
    """1 + e^-2u of gelu."""
    inner = k.fma(x * x, 0.044715 * -2.0 * sqrt(2.0 / pi), -2.0 * sqrt(2.0 / pi))
    return exp(k, x * inner) + 1.0


def tanh(k: KernelBuilder, x: Value) -> Value:
    """tanh(x), within 2 ulp (seen: 1.32): a polynomial for |x| <= 0.625, 1 - 2 / (1 + e^2|x|) with the sign of x beyond."""
    _need_f32(k, x, "tanh")
    size = k.op("abs", x)
    square = size * size
    small = k.fma(_polynomial(k, square, TANH_TAIL), square * size, size)
    large = 1.0 - 2.0 / (exp(k, size + size) + 1.0)
    return k.op("copysign", x, k.select(size < TANH_SMALL, small, large))


def rsqrt(k: KernelBuilder, x: Value) -> Value:
    """1 / sqrt(x), two correct roundings: within 1.5 ulp (seen: 1.49)."""
    _need_f32(k, x, "rsqrt")
    return 1.0 / k.op("sqrt", x)


def reciprocal_of_normal(k: KernelBuilder, x: Value) -> Value:
    """1 / x, correctly rounded for 2^-120 <= x <= 2^120: a guess by the exponent, good to 12 %, and four times Newton's
    iteration, without a branch. Of all 2^23 significands that leaves one a unit too small, the largest (Markstein's
    exception)."""
    _need_f32(k, x, "reciprocal_of_normal")
    bits = k.bits(x, U32)
    guess = k.bits(RECIPROCAL_GUESS - bits, F32)
    for _ in range(4):
        guess = k.fma(k.fma(-x, guess, 1.0), guess, guess)
    missing = k.select((bits & 0x7FFFFF) == 0x7FFFFF, k.u32(1), 0)
    return k.bits(k.bits(guess, U32) + missing, F32)


def quotient(k: KernelBuilder, x: Value, divisor: Value, inverse: Value) -> Value:
    """x / divisor, of which `inverse` is reciprocal_of_normal: correctly rounded wherever the quotient is 2^-100 or more, and
    for divisors of 2^-90 or more wherever it is 1/4 or more and below 1/2 wherever the right one is. Without a branch.

    x times the inverse is corrected twice: q + (x - divisor q) inverse is within a unit of the quotient at first; of such a q
    it is the quotient correctly rounded, because the inverse is, too, and x - divisor q is exact (Markstein 1990; Muller et
    al., Handbook of Floating-Point Arithmetic, division by Newton's iteration): all are multiples of the product of the last
    places of q and divisor, which must be no less than the least f32."""
    result = x * inverse
    for _ in range(2):
        result = k.fma(k.fma(-result, divisor, x), inverse, result)
    return result


def _over_one_or_more(k: KernelBuilder, x: Value, divisor: Value) -> Value:
    """x / divisor, with the bits of a division and without its branch, for a divisor that is 1 or more, infinity or NaN: a
    large one, whose reciprocal would be subnormal, is made smaller by 2^64 with x, which must be 2^-60 or more then. An
    infinite x has an infinite divisor if it is negative and 1 if it is not."""
    smaller = k.select(divisor > LARGE, k.f32(2.0**-64), 1.0)
    scaled = divisor * smaller
    result = quotient(k, x * smaller, scaled, reciprocal_of_normal(k, scaled))
    signed = k.op("copysign", x, result)  # of zeros the corrections lose the sign
    finite = k.select(divisor == float("inf"), x * 0.0, signed)
    return k.select(x == float("inf"), x, finite)  # the corrections would take infinity from infinity


def rsqrt_of_normal(k: KernelBuilder, x: Value) -> Value:
    """1 / sqrt(x) for x from 2^-125 on, infinity and NaN, within 0.51 ulp (seen: 0.5004); of no use for others.

    It has no branch, where a division and a root have one each for their rare cases, after which the assembler writes
    everything with a shuffle twice: a first guess by the exponent's half, good to 3.5 %, then three times Newton's iteration,
    each of which squares the error; the last one knows what its product lost."""
    _need_f32(k, x, "rsqrt_of_normal")
    half = x * 0.5
    guess = k.bits(RSQRT_GUESS - (k.bits(x, U32) >> 1), F32)
    for _ in range(2):
        guess = k.fma(guess, k.fma(-(half * guess), guess, 0.5), guess)
    product = half * guess
    lost = k.fma(half, guess, -product)
    rest = k.fma(-lost, guess, k.fma(-product, guess, 0.5))
    return k.select(x == float("inf"), 0.0, k.fma(guess, rest, guess))


def _polynomial(k: KernelBuilder, x: Value, coefficients: tuple[float, ...]) -> Value:
    """The sum of coefficients[i] * x^i by Horner's scheme."""
    *rest, second, highest = coefficients
    total: Value = k.fma(x, highest, second)
    for coefficient in reversed(rest):
        total = k.fma(total, x, coefficient)
    return total


def _power_of_two(k: KernelBuilder, exponent: Value) -> Value:
    """2^exponent for -126 <= exponent <= 127, by its bits."""
    return k.bits(k.bits((exponent << 23) + 0x3F800000, B32), F32)


def _need_f32(k: KernelBuilder, x: Value, name: str) -> None:
    if not isinstance(x, Value) or x.type != F32:
        got = x.type if isinstance(x, Value) else repr(x)
        raise TypeMismatch(f"{name} takes an f32 register, got {got}", k.where(), "convert with k.f32(...)")
