"""A quantised matrix in the blocks of a format that no file has (ptxgen/formats, RepackedFormat), made of those of a file once,
when weights are loaded. What a thread does is the format's business."""

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
from ptxgen.errors import ArgumentError
from ptxgen.formats import REPACKED, RepackedFormat, find
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import U8

THREADS = 256


@register(format=REPACKED.values())
@dataclass(frozen=True)
class Repack(KernelType):
    """w = the blocks of `native` in the kernel's format, row by row: the same weights to the last bit.

    native: u8[n, row_bytes of the format's native one]; w: u8[n, row_bytes], rows of k quantised values."""

    format: RepackedFormat = field(metadata=HIDDEN)
    k: int = field(kw_only=True)
    n: int = field(kw_only=True)

    family: ClassVar[str] = "repack"
    name_pattern: ClassVar[str] = "{format}_repack"

    def __post_init__(self) -> None:
        format = find(self.format)
        if not isinstance(format, RepackedFormat):
            raise ArgumentError(f"{format} is in files; formats that weights are repacked to: {', '.join(REPACKED)}")
        object.__setattr__(self, "format", format)
        require(self, "k", multiple=format.block)
        require(self, "n")

    @property
    def name(self) -> str:
        return self.name_pattern.format(format=self.format.id)

    @property
    def threads(self) -> int:
        """Threads that have something to do. Rows follow each other without a gap, so the matrix is one line of blocks."""
        return self.n * self.k // self.format.block * self.format.repack_threads

    def signature(self) -> Signature:
        return {
            "w": write(U8, self.n, self.format.row_bytes(self.k)),
            "native": read(U8, self.n, self.format.native.row_bytes(self.k)),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.threads // THREADS), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        format, thread = self.format, k.ctaid.x * THREADS + k.tid.x
        with k.when(thread < self.threads):
            number, inside = thread // format.repack_threads, thread % format.repack_threads
            native = advance(k.arg.native.at(0, 0), number, format.native_bytes)
            format.repack(k, native, advance(k.arg.w.at(0, 0), number, format.block_bytes), inside)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.uint8]]:
        return {"w": self.format.pack(arguments["native"])}

    def tolerance(self, **arguments: Any) -> Mapping[str, float]:
        """None: bits are moved."""
        return {"w": 0.0}

    def work(self) -> Work:
        """Counts one operation a byte that is written."""
        made = self.n * self.format.row_bytes(self.k)
        return Work(flops=made, bytes=made + self.n * self.format.native.row_bytes(self.k))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[Repack]:
        block = find(fixed["format"]).block
        yield cls(**fixed, k=3 * block, n=7)
        yield cls(**fixed, k=block, n=1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        native = rng.integers(0, 256, (self.n, self.format.native.row_bytes(self.k)), dtype=np.uint8)
        return {"w": np.full((self.n, self.format.row_bytes(self.k)), 0xFF, np.uint8), "native": native}
