"""GEMVs on int8 planes of activations that are read straight from global memory: one warp a row, or several. The fast ones
stand in hw_dp4a.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.fragments import Cursor, FragmentLane
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.kernels.gemv.lane_planes import GlobalPlaneArrays, GlobalPlanes
from ptxgen.kernels.gemv.plane_gemv_type import PACKED, Int8GemvType
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.registry import Given, register
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE

# Rows a block where a warp takes one: a multiprocessor holds fewer blocks than warps.
ROWS = 4


@dataclass(frozen=True)
class _LaneSum:
    """The lane's share of the product of a row that `warps` warps share: one fragment a lane and step, the steps of the row
    dealt out to its warps in turn."""

    kernel: Int8GemvType
    warps: int

    @property
    def chain(self) -> int:
        """Of additions of the row, those of the lanes of a warp and of the warps included."""
        return -(-self.kernel.fragments.steps // self.warps) * self.kernel.runs + 2 * (WARP_SIZE.bit_length() - 1)

    def emit(self, k: KernelBuilder, row: Value, first: Index) -> Value:
        """The sum of steps first, first + warps, ..."""
        fragments = self.kernel.fragments
        lane = fragments.lane(k)
        bytes_of_row = k.arg.w.at(row, 0)
        start, source = lane.start(bytes_of_row), self._source(k, lane)
        total = k.f32(0.0)
        whole = fragments.k // fragments.values
        if whole:
            for step in k.strided(first, whole, step=self.warps):
                self._add(k, lane, start.moved(step), self._moved(source, step), total)
        if fragments.rest:
            mine = lane.takes_rest if self.warps == 1 else lane.takes_rest & (k.warp == whole % self.warps)
            with k.when(mine):
                self._add(k, lane, start.moved(whole), self._moved(source, whole), total)
        return total

    def _add(self, k: KernelBuilder, lane: FragmentLane, cursor: Cursor, source: GlobalPlaneArrays, total: Value) -> None:
        runs = lane.unpack(k, lane.load(k, cursor))
        k.assign(total, GlobalPlanes(k, source, self.kernel.format.has_minimum).add(runs, total))

    def _source(self, k: KernelBuilder, lane: FragmentLane) -> GlobalPlaneArrays:
        first = lane.first_value
        return GlobalPlaneArrays(
            [advance(k.arg.digits.at(0, plane, 0), first, 1) for plane in range(self.kernel.digits)],
            advance(k.arg.scales.at(0, 0), first // BLOCK, 1),
            advance(k.arg.sums.at(0, 0), first // BLOCK, 1),
        )

    def _moved(self, source: GlobalPlaneArrays, step: Index) -> GlobalPlaneArrays:
        values = self.kernel.fragments.values
        return GlobalPlaneArrays(
            [advance(plane, step, values) for plane in source.digits],
            advance(source.scales, step, values // BLOCK),
            advance(source.sums, step, values // BLOCK),
        )


@register(format=PACKED.values(), num_warps=[None])
@register(format=[format for format in PACKED.values() if format.common], num_warps=[Given(4)])
@dataclass(frozen=True)
class Dp4aGemv(Int8GemvType):
    """y = W x on quantised activations, one warp a row, or num_warps warps a row and one row a block.

    Arguments as in Int8GemvType."""

    num_warps: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_warps is not None:
            require(self, "num_warps", high=32)

    @property
    def name(self) -> str:
        return f"{'' if self.num_warps is None else 'mwv_'}dp4a_{self.format.id}_gemv"

    @property
    def chain(self) -> int:
        return self._lane_sum.chain

    @property
    def _lane_sum(self) -> _LaneSum:
        return _LaneSum(self, self.num_warps or 1)

    def launch(self) -> LaunchConfig:
        if self.num_warps is None:
            return LaunchConfig(grid=-(-self.n // ROWS), block=ROWS * WARP_SIZE)
        return LaunchConfig(grid=self.n, block=self.num_warps * WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        if self.num_warps is None:
            row = k.ctaid.x * ROWS + k.warp
            with k.when(row < self.n):
                total = k.warp_sum(self._lane_sum.emit(k, row, 0))
                with k.when(k.lane == 0):
                    k.store(k.arg.y[row], total)
        else:
            row = k.ctaid.x
            total = k.block_sum(self._lane_sum.emit(k, row, k.warp))
            with k.when(k.tid.x == 0):
                k.store(k.arg.y[row], total)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[Dp4aGemv]:
        for one in super().cases(**{"num_warps": None, **fixed}):
            yield one if "num_warps" in fixed else replace(one, num_warps=4 if one.k == 2048 else 3)
