"""Exact arithmetic on floats as bit patterns, with fractions: an oracle that shares nothing with the emulator. One operation is
one rounding of a fraction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt


@dataclass(frozen=True)
class Number:
    """A float taken apart. `size` is None for NaN, infinite for an infinity."""

    negative: bool
    size: Fraction | float | None

    @property
    def is_nan(self) -> bool:
        return self.size is None

    @property
    def is_infinite(self) -> bool:
        return isinstance(self.size, float)

    @property
    def is_zero(self) -> bool:
        return self.size == 0

    @property
    def value(self) -> Fraction | float:
        assert self.size is not None
        return -self.size if self.negative else self.size

    @property
    def fraction(self) -> Fraction:
        assert isinstance(self.size, Fraction)
        return -self.size if self.negative else self.size


NAN = Number(False, None)
INFINITY = float("inf")


@dataclass(frozen=True)
class Format:
    """A binary float format."""

    bits: int
    exponent_bits: int
    fraction_bits: int

    @property
    def bias(self) -> int:
        return (1 << self.exponent_bits - 1) - 1

    @property
    def canonical_nan(self) -> int:
        return (1 << self.bits - 1) - 1

    def decode(self, bits: int, *, ftz: bool = False) -> Number:
        negative = bool(bits >> self.bits - 1)
        fraction = bits & (1 << self.fraction_bits) - 1
        exponent = bits >> self.fraction_bits & (1 << self.exponent_bits) - 1
        if exponent == (1 << self.exponent_bits) - 1:
            return NAN if fraction else Number(negative, INFINITY)
        if exponent == 0:
            size = Fraction(0) if ftz else Fraction(fraction) * Fraction(2) ** (1 - self.bias - self.fraction_bits)
            return Number(negative, size)
        size = Fraction(fraction | 1 << self.fraction_bits) * Fraction(2) ** (exponent - self.bias - self.fraction_bits)
        return Number(negative, size)

    def encode(self, number: Number, mode: str = "rn", *, ftz: bool = False) -> int:
        """The nearest float as `mode` says (rn, rz, rm, rp); with `ftz` a number below the least normal one becomes zero."""
        if number.is_nan:
            return self.canonical_nan
        sign = int(number.negative) << self.bits - 1
        infinity = ((1 << self.exponent_bits) - 1) << self.fraction_bits
        if number.is_infinite:
            return sign | infinity
        assert isinstance(number.size, Fraction)
        if number.size == 0:
            return sign
        if ftz and number.size < Fraction(2) ** (1 - self.bias):
            return sign
        exponent = max(_floor_log2(number.size), 1 - self.bias)
        units = number.size / Fraction(2) ** (exponent - self.fraction_bits)
        whole = _round(units, mode, number.negative)
        bits = whole + ((exponent + self.bias - 1) << self.fraction_bits) if whole else 0
        if bits >= infinity:
            away = mode == "rn" or (mode == "rm" and number.negative) or (mode == "rp" and not number.negative)
            bits = infinity if away else infinity - 1
        return sign | bits


FORMATS = {"f16": Format(16, 5, 10), "bf16": Format(16, 8, 7), "f32": Format(32, 8, 23), "f64": Format(64, 11, 52)}


def _floor_log2(x: Fraction) -> int:
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if Fraction(2) ** guess <= x else guess - 1


def _round(units: Fraction, mode: str, negative: bool) -> int:
    whole, rest = divmod(units, 1)
    if mode == "rn":
        up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    else:
        up = rest > 0 and ((mode == "rm" and negative) or (mode == "rp" and not negative))
    return int(whole) + up


def add(a: Number, b: Number, mode: str = "rn") -> Number:
    if a.is_nan or b.is_nan or (a.is_infinite and b.is_infinite and a.negative != b.negative):
        return NAN
    if a.is_infinite or b.is_infinite:
        return a if a.is_infinite else b
    total = a.fraction + b.fraction
    if total == 0:
        negative = a.negative if a.negative == b.negative else mode == "rm"
        return Number(negative, Fraction(0))
    return Number(total < 0, abs(total))


def negate(a: Number) -> Number:
    return Number(not a.negative, a.size)


def multiply(a: Number, b: Number) -> Number:
    if a.is_nan or b.is_nan or (a.is_infinite and b.is_zero) or (b.is_infinite and a.is_zero):
        return NAN
    negative = a.negative != b.negative
    if a.is_infinite or b.is_infinite:
        return Number(negative, INFINITY)
    return Number(negative, abs(a.fraction * b.fraction))


def divide(a: Number, b: Number) -> Number:
    if a.is_nan or b.is_nan or (a.is_infinite and b.is_infinite) or (a.is_zero and b.is_zero):
        return NAN
    negative = a.negative != b.negative
    if a.is_infinite or b.is_zero:
        return Number(negative, INFINITY)
    if b.is_infinite:
        return Number(negative, Fraction(0))
    return Number(negative, abs(a.fraction / b.fraction))


def fma(a: Number, b: Number, c: Number, mode: str = "rn") -> Number:
    return add(multiply(a, b), c, mode)


def square_root(a: Number) -> Number:
    """The root to far more bits than any format has, and marked as inexact by one more bit."""
    if a.is_nan or (a.negative and not a.is_zero):
        return NAN
    if a.is_zero or a.is_infinite:
        return a
    scale = 2 * (200 + abs(_floor_log2(a.fraction)))
    scaled = a.fraction * Fraction(2) ** scale
    root = isqrt(int(scaled))
    exact = root * root == scaled
    return Number(False, Fraction(2 * root + (not exact), 2) / Fraction(2) ** (scale // 2))


Comparison = Callable[[Fraction | float, Fraction | float], bool]
RELATIONS: dict[str, Comparison] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def compare(relation: str, a: Number, b: Number) -> bool:
    """The relations of PTX: unordered ones (a trailing u) hold if either side is NaN, the others do not."""
    nan = a.is_nan or b.is_nan
    if relation in ("num", "nan"):
        return nan == (relation == "nan")
    if nan:
        return len(relation) == 3
    return RELATIONS[relation[:2]](a.value, b.value)


def to_integer(a: Number, mode: str, bits: int, signed: bool, *, nan: int) -> int:
    """rni, rzi, rmi, rpi; clamped; NaN as given."""
    if a.is_nan:
        return nan
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if a.is_infinite:
        return low if a.negative else high
    assert isinstance(a.size, Fraction)
    whole = _round(a.size, mode[:2], a.negative)
    return max(low, min(high, -whole if a.negative else whole))
