"""The bias of a linear layer, added to every row of a batch, and the scale of its matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.types import F32

THREADS = 256


@register
@dataclass(frozen=True)
class BiasAdd(KernelType):
    """x[i] += bias for each of m rows, in place. x: f32[m, n]; bias: f32[n].

    A row has the bits of residual_add with the bias as its delta.
    """

    family: ClassVar[str] = "activation"
    name = "batched_bias_broadcast_add"
    n: int
    m: int

    def __post_init__(self) -> None:
        require(self, "n")
        require(self, "m", high=MOST_ROWS)

    def signature(self) -> Signature:
        return {"x": update(F32, self.m, self.n), "bias": read(F32, self.n)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(-(-self.n // THREADS), self.m), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        with k.when(i < self.n):
            place = k.arg.x[k.ctaid.y, i]
            k.store(place, k.load(place) + k.load(k.arg.bias[i]))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"x": arguments["x"].astype(np.float64) + arguments["bias"].astype(np.float64)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """One rounding."""
        return {"x": np.abs(self.reference(**arguments)["x"]) * UNIT + 2.0**-149}

    def work(self) -> Work:
        return Work(flops=self.m * self.n, bytes=F32.bytes * (2 * self.m * self.n + self.n))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n, m in ((1536, 3), (896, 8), (1, 1), (257, 5)):
            yield cls(n=n, m=m)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "x": rng.standard_normal((self.m, self.n), np.float32),
            "bias": 10 * rng.standard_normal(self.n, np.float32),
        }


@register
@dataclass(frozen=True)
class MatrixScale(KernelType):
    """x[i] *= scale for each of m rows, in place. x: f32[m, n]; scale: f32[1], that of a matrix that has one."""

    family: ClassVar[str] = "activation"
    name = "batched_scalar_mul"
    n: int
    m: int

    def __post_init__(self) -> None:
        require(self, "n")
        require(self, "m", high=MOST_ROWS)

    def signature(self) -> Signature:
        return {"x": update(F32, self.m, self.n), "scale": read(F32, 1, constant=True)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(-(-self.n // THREADS), self.m), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        with k.when(i < self.n):
            place = k.arg.x[k.ctaid.y, i]
            k.store(place, k.load(place) * k.load(k.arg.scale[0]))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"x": arguments["x"].astype(np.float64) * float(arguments["scale"][0])}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """One rounding."""
        return {"x": np.abs(self.reference(**arguments)["x"]) * UNIT + 2.0**-149}

    def work(self) -> Work:
        return Work(flops=self.m * self.n, bytes=F32.bytes * (2 * self.m * self.n + 1))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n, m in ((1536, 1), (896, 8), (1, 1), (257, 5)):
            yield cls(n=n, m=m)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "x": rng.standard_normal((self.m, self.n), np.float32),
            "scale": rng.uniform(-2.0, 2.0, 1).astype(np.float32),
        }
