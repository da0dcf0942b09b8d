"""Activation functions: of one f32, as a kernel writes them, as float64 has them, and how far the two may be apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT

Float64 = NDArray[np.float64]

# Below this exp(-x) overflows in f32 and x * sigmoid(x) becomes zero; the true value there is at most 3e-37.
SILU_LOST = 3e-37


@dataclass(frozen=True)
class Activation:
    """A function of one f32."""

    flops: int
    """Operations a value; an exponential or a division counts as one."""
    of_each: Callable[[KernelBuilder, Sequence[Value]], list[Value]]
    """Write it for several values, without a branch."""
    exact: Callable[[Float64], Float64]
    """The same in float64."""
    bound: Callable[[Float64], Float64]
    """How far `of_each` may be from `exact` of the same value, but for what is rounded as a subnormal number."""


def times_sigmoid(x: Float64, gate: Float64) -> Float64:
    """x * sigmoid(gate)."""
    with np.errstate(over="ignore"):  # an infinite e^-gate gives the right zero
        result: Float64 = x / (1.0 + np.exp(-gate))
    return result


def _sigmoid(x: Float64) -> Float64:
    return times_sigmoid(np.ones_like(x), x)


def _sigmoid_bound(x: Float64) -> Float64:
    """The exponential is off by 2 units at most, the sum adds one, the division one; one more for the second order."""
    bound: Float64 = _sigmoid(x) * 5 * UNIT + SILU_LOST
    return bound


def _silu(x: Float64) -> Float64:
    return times_sigmoid(x, x)


def _silu_bound(x: Float64) -> Float64:
    """The exponential is off by 2 units at most, the sum adds one, the division one; one more for the second order."""
    bound: Float64 = np.abs(_silu(x)) * 5 * UNIT + SILU_LOST
    return bound


def _gelu(x: Float64) -> Float64:
    """x / (1 + e^-2u), the same function; the form with tanh cancels for negative x even in float64."""
    return times_sigmoid(x, 2.0 * np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))


def _gelu_bound(x: Float64) -> Float64:
    """Of x / (1 + e^w): w is off by 5 units, of its two constants and three operations; the exponential by 2 units of its
    own; both count as far as e^w does in the sum, which adds one as the division does; one more for the second order."""
    w = np.minimum(2.0 * np.sqrt(2.0 / np.pi) * np.abs(x + 0.044715 * x**3), 200.0)
    share = 1.0 / (1.0 + np.exp(np.copysign(w, x)))
    bound: Float64 = np.abs(_gelu(x)) * (share * (5 * w + 2) + 3) * UNIT + SILU_LOST
    return bound


def _relu_of_each(k: KernelBuilder, xs: Sequence[Value]) -> list[Value]:
    """By a comparison, because max would make 0 of NaN."""
    return [k.select(x < 0.0, 0.0, x) for x in xs]


def _relu(x: Float64) -> Float64:
    return np.maximum(x, 0.0)


def _squared_relu_of_each(k: KernelBuilder, xs: Sequence[Value]) -> list[Value]:
    return [x * x for x in _relu_of_each(k, xs)]


def _squared_relu(x: Float64) -> Float64:
    return np.maximum(x, 0.0) ** 2


def xielu(alpha_n: float, alpha_p: float, beta: float, margin: float) -> Activation:
    """Of x above 0 alpha_p x^2 + beta x, else alpha_n (e^min(x, -margin) - 1 - x) + beta x, as GGML defines it."""

    def of_each(k: KernelBuilder, xs: Sequence[Value]) -> list[Value]:
        found = []
        for x in xs:
            half = mathlib.tanh(k, k.op("min", x, -margin) * 0.5)  # e^y - 1 = 2 t / (1 - t), which does not cancel
            below = k.fma((half + half) / (1.0 - half) - x, alpha_n, x * beta)
            found.append(k.select(x > 0.0, k.fma(x, alpha_p, beta) * x, below))
        return found

    def falling(x: Float64) -> Float64:
        grown: Float64 = np.expm1(np.minimum(x, -margin))
        return grown

    def exact(x: Float64) -> Float64:
        below, above = (falling(x) - x) * alpha_n + beta * x, (alpha_p * x + beta) * x
        return np.where(x > 0, above, below)

    def bound(x: Float64) -> Float64:
        """Below 0: tanh is off by 4 units, which 2 t / (1 - t) never makes more, its sum and division add one each, and margin
        one; the difference, the constants, the products and the sum add one each. Above: the constants, the sum and the
        product."""
        grown = falling(x)
        sum_of_sizes = abs(alpha_n) * (7 * np.abs(grown) + 2 * np.abs(grown - x)) + 2 * np.abs(beta * x)
        below = sum_of_sizes + np.abs(exact(x))
        above = 4 * (np.abs(alpha_p * x) + abs(beta)) * np.abs(x)
        return np.where(x > 0, above, below) * (UNIT * (1 + 8 * UNIT))

    return Activation(14, of_each, exact, bound)


SILU: Final = Activation(4, mathlib.silu_of_each, _silu, _silu_bound)
"""x * sigmoid(x)."""

SIGMOID: Final = Activation(3, mathlib.sigmoid_of_each, _sigmoid, _sigmoid_bound)
"""1 / (1 + e^-x)."""

GELU: Final = Activation(10, mathlib.gelu_of_each, _gelu, _gelu_bound)
"""x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as GGML defines it."""

RELU: Final = Activation(1, _relu_of_each, _relu, np.zeros_like)
"""max(x, 0)."""

SQUARED_RELU: Final = Activation(2, _squared_relu_of_each, _squared_relu, lambda x: _squared_relu(x) * UNIT)
"""max(x, 0)^2."""


@dataclass(frozen=True)
class Gate:
    """How a gated product activates its gate. unit: the name of the whole, as in fused_swiglu; steepest: no slope of the
    function is more than that."""

    unit: str
    function: Activation
    steepest: float


GATES: Final[Mapping[str, Gate]] = {
    "silu": Gate("swiglu", SILU, 1.1),  # 1.0999
    "gelu": Gate("geglu", GELU, 1.13),  # 1.1290
    "relu": Gate("reglu", RELU, 1.0),
    "sigmoid": Gate("glu", SIGMOID, 0.25),
}
"""By the name of the function."""
