"""Constants of a model that multiply or bound activations and logits, in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.activation.element import Elementwise
from ptxgen.kernels.registry import GIVEN, register
from ptxgen.kernels.shape import require_factor


@register(m=[None, GIVEN])
@dataclass(frozen=True)
class Scale(Elementwise):
    """x *= scale, in place. x: f32[n] or f32[m, n]; scale: above 0; part of the text."""

    operation = "scale"
    result = "x"
    sources = ("x",)
    flops = 1
    scale: float = field(kw_only=True)
    m: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_factor(self, "scale")

    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        return values[0] * self.scale

    def exact(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[0] * self.scale

    def bound(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of the scale and of the product."""
        bound: NDArray[np.float64] = np.abs(self.exact(*values)) * (2 * UNIT + UNIT**2)
        return bound

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(257, scale=0.0625)
        yield cls(37, m=3, scale=1 / 3)


@register(m=[None, GIVEN])
@dataclass(frozen=True)
class AddScaled(Elementwise):
    """x += scale * delta, in place, rounded once. x, delta: f32[n] or f32[m, n]; scale: above 0; part of the text."""

    operation = "scaled_residual_add"
    result = "x"
    sources = ("x", "delta")
    flops = 2
    scale: float = field(kw_only=True)
    m: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_factor(self, "scale")

    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        x, delta = values
        return k.fma(delta, self.scale, x)

    def exact(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        x, delta = values
        return x + self.scale * delta

    def bound(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of the sum, and of the scale."""
        _, delta = values
        return np.abs(self.exact(*values)) * UNIT + np.abs(self.scale * delta) * (UNIT + UNIT**2)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(257, scale=0.22)
        yield cls(37, m=3, scale=3.0)


@register(m=[None, GIVEN])
@dataclass(frozen=True)
class Clamp(Elementwise):
    """x = the nearest number from -limit to limit, in place. x: f32[n] or f32[m, n]; limit: above 0; part of the text."""

    operation = "clamp"
    result = "x"
    sources = ("x",)
    flops = 2
    limit: float = field(kw_only=True)
    m: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_factor(self, "limit")

    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        return k.min(k.max(values[0], -self.limit), self.limit)

    def exact(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip(values[0], -self.limit, self.limit)

    def bound(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of the limit; what lies within it is exact, but where the limit is rounded to less."""
        bound: NDArray[np.float64] = np.where(np.abs(values[0]) >= self.limit * (1 - UNIT), self.limit * UNIT, 0.0)
        return bound

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(257, limit=0.5)
        yield cls(37, m=3, limit=8.1)


@register(m=[None, GIVEN])
@dataclass(frozen=True)
class Softcap(Elementwise):
    """x = cap * tanh(scale * x / cap), in place: logits that stay within cap. x: f32[n] or f32[m, n]; cap, scale: above 0; part
    of the text."""

    operation = "softcap"
    result = "x"
    sources = ("x",)
    flops = 8
    cap: float = field(kw_only=True)
    scale: float = field(default=1.0, kw_only=True)
    m: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_factor(self, "cap", "scale")

    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        return mathlib.tanh(k, values[0] * (self.scale / self.cap)) * self.cap

    def exact(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        bounded: NDArray[np.float64] = self.cap * np.tanh(values[0] * (self.scale / self.cap))
        return bounded

    def bound(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """In units of the result: two of the argument's constant and product, which tanh never makes more; four of tanh; two of
        cap and its product; one more for the second order. A subnormal argument is off by less than the last term."""
        return np.asarray(np.abs(self.exact(*values)) * 9 * UNIT + self.cap * 2.0**-149, np.float64)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(257, cap=30.0)
        yield cls(37, m=3, cap=50.0, scale=0.0625)
