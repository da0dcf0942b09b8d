"""Which positions a query sees, and what becomes of the product of a query and a key: window, factor, soft cap, ALiBi."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite, log
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.dsl.arguments import is_whole
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.parts import IF_CHANGED, KernelPart
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError, ShapeError
from ptxgen.target import WARP_SIZE


@dataclass(frozen=True)
class Scoring(KernelPart):
    """window: a query at position p sees the keys at p - window + 1 .. p; None: at 0 .. p. scale: the factor of q k; None: 1 /
    sqrt(head_dim). softcap: a score s becomes softcap * tanh(s / softcap); 0: it stays. alibi: a key n positions before the
    query has n times the slope of the head taken off its score, see `slopes`; 0: nothing."""

    window: int | None = field(default=None, metadata=IF_CHANGED)
    softcap: float = field(default=0.0, metadata=IF_CHANGED)
    scale: float | None = field(default=None, metadata=IF_CHANGED)
    alibi: float = field(default=0.0, metadata=IF_CHANGED)

    def require(self, kernel: KernelType) -> None:
        """Raise ArgumentError unless the values are in range."""
        if self.window is not None and not (is_whole(self.window) and 1 <= self.window < 1 << 31):
            raise ShapeError(kernel.name, "window", self.window, "an integer, 1 or more, or None")
        for name, value in (("softcap", self.softcap), ("alibi", self.alibi)):
            if not _is_number(value) or value < 0:
                raise ArgumentError(f"{kernel.name}: {name} must be 0 (off) or a positive number, got {value!r}")
        if self.scale is not None and not (_is_number(self.scale) and self.scale > 0):
            raise ArgumentError(f"{kernel.name}: scale must be a positive number or None, got {self.scale!r}")

    # Positions

    def first(self, length: int) -> int:
        """The first position that the newest of `length` positions sees."""
        return 0 if self.window is None else max(length - self.window, 0)

    def seen(self, length: int) -> int:
        """How many it sees."""
        return length - self.first(length)

    def tile(self, length: int) -> int:
        """Where the tile of 32 positions starts that the first is in."""
        return self.first(length) // WARP_SIZE * WARP_SIZE

    @property
    def hidden(self) -> int:
        """The most positions that such a tile has before the first."""
        return 0 if self.window is None else WARP_SIZE - 1

    def device_first(self, k: KernelBuilder, length: Value) -> Value | int:
        """`first` in a register, or 0."""
        return 0 if self.window is None else k.max(length, self.window) - self.window

    def device_seen(self, k: KernelBuilder, length: Value) -> Value:
        """`seen` in a register."""
        return length if self.window is None else k.min(length, self.window)

    def device_tile(self, k: KernelBuilder, length: Value) -> Value | int:
        """`tile` in a register, or 0."""
        return 0 if self.window is None else self.device_first(k, length) // WARP_SIZE * WARP_SIZE

    # Scores

    def factor(self, head_dim: int) -> float:
        """Of the product of a query and a key."""
        return head_dim**-0.5 if self.scale is None else self.scale

    def of(self, k: KernelBuilder, product: Value, head_dim: int) -> Value:
        """The score of a product, but for ALiBi."""
        factor = self.factor(head_dim)
        if not self.softcap:
            return product * float(np.float32(factor))
        return capped(k, product * float(np.float32(2 * factor / self.softcap)), self.softcap, mathlib.exp)

    def of_heads(self, k: KernelBuilder, head_dim: int, heads: int, first: Value, count: int, length: Value) -> HeadScores:
        """The scores of a block's heads, `count` of `heads` from number `first` on; length: positions up to the query's own."""
        if not self.alibi:
            return HeadScores(self, head_dim)
        slopes = tuple(self.slope(k, first + number, heads) for number in range(count))
        return HeadScores(self, head_dim, slopes, length - 1)

    def slope(self, k: KernelBuilder, head: Value, heads: int, unit: float = 1.0) -> Value:
        """That of a head of `heads`, times `unit`: see `slopes`."""
        power = _power(heads)
        halves = head * 2 + 2
        if heads > power:
            halves = k.select(head < power, halves, (head - power) * 2 + 1)
        slope: Value = mathlib.exp(k, k.f32(halves) * float(np.float32(-self.alibi * log(2) / (2 * power))))
        return slope if unit == 1.0 else slope * unit

    def exact(self, products: NDArray[Any], head_dim: int, distances: NDArray[np.int64]) -> NDArray[np.float64]:
        """The scores of products, [heads, positions], in float64. distances: of the positions from the query's, [positions]."""
        scores = products * self.factor(head_dim)
        capped: NDArray[np.float64] = self.softcap * np.tanh(scores / self.softcap) if self.softcap else scores
        return capped - self._taken_off(len(products), distances) if self.alibi else capped

    def units(self, sizes: NDArray[Any], distances: NDArray[np.int64]) -> NDArray[np.float64] | float:
        """What cap and ALiBi add to the errors of scores, in units of 2^-24; sizes: of the products of absolute numbers,
        [heads, positions]. What a score was off by before, a cap makes no larger: its slope is at most 1. For the cap's own
        error see `capped`. A slope is off by 2.2 units for the exponential, 1.4 alibi for the two roundings of its argument,
        and 2 in another unit; its product with a distance by one more, and the difference by one of itself."""
        if not self.alibi:
            return 8 * self.softcap
        off: NDArray[np.float64] = (1.4 * self.alibi + 7) * self._taken_off(len(sizes), distances)
        return 8 * self.softcap + sizes + off

    def _taken_off(self, heads: int, distances: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.outer(slopes(heads, self.alibi), distances)


PLAIN_SCORES: Final = Scoring()
"""The product over the root of head_dim, of all positions."""


@dataclass(frozen=True)
class HeadScores:
    """The scores of a block's query heads. slopes: of these heads, if there is ALiBi; newest: the position of the query."""

    scoring: Scoring
    head_dim: int
    slopes: tuple[Value, ...] = ()
    newest: Value | None = None

    def of(self, k: KernelBuilder, product: Value) -> Value:
        """The score of a product, but for what its position takes off."""
        return self.scoring.of(k, product, self.head_dim)

    def at(self, k: KernelBuilder, score: Value, start: Value, place: Value, head: int = 0) -> Value:
        """What `of` gave for a head and the position `place` after `start`, less what ALiBi takes off; of positions after the
        newest it means nothing."""
        if self.newest is None:
            return score
        left: Value = k.fma(-self.slopes[head], k.f32(self.newest - start - place), score)
        return left


def slopes(heads: int, alibi: float) -> NDArray[np.float64]:
    """ALiBi's (Press et al. 2022, arXiv:2108.12409), f64[heads]: with n the largest power of two up to `heads`, for head h < n
    2^(-alibi (h + 1) / n), and for the others, between these, 2^(-alibi (h - n + 1/2) / n)."""
    power, head = _power(heads), np.arange(heads)
    exponents = np.where(head < power, head + 1.0, head - power + 0.5)
    found: NDArray[np.float64] = 2.0 ** (-alibi * exponents / power)
    return found


def plus(value: Value, first: Value | int) -> Value:
    """value + first, without an addition where that is the number 0."""
    moved: Value = value if isinstance(first, int) and first == 0 else value + first
    return moved


def less(value: Value, first: Value | int) -> Value:
    """value - first, likewise."""
    rest: Value = value if isinstance(first, int) and first == 0 else value - first
    return rest


def capped(k: KernelBuilder, doubled: Value, cap: float, exponential: Callable[[KernelBuilder, Value], Value]) -> Value:
    """cap * tanh(x) of 2 x, or of 2 x log2(e) where the exponential is that of base 2: cap - 2 cap e / (1 + e), e = e^-|2 x|,
    with the sign of x. NaN stays NaN. It has no branch.

    The error is at most 8 cap units of 2^-24, 2.4e-5 for a cap of 50: 2.2 for e, one each for 1 + e, its reciprocal, the
    product with e, the constants and the sum. tanh.approx.f32, within 2^-11, would be off by 0.024: a weight by 2 %."""
    small = exponential(k, -k.op("abs", doubled))
    share = small * mathlib.reciprocal_of_normal(k, small + 1.0)
    capped: Value = k.op("copysign", doubled, k.fma(share, -2.0 * cap, cap))
    return capped


def _power(heads: int) -> int:
    """The largest power of two up to so many."""
    return 1 << heads.bit_length() - 1


def _is_number(value: object) -> bool:
    """Whether it is a finite number that f32 has neither as 0 nor as infinity, or 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float32(value)) and (np.float32(value) != 0) == (value != 0))
