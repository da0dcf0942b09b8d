"""Sums, products and activations: each element from the elements at the same place."""

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
from ptxgen.kernels.activation.activated import Activated
from ptxgen.kernels.activation.element import Elementwise
from ptxgen.kernels.activation.functions import GELU, SILU, SQUARED_RELU, Activation, xielu
from ptxgen.kernels.registry import GIVEN, register
from ptxgen.kernels.shape import require_factor


@register(m=[None, GIVEN])
@dataclass(frozen=True)
class AddInPlace(Elementwise):
    """x += delta: the residual stream, or a bias. x, delta: f32[n] or f32[m, n]."""

    operation = "residual_add"
    result = "x"
    sources = ("x", "delta")
    flops = 1
    m: int | None = field(default=None, kw_only=True)

    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        return values[0] + values[1]

    def exact(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[0] + values[1]


@register(m=[None, GIVEN])
@dataclass(frozen=True)
class ElementwiseMul(Elementwise):
    """y = a * b. y, a, b: f32[n] or f32[m, n]."""

    operation = "elementwise_mul"
    result = "y"
    sources = ("a", "b")
    flops = 1
    m: int | None = field(default=None, kw_only=True)

    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        return values[0] * values[1]

    def exact(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[0] * values[1]


@register(digits=[None], m=[None, GIVEN], parts=[None], lane_run=[None])
@dataclass(frozen=True)
class Silu(Activated):
    """y = x * sigmoid(x). y, x: f32[n] or f32[m, n]."""

    operation = "silu"
    function = SILU


@register(digits=[None], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(digits=[GIVEN], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(digits=[None], m=[GIVEN], parts=[GIVEN], lane_run=[GIVEN])
@dataclass(frozen=True)
class Gelu(Activated):
    """y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as GGML defines it. y, x: f32[n] or f32[m, n].

    The forms are those of Activated."""

    operation = "gelu"
    function = GELU

    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        """By a division, which is shorter where nothing is shuffled after it."""
        return mathlib.gelu(k, values[0])

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield from super().cases()
        yield from cls.form_cases()


@register(digits=[None], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(digits=[GIVEN], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(digits=[None], m=[GIVEN], parts=[GIVEN], lane_run=[GIVEN])
@dataclass(frozen=True)
class SquaredRelu(Activated):
    """y = max(x, 0)^2. y, x: f32[n] or f32[m, n]. The forms are those of Activated."""

    operation = "relu2"
    function = SQUARED_RELU

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(255)
        yield cls(37, m=7)
        yield from cls.form_cases()


@register(digits=[None], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(digits=[GIVEN], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(digits=[None], m=[GIVEN], parts=[GIVEN], lane_run=[GIVEN])
@dataclass(frozen=True)
class Xielu(Activated):
    """y = alpha_p x^2 + beta x of x above 0, else alpha_n (e^min(x, -margin) - 1 - x) + beta x. y, x: f32[n] or f32[m, n]; the
    numbers: above 0; part of the text. The forms are those of Activated."""

    operation = "xielu"
    alpha_n: float = field(kw_only=True)
    alpha_p: float = field(kw_only=True)
    beta: float = field(kw_only=True)
    margin: float = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_factor(self, "alpha_n", "alpha_p", "beta", "margin")

    @property
    def function(self) -> Activation:
        """Of these numbers."""
        return xielu(self.alpha_n, self.alpha_p, self.beta, self.margin)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        numbers: Any = {"alpha_n": 1.42, "alpha_p": 1.1, "beta": 0.5, "margin": 1e-6}
        yield cls(255, **numbers)
        yield cls(37, m=7, **numbers)
        yield from cls.form_cases(**numbers)
