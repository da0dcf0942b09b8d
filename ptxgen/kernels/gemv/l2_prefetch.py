"""L2 prefetch: a launch prefetches the weights that the next launch reads first. It does so when its own weights have arrived:
while it multiplies them, and before the next launch starts, DRAM is idle otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ptxgen.dsl.arguments import Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.formats import Format
from ptxgen.kernels.gemv.pipeline_layout import LINE
from ptxgen.types import U8

BORROWED: Final[Mapping[str, str]] = {"next_w": "w", "next_w2": "w2"}
"""The arguments: matrices of the next launch, by their names there."""


@dataclass(frozen=True)
class PrefetchedRows:
    """Of each matrix `count` rows, from the first on every `every`-th; of `height` rows of k weights."""

    count: int
    every: int
    height: int
    k: int
    format: Format

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.format.row_bytes(self.k)

    @property
    def lines(self) -> int:
        """Lines that are asked for of a row, from its first byte on: all but the last of a row that begins inside of one."""
        return -(-self.row_bytes // LINE)

    def signature(self) -> Signature:
        """The matrices, which nothing reads: next_w, next_w2: u8[height, row_bytes]."""
        return {name: read(U8, self.height, self.row_bytes, constant=True) for name in BORROWED}

    def write(self, k: KernelBuilder, blocks: int) -> None:
        """Write what all threads of so many blocks ask for together, a line each."""
        total, threads = self.count * self.lines, blocks * k.threads
        thread = k.mad(k.ctaid.x, k.threads, k.tid.x)
        for start in range(0, total, threads):
            number = thread + start if start else thread
            with k.when(number < total):
                row = number // self.lines
                line = number - row * self.lines
                for name in BORROWED:
                    first = getattr(k.arg, name).at(row * self.every, line * LINE)[0]
                    k.prefetch(first.address, space="global", level="L2")
