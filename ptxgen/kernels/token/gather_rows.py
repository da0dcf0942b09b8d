"""Copies of chosen rows: of the activations of a step, those whose logits are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.types import F32, U32

THREADS = 256


@register
@dataclass(frozen=True)
class GatherRows(KernelType):
    """y[i] = x[index[i]] for m rows of n; a row whose index is `rows` or more becomes zeros, and nothing is read for it.

    y: f32[m, n]; x: f32[rows, n]; index: u32[m].
    """

    family: ClassVar[str] = "token"
    name = "gather_rows"
    n: int
    m: int
    rows: int

    def __post_init__(self) -> None:
        require(self, "n", "rows")
        require(self, "m", high=MOST_ROWS)

    @property
    def width(self) -> int:
        """Values of one load: rows must start at multiples of its size."""
        return next(width for width in (4, 2, 1) if self.n % width == 0)

    def signature(self) -> Signature:
        return {
            "y": write(F32, self.m, self.n),
            "x": read(F32, self.rows, self.n, partial=True),
            "index": read(U32, self.m, align=4),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(-(-self.n // (THREADS * self.width)), self.m), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        row = k.load(k.arg.index[k.ctaid.y])
        start = (k.ctaid.x * THREADS + k.tid.x) * self.width
        with k.when(start < self.n):
            values = [k.f32(0.0) for _ in range(self.width)]
            with k.when(row < self.rows):
                place = k.arg.x[row, start]
                loaded = k.load_vector(place, self.width) if self.width > 1 else [k.load(place)]
                for value, found in zip(values, loaded, strict=True):
                    k.assign(value, found)
            k.store(k.arg.y[k.ctaid.y, start], values if self.width > 1 else values[0])

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        x, index = arguments["x"], arguments["index"]
        inside = index < self.rows
        return {"y": np.where(inside[:, None], x[np.where(inside, index, 0)], np.float32(0.0))}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """None: values are copied."""
        return {"y": 0.0}

    def work(self) -> Work:
        return Work(flops=0, bytes=self.m * (2 * F32.bytes * self.n + U32.bytes))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n, m, rows in ((576, 5, 3), (257, 2, 7)):
            yield cls(n=n, m=m, rows=rows)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Indices of rows, and of one row too many."""
        return {
            "y": np.zeros((self.m, self.n), np.float32),
            "x": rng.standard_normal((self.rows, self.n), np.float32),
            "index": rng.integers(self.rows + 1, size=self.m, dtype=np.uint32),
        }
