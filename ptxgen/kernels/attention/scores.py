"""Which positions a query sees, and what becomes of the product of a query and a key: window, factor, soft cap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
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

Score = Callable[[KernelBuilder, Value], Value]
"""Makes a score of the product of a query and a key."""


@dataclass(frozen=True)
class Scoring(KernelPart):
    """window: a query at position p sees the keys at p - window + 1 .. p; None: at 0 .. p. scale: the factor of q k; None: 1 /
    sqrt(head_dim). softcap: a score s becomes softcap * tanh(s / softcap); 0: it stays."""

    window: int | None = field(default=None, metadata=IF_CHANGED)
    softcap: float = field(default=0.0, metadata=IF_CHANGED)
    scale: float | None = field(default=None, metadata=IF_CHANGED)

    def require(self, kernel: KernelType) -> None:
        """Raise ArgumentError unless the values are in range."""
        if self.window is not None and not (is_whole(self.window) and 1 <= self.window < 1 << 31):
            raise ShapeError(kernel.name, "window", self.window, "an integer, 1 or more, or None")
        if not _is_number(self.softcap) or self.softcap < 0:
            raise ArgumentError(f"{kernel.name}: softcap must be 0 (off) or a positive number, got {self.softcap!r}")
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
        """The score of a product."""
        factor = self.factor(head_dim)
        if not self.softcap:
            return product * float(np.float32(factor))
        return capped(k, product * float(np.float32(2 * factor / self.softcap)), self.softcap, mathlib.exp)

    def exact(self, products: NDArray[Any], head_dim: int) -> NDArray[np.float64]:
        """The scores of products, in float64."""
        scores = products * self.factor(head_dim)
        capped: NDArray[np.float64] = self.softcap * np.tanh(scores / self.softcap) if self.softcap else scores
        return capped

    @property
    def cap_units(self) -> float:
        """What the cap adds to the error of a score, in units of 2^-24: see `capped`. What the score was off by before, a cap
        makes no larger: its slope is at most 1."""
        return 8 * self.softcap


PLAIN_SCORES: Final = Scoring()
"""The product over the root of head_dim, of all positions."""


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


def _is_number(value: object) -> bool:
    """Whether it is a finite number that f32 has neither as 0 nor as infinity, or 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float32(value)) and (np.float32(value) != 0) == (value != 0))
