"""What the f32 strategies of one warp a row have in common: geometry, and the sum over the warp."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray, SharedPart
from ptxgen.kernels.gemv.dot import Dot, LaneDot
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.target import WARP_SIZE

ROWS = 4
"""A multiprocessor holds fewer blocks than warps, so blocks of one warp would leave half of it empty."""


@dataclass(frozen=True)
class WarpRowGemv(GemvType):
    """y = W x, one warp a row. y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]."""

    lane_dot: ClassVar[type[LaneDot[Any]]] = LaneDot
    """Adds up the lane's share of a row."""
    read_only: ClassVar[bool] = False
    """Whether weights are read by loads for what no launch writes meanwhile."""

    @property
    def block_rows(self) -> int:
        """Rows a block, one a warp."""
        return ROWS

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor's registers must hold: the assembler would hoist loads until they hold fewer."""
        return 1

    @property
    @abstractmethod
    def dot(self) -> Dot:
        """How a lane goes along its row."""

    @property
    def chain(self) -> int:
        return self.dot.chain

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // self.block_rows), block=self.block_rows * WARP_SIZE, resident=self.resident)

    def emit(self, k: KernelBuilder) -> None:
        row = k.ctaid.x * self.block_rows + k.warp
        lane = self.dot.space.lane(k)
        x = lane.in_vector(self.activations(k))
        with k.when(row < self.n):
            weights = lane.in_row((k.arg.w.read_only() if self.read_only else k.arg.w).at(row, 0))
            total = k.warp_sum(self.lane_dot(k, self.dot, lane, [weights], [x]).total()[0][0])
            with k.when(k.lane == 0):
                k.store(k.arg.y[row], total)

    def activations(self, k: KernelBuilder) -> GlobalArray | SharedPart:
        """The activations, where the lanes are to read them."""
        array: GlobalArray = k.arg.x
        return array
