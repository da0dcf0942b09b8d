"""Kernels that compute each element from the elements at the same place: activations, sums, products. One thread an element."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.dsl.arguments import Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.registry import GIVEN, register
from ptxgen.kernels.shape import require
from ptxgen.types import F32

THREADS = 256
# Below this exp(-x) overflows in f32 and x * sigmoid(x) becomes zero; the true value there is at most 3e-37.
SILU_LOST = 3e-37


@dataclass(frozen=True)
class Elementwise(KernelType):
    """`result[i]` from `sources[j][i]` for i < n, all f32[n], or f32[m, n]. `result` may be one of the sources: then it is
    changed in place.

    A subclass names the arrays and gives `compute`, its float64 twin `exact` and the rounding bound of the two."""

    family: ClassVar[str] = "activation"
    operation: ClassVar[str]
    """The name without m."""
    result: ClassVar[str]
    sources: ClassVar[tuple[str, ...]]
    flops: ClassVar[int]  # an element; an exponential or a division counts as one
    n: int

    def __post_init__(self) -> None:
        require(self, "n", *(["m"] if self.m is not None else []))

    @property
    def m(self) -> int | None:
        """The rows of every array, None where arrays have no dimension for them. A subclass that has rows makes it a field."""
        return None

    @property
    def name(self) -> str:
        return self.operation if self.m is None else f"batched_{self.operation}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of every array."""
        return (self.n,) if self.m is None else (self.m, self.n)

    @property
    def size(self) -> int:
        """Elements of an array."""
        return prod(self.shape)

    @abstractmethod
    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        """Write what makes an element of `result` from those of `sources`, in their order."""

    @abstractmethod
    def exact(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """What `compute` computes, in float64."""

    def bound(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The largest rounding error of `compute`: of one operation, unless a subclass has more."""
        return np.abs(self.exact(*values)) * UNIT

    def signature(self) -> Signature:
        inputs: Signature = {name: read(F32, *self.shape) for name in self.sources}
        if self.result in inputs:
            return {**inputs, self.result: update(F32, *self.shape)}
        return {self.result: write(F32, *self.shape), **inputs}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.size // THREADS), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        with k.when(i < self.size):
            values = [k.load(_flat(k, name)[i]) for name in self.sources]
            k.store(_flat(k, self.result)[i], self.compute(k, *values))

    def _doubles(self, arguments: Mapping[str, Any]) -> list[NDArray[np.float64]]:
        return [arguments[name].astype(np.float64) for name in self.sources]

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {self.result: self.exact(*self._doubles(arguments))}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {self.result: self.bound(*self._doubles(arguments)) + 2.0**-148}

    def work(self) -> Work:
        return Work(flops=self.flops * self.size, bytes=F32.bytes * self.size * (len(self.sources) + 1))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n in (1536, 1, 255, 4097):
            yield cls(n=n)
        if any(one.name == "m" for one in fields(cls)):
            for shape in ({"n": 1536, "m": 3}, {"n": 1, "m": 1}, {"n": 255, "m": 2}, {"n": 37, "m": 7}):
                yield cls(**shape)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Values of every size that an activation has, the far tails included."""
        return {
            name: (rng.normal(0.0, 1.0, self.shape) * 10.0 ** rng.uniform(-3, 2, self.shape)).astype(np.float32)
            for name in dict.fromkeys((self.result, *self.sources))
        }


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


@register(m=[None, GIVEN])
@dataclass(frozen=True)
class Silu(Elementwise):
    """y = x * sigmoid(x). y, x: f32[n] or f32[m, n]."""

    operation = "silu"
    result = "y"
    sources = ("x",)
    flops = 4
    m: int | None = field(default=None, kw_only=True)

    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        return mathlib.silu(k, values[0])

    def exact(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        return times_sigmoid(values[0], values[0])

    def bound(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The exponential is off by 2 units at most, the sum adds one, the division one; one more for the second order."""
        return np.abs(self.exact(*values)) * 5 * UNIT + SILU_LOST


@register(m=[None, GIVEN])
@dataclass(frozen=True)
class Gelu(Elementwise):
    """y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as GGML defines it. y, x: f32[n] or f32[m, n]."""

    operation = "gelu"
    result = "y"
    sources = ("x",)
    flops = 10
    m: int | None = field(default=None, kw_only=True)

    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        return mathlib.gelu(k, values[0])

    def exact(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """x / (1 + e^-2u), the same function; the form with tanh cancels for negative x even in float64."""
        x = values[0]
        return times_sigmoid(x, 2.0 * np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))

    def bound(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of x / (1 + e^w): w is off by 5 units, of its two constants and three operations; the exponential by 2 units of its
        own; both count as far as e^w does in the sum, which adds one as the division does; one more for the second order."""
        w = np.minimum(2.0 * np.sqrt(2.0 / np.pi) * np.abs(values[0] + 0.044715 * values[0] ** 3), 200.0)
        share = 1.0 / (1.0 + np.exp(np.copysign(w, values[0])))
        bound: NDArray[np.float64] = np.abs(self.exact(*values)) * (share * (5 * w + 2) + 3) * UNIT + SILU_LOST
        return bound


def _flat(k: KernelBuilder, name: str) -> GlobalArray:
    """The argument as an array of one dimension."""
    array: GlobalArray = getattr(k.arg, name)
    return array.at(*[0] * len(array.shape))


def times_sigmoid(x: NDArray[np.float64], gate: NDArray[np.float64]) -> NDArray[np.float64]:
    """x * sigmoid(gate)."""
    with np.errstate(over="ignore"):  # an infinite e^-gate gives the right zero
        result: NDArray[np.float64] = x / (1.0 + np.exp(-gate))
    return result
