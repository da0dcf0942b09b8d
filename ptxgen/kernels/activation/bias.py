"""A vector that is added to every row of a batch, the bias of a linear layer, or that every row is divided by, and the scale
of a matrix."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.types import F32

THREADS = 256


@dataclass(frozen=True)
class EachRow(KernelType):
    """x: f32[m, n], changed in place, and a vector f32[n], or f32[1] for all elements. A subclass names the vector and says
    what becomes of an element."""

    family: ClassVar[str] = "activation"
    vector: ClassVar[str]
    single: ClassVar[bool] = False
    n: int
    m: int

    def __post_init__(self) -> None:
        require(self, "n")
        require(self, "m", high=MOST_ROWS)

    @abstractmethod
    def compute(self, x: Any, of_vector: Any) -> Any:
        """An element, in registers or in NumPy; one rounding."""

    def signature(self) -> Signature:
        vector = read(F32, 1, constant=True) if self.single else read(F32, self.n)
        return {"x": update(F32, self.m, self.n), self.vector: vector}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(-(-self.n // THREADS), self.m), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        with k.when(i < self.n):
            place = k.arg.x[k.ctaid.y, i]
            x = k.load(place)
            made: Value = self.compute(x, k.load(getattr(k.arg, self.vector)[0 if self.single else i]))
            k.store(place, made)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"x": self.compute(arguments["x"].astype(np.float64), arguments[self.vector].astype(np.float64))}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """One rounding."""
        return {"x": np.abs(self.reference(**arguments)["x"]) * UNIT + 2.0**-149}

    def work(self) -> Work:
        return Work(flops=self.m * self.n, bytes=F32.bytes * (2 * self.m * self.n + (1 if self.single else self.n)))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n, m in ((1536, 3), (896, 8), (1, 1), (257, 5)):
            yield cls(n=n, m=m)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "x": rng.standard_normal((self.m, self.n), np.float32),
            self.vector: 10 * rng.standard_normal(1 if self.single else self.n, np.float32),
        }


@register
@dataclass(frozen=True)
class BiasAdd(EachRow):
    """x[i] += bias for each of m rows, in place. x: f32[m, n]; bias: f32[n].

    A row has the bits of residual_add with the bias as its delta.
    """

    name = "batched_bias_broadcast_add"
    vector = "bias"

    def compute(self, x: Any, of_vector: Any) -> Any:
        return x + of_vector


@register
@dataclass(frozen=True)
class ScaleDivide(EachRow):
    """x[i] /= scales for each of m rows, in place. x: f32[m, n]; scales: f32[n]."""

    name = "batched_scale_broadcast_div"
    vector = "scales"

    def compute(self, x: Any, of_vector: Any) -> Any:
        return x / of_vector


@register
@dataclass(frozen=True)
class MatrixScale(EachRow):
    """x[i] *= scale for each of m rows, in place. x: f32[m, n]; scale: f32[1], that of a matrix that has one."""

    name = "batched_scalar_mul"
    vector = "scale"
    single = True

    def compute(self, x: Any, of_vector: Any) -> Any:
        return x * of_vector
