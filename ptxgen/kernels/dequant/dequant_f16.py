"""A quantised matrix as f16, for the matrix products of a prompt: a thread decodes the columns of one group of a block that one
load brings, as many as the format lets side by side, so that it stores them in one piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import Index
from ptxgen.formats import FORMATS, Format, find
from ptxgen.formats.format import LaneAddress
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import F16, U8

THREADS = 256


@register(format=FORMATS.values())
@dataclass(frozen=True)
class DequantF16(KernelType):
    """y = W as f16, row by row. y: f16[n, k]; w: u8[n, row_bytes], rows of k quantised values.

    Each weight is decoded to the very f32 of gguf-py's dequantize and then rounded to nearest even, so one beyond 65519 in
    size becomes infinite.
    """

    format: Format = field(metadata=HIDDEN)
    k: int = field(kw_only=True)  # by name: matrices are (n, k) elsewhere
    n: int = field(kw_only=True)

    family: ClassVar[str] = "dequant"

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", find(self.format))
        require(self, "k", multiple=self.format.block)
        require(self, "n")

    @property
    def name(self) -> str:
        return f"{self.format.id}_dequant_f16"

    @property
    def width(self) -> int:
        """Columns a thread."""
        return max(width for width in self.format.widths if width <= self.format.columns)

    @property
    def block_threads(self) -> int:
        """Threads that share a block of the format."""
        return self.format.groups * self.format.columns // self.width

    @property
    def threads(self) -> int:
        """Threads that have something to do. Rows follow each other without a gap, so the matrix is one line of blocks."""
        return self.n * self.k // self.format.block * self.block_threads

    def signature(self) -> Signature:
        return {"y": write(F16, self.n, self.k), "w": read(U8, self.n, self.format.row_bytes(self.k))}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.threads // THREADS), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        format, width = self.format, self.width
        thread = k.ctaid.x * THREADS + k.tid.x
        with k.when(thread < self.threads):
            inside = thread % self.block_threads if self.block_threads > 1 else 0
            per_group = format.columns // width
            group: Index = inside // per_group if format.groups > 1 else 0
            column: Index = inside % per_group * width if per_group > 1 else 0
            number = thread // self.block_threads
            block = advance(k.arg.w.at(0, 0), number, format.block_bytes)
            decode = format.reader(k, LaneAddress(block, advance(block, column, 1), column), width)
            y = advance(k.arg.y.at(0, 0), number, format.block)
            y = advance(advance(y, group, format.columns * format.depth), column, 1)
            weights = {weight.offset: k.f16(weight.value) for weight in decode(group)}
            for start in range(0, format.columns * format.depth, format.columns):
                halves = [weights[start + i] for i in range(width)]
                k.store(y[start], halves if width > 1 else halves[0])

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.float16]]:
        with np.errstate(over="ignore"):
            return {"y": self.format.dequantize(arguments["w"]).astype(np.float16)}

    def tolerance(self, **arguments: Any) -> Mapping[str, float]:
        """None: one rounding, the same as NumPy's."""
        return {"y": 0.0}

    def work(self) -> Work:
        """Counts one operation a value, the conversion."""
        return Work(flops=self.n * self.k, bytes=self.n * (self.format.row_bytes(self.k) + F16.bytes * self.k))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[DequantF16]:
        format = find(fixed["format"])
        if not format.common:
            yield cls(**fixed, k=2 * format.block, n=3)
            return
        for k, n in ((2048, 3), (3 * format.block, 7), (format.block, 1)):
            yield cls(**fixed, k=k, n=n)
        if 576 % format.block == 0:
            yield cls(**fixed, k=576, n=5)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"y": np.full((self.n, self.k), np.nan, np.float16), "w": self.format.random_blocks(rng, self.n, self.k)}
