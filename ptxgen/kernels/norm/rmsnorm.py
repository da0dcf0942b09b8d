"""RMSNorm of rows: one block a row, which stays in registers between the two passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.dsl.arguments import Scalar, Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT, with_outlier
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import F32

THREADS = 256
LARGEST_ROW = 16384  # values; a thread holds 64 of them and their gammas in registers


@register
@dataclass(frozen=True)
class RmsNorm(KernelType):
    """y = gamma * x / sqrt(mean(x^2) + eps), one row a block.

    y, x: f32[1, hidden]; gamma: f32[hidden]; eps: f32 scalar, an argument so that no cached kernel can hold a wrong one.
    The squares are summed in f32, whose largest value is 3.4e38: from a root mean square of sqrt(3.4e38 / hidden) on (1.8e19 at
    hidden=1, 2.9e17 at 4096) the sum is infinite and the row becomes zeros.
    """

    family: ClassVar[str] = "norm"
    name = "rmsnorm"
    hidden: int

    def __post_init__(self) -> None:
        require(self, "hidden", high=LARGEST_ROW)

    @property
    def rows(self) -> int:
        """Rows that are normalised, each by itself and all with the same gamma."""
        return 1

    @property
    def width(self) -> int:
        """Values of one load: rows must start at multiples of its size."""
        return next(width for width in (4, 2, 1) if self.hidden % width == 0)

    @property
    def chunks(self) -> int:
        """Loads a thread."""
        return -(-self.hidden // (THREADS * self.width))

    def batched(self, m: int) -> tuple[KernelType, ...]:
        return (BatchedRmsNorm(self.hidden, m),) if type(self) is RmsNorm else ()

    def signature(self) -> Signature:
        return {
            "y": write(F32, self.rows, self.hidden),
            "x": read(F32, self.rows, self.hidden),
            "gamma": read(F32, self.hidden),
            "eps": Scalar(F32, low=0.0),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.rows, block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        x, y = k.arg.x.at(k.ctaid.x, 0), k.arg.y.at(k.ctaid.x, 0)
        total = k.f32(0.0)
        held: list[tuple[Value, Value, list[Value], list[Value]]] = []
        for chunk in range(self.chunks):
            start, inside = self.place(k, chunk)
            self._fetch_gamma(k, start)
            values = self.load_values(k, x, start)
            held.append((start, inside, values, self.load_values(k, k.arg.gamma, start)))
            self.add_squares(k, total, values, inside)
        scale = self._scale(k, total)
        for start, inside, values, gammas in held:
            scaled = self.scaled(values, scale, gammas)
            with k.when(inside):
                k.store(y[start], scaled if self.width > 1 else scaled[0])

    def place(self, k: KernelBuilder, chunk: int | Value, thread: Value | None = None) -> tuple[Value, Value]:
        """Where the values of a chunk start that a thread of a row has, and whether they are in the row. The idle threads of
        the last chunk get the last values of the row. thread: its number among THREADS, without one k.tid.x."""
        start = (k.tid.x if thread is None else thread) * self.width + chunk * (THREADS * self.width)
        inside = start < self.hidden
        return k.min(start, self.hidden - self.width), inside

    def load_values(self, k: KernelBuilder, array: Any, start: Value) -> list[Value]:
        """The thread's values of a chunk that starts there, of x or of gamma."""
        return list(k.load_vector(array[start], self.width)) if self.width > 1 else [k.load(array[start])]

    def _fetch_gamma(self, k: KernelBuilder, start: Value) -> None:
        """Gamma comes from far, because the weights of a model push it out of the cache from token to token, and the assembler
        loads it no sooner than it is needed."""
        k.prefetch(k.arg.gamma[start].address, space="global", level="L2")

    def add_squares(self, k: KernelBuilder, total: Value, values: list[Value], inside: Value) -> None:
        """Add the squares of a chunk's values, where these are in the row, to a variable: chunk after chunk."""
        for value in values:
            counted = k.select(inside, value, 0.0)
            total @= k.fma(counted, counted, total)

    def _scale(self, k: KernelBuilder, total: Value) -> Value:
        """What the row is multiplied by, from each thread's sum of squares. All threads must come here."""
        return self.inverse_root(k, k.block_sum(total))

    def inverse_root(self, k: KernelBuilder, total: Value) -> Value:
        """What the row is multiplied by, from its sum of squares."""
        power = self.hidden & (self.hidden - 1) == 0
        mean = total * (1 / self.hidden) if power else total / float(self.hidden)  # the same bits, without a division's branch
        return mathlib.rsqrt(k, mean + k.arg.eps)

    def scaled(self, values: list[Value], scale: Value, gammas: list[Value]) -> list[Value]:
        """The results: in this order of products."""
        return [value * scale * gamma for value, gamma in zip(values, gammas, strict=True)]

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        x, gamma = arguments["x"].astype(np.float64), arguments["gamma"].astype(np.float64)
        return {"y": rms_normalised(x, gamma, float(arguments["eps"]))}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {"y": rms_bound(self.reference(**arguments)["y"], chain=self.chunks * self.width, tree=10)}

    def work(self) -> Work:
        values = self.rows * self.hidden
        return Work(flops=4 * values, bytes=F32.bytes * (2 * values + self.hidden))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(hidden=576)
        for hidden in (1, 255, 257, 896, 1026, 3584, LARGEST_ROW):
            yield cls(hidden=hidden)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "y": np.zeros((self.rows, self.hidden), np.float32),
            "x": with_outlier(rng, self.rows, self.hidden),
            "gamma": rng.normal(1.0, 0.3, self.hidden).astype(np.float32),
            "eps": np.float32(1e-5),
        }


@register
@dataclass(frozen=True)
class BatchedRmsNorm(RmsNorm):
    """y = gamma * x / sqrt(mean(x^2) + eps) for each of m rows: rmsnorm, with the same bits in every row.

    y, x: f32[m, hidden]; gamma: f32[hidden]; eps: f32 scalar.
    """

    name = "batched_rmsnorm"
    m: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m")

    @property
    def rows(self) -> int:
        return self.m

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for hidden, m in ((4096, 3), (576, 8), (2048, 2), (257, 5), (1026, 1)):
            yield cls(hidden=hidden, m=m)


def rms_normalised(x: NDArray[np.float64], gamma: NDArray[np.float64], eps: float) -> NDArray[np.float64]:
    """RMSNorm over the last axis, in float64."""
    scaled: NDArray[np.float64] = gamma * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return scaled


def rms_bound(expected: NDArray[Any], *, chain: int, tree: int) -> NDArray[Any]:
    """Rounding bound of x * rsqrt(sum(x^2) / n + eps) * gamma in f32: that of `root_units`, and two products."""
    bound: NDArray[Any] = np.abs(expected) * (root_units(chain=chain, tree=tree) + 2) * UNIT + 2.0**-148
    return bound


def root_units(*, chain: int, tree: int) -> float:
    """Rounding bound of rsqrt(sum(x^2) / n + eps) in f32, in units of 2^-24 of it. The sum has no cancellation: each square
    meets at most `chain` fused additions and `tree` more, one unit each; the mean and eps add two; the root halves all of
    these; root and reciprocal add two. One unit more covers the terms of second order."""
    return (chain + tree + 2) / 2 + 2 + 1
