"""Queries that grow with their position, in place, so that attention stays sharp over contexts longer than those of training
(Llama 4 and Ministral 3 do it)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require, require_factor
from ptxgen.types import F32, U32

THREADS: Final = 256
LOGARITHM: Final = 4 * UNIT
"""The error of lg2.approx: absolute up to 2, relative beyond."""


@dataclass(frozen=True)
class Temperature:
    """Queries at position p are multiplied by 1 + scale * ln(floor(p / length) + 1). scale: above 0; length: positions."""

    scale: float
    length: int


@register
@dataclass(frozen=True)
class QueryTemperature(KernelType):
    """x[r] *= 1 + scale * ln(floor(positions[r] / length) + 1) for each of m rows, in place.

    x: f32[m, n]; positions: u32[m]; scale: above 0, length: 1 or more; both are part of the text.
    """

    family: ClassVar[str] = "attention"
    name = "query_temperature"
    n: int
    m: int
    scale: float
    length: int

    def __post_init__(self) -> None:
        require(self, "n", "length")
        require(self, "m", high=MOST_ROWS)
        require_factor(self, "scale")

    def signature(self) -> Signature:
        return {"x": update(F32, self.m, self.n), "positions": read(U32, self.m, align=4)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(-(-self.n // THREADS), self.m), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        row, i = k.ctaid.y, k.ctaid.x * THREADS + k.tid.x
        lengths = k.convert(k.load(k.arg.positions[row]) // self.length, F32) + 1.0
        factor = k.fma(k.lg2_approx(lengths), self.scale * log(2), k.f32(1.0))
        with k.when(i < self.n):
            place = k.arg.x[row, i]
            k.store(place, k.load(place) * factor)

    def _lengths(self, arguments: Mapping[str, Any]) -> NDArray[np.float64]:
        """f64[m, 1]: what the logarithm is of."""
        lengths: NDArray[np.float64] = (arguments["positions"] // self.length + 1.0)[:, None]
        return lengths

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"x": arguments["x"].astype(np.float64) * (1 + self.scale * np.log(self._lengths(arguments)))}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """Of the result, units of the factor and of the product, and one for the second order; of the second term of the factor
        the error of the logarithm, a unit of the constant, and one of a position that f32 does not hold."""
        x = np.abs(arguments["x"].astype(np.float64))
        logarithm = np.log2(self._lengths(arguments))
        term = self.scale * log(2) * (LOGARITHM * np.maximum(logarithm, 1.0) + UNIT * logarithm + 2 * UNIT)
        return {"x": np.abs(self.reference(**arguments)["x"]) * 3 * UNIT + x * term + 2.0**-149}

    def work(self) -> Work:
        return Work(flops=self.m * self.n, bytes=F32.bytes * 2 * self.m * self.n + U32.bytes * self.m)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(n=257, m=3, scale=0.1, length=4)
        yield cls(n=64, m=1, scale=2.0, length=1)
        yield cls(n=96, m=5, scale=0.1, length=16384)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Positions on both sides of a length, and one that no sequence has, of a row that is idle."""
        near = self.length * rng.integers(0, 9, self.m) + rng.integers(-1, 2, self.m)
        positions = np.maximum(near, 0).astype(np.uint32)
        positions[-1] = np.iinfo(np.uint32).max if self.m > 1 else positions[-1]
        return {"x": rng.standard_normal((self.m, self.n), np.float32), "positions": positions}
