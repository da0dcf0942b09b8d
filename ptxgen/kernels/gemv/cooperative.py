"""GEMV by all warps of a block together, over one row or some at a time: every weight is decoded once for all rows of
activations, and the sums of the warps are added in shared memory. wide.py, mwv.py and batched.py say what they make of it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.dot import Dot, LaneDot
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.gemv.iteration import IterationSpace, when_below
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32

MOST_VECTORS = 8
"""Rows of activations that a block takes at once; a larger batch has more blocks."""


@dataclass(frozen=True)
class CooperativeGemv(GemvType):
    """y = W x by cooperative warps. y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]."""

    pass_values: ClassVar[int] = 32
    sums: ClassVar[int] = 2
    read_only: ClassVar[bool] = True
    """Whether weights are read by loads for what no launch writes meanwhile."""

    @property
    @abstractmethod
    def warps(self) -> int:
        """Warps of a block."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows of weights of a block, which share its activations."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Byte columns that a lane takes at once."""

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor's registers must hold: the assembler would hoist loads until they hold fewer."""
        return 1

    @property
    def vectors(self) -> int:
        """Rows of activations of a block."""
        return min(self.batch[0], MOST_VECTORS) if self.batch else 1

    @property
    def dot(self) -> Dot:
        """How the warps go along a row together."""
        return Dot(IterationSpace(self.format, self.k, self.warps * WARP_SIZE, self.width), self.pass_values, self.sums)

    @property
    def chain(self) -> int:
        return self.dot.chain + self.warps - 1

    def launch(self) -> LaunchConfig:
        blocks = -(-self.n // self.rows)
        grid = (blocks, -(-self.batch[0] // self.vectors)) if self.batch else blocks
        return LaunchConfig(grid=grid, block=self.warps * WARP_SIZE, resident=self.resident)

    def emit(self, k: KernelBuilder) -> None:
        lane = self.dot.space.lane(k)
        first = k.ctaid.x * self.rows
        weights = k.arg.w.read_only() if self.read_only else k.arg.w
        rows = [lane.in_row(weights.at(_inside(k, first, i, self.n, self.rows), 0)) for i in range(self.rows)]
        vectors = [lane.in_vector(self._vector(k, i)) for i in range(self.vectors)]
        lanes = LaneDot(k, self.dot, lane, rows, vectors).total()
        sums = [k.warp_sum(sum) for row in lanes for sum in row]
        if self.warps == 1:
            with k.when(k.lane == 0):
                for i, sum in enumerate(sums):
                    self._store(k, i, sum)
        else:
            self._add_warps(k, sums)

    def _vector(self, k: KernelBuilder, i: int) -> GlobalArray:
        """Row number i of the block's activations."""
        if not self.batch:
            x: GlobalArray = k.arg.x
        elif self.batch[0] <= self.vectors:
            x = k.arg.x.at(i, 0)
        else:
            x = k.arg.x.at(_inside(k, k.ctaid.y * self.vectors, i, self.batch[0], self.vectors), 0)
        return x

    def _add_warps(self, k: KernelBuilder, sums: list[Value]) -> None:
        """Add the warps' sums, the first warp's first. Sum number i is thread i's."""
        partial = k.shared(F32, self.warps, len(sums))
        with k.when(k.lane == 0):
            for i, sum in enumerate(sums):
                k.store(partial[k.warp, i], sum)
        k.barrier()
        with k.when(k.tid.x < len(sums)):
            parts = [k.load(partial[warp, k.tid.x]) for warp in range(self.warps)]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            self._store(k, k.tid.x, total)

    def _store(self, k: KernelBuilder, number: Index, sum: Value) -> None:
        """Store sum number `number` of the block, unless its row or its vector is past the end."""
        row, vector = (number // self.vectors, number % self.vectors) if self.vectors > 1 else (number, 0)
        row = k.ctaid.x * self.rows + row
        with when_below(k, row, self.n, self.rows):
            if not self.batch:
                k.store(k.arg.y[row], sum)
                return
            if self.batch[0] <= self.vectors:
                k.store(k.arg.y[vector, row], sum)
                return
            number = k.ctaid.y * self.vectors + vector
            with when_below(k, number, self.batch[0], self.vectors):
                k.store(k.arg.y[number, row], sum)


def _inside(k: KernelBuilder, first: Value, i: int, count: int, share: int) -> Value:
    """Number first + i, or the last of `count` if that is past the end, which can be where a share is not whole."""
    number = first + i if i else first
    return number if count % share == 0 else k.min(number, count - 1)
