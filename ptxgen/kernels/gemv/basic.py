"""The basic GEMV: one warp a row, one byte column a lane, plain loads. Works for every format and GPU; the strategies beside it
are measured against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.cooperation import WARP
from ptxgen.formats import FORMATS
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.gemv.walk import Lane, Walk, advance
from ptxgen.kernels.kernel_type import Launch
from ptxgen.kernels.registry import register_variants
from ptxgen.memory import GlobalArray
from ptxgen.value import Value

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder

# Rows a block, one a warp: a multiprocessor holds fewer blocks than warps, so blocks of one warp would leave half of it empty.
ROWS = 4

# Values a lane decodes in one pass of the loop, and sums that it keeps apart, so that additions overlap.
PASS_VALUES = 16
SUMS = 4


@register_variants("format", {f"{format.id}_gemv": format for format in FORMATS.values()})
@dataclass(frozen=True)
class Gemv(GemvType):
    """y = W x, basic: one warp a row.

    y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]. Weights are decoded to the very f32 values of
    gguf-py's dequantize, and products added by fma in a fixed order."""

    @property
    def name(self) -> str:
        return f"{self.format.id}_gemv"

    @property
    def walk(self) -> Walk:
        return Walk(self.format, self.k)

    @property
    def passes(self) -> tuple[int, int, int]:
        """Passes of the loop, steps of each, and whole steps left for after it. A loop of one pass is left out."""
        steps = unrolled(self.walk.steps, max(1, PASS_VALUES // self.walk.lane_values))
        passes = self.walk.steps // steps
        return (passes, steps, self.walk.steps % steps) if passes > 1 else (0, 0, self.walk.steps)

    @property
    def chain(self) -> int:
        # Every stretch deals its products out to the sums anew; then these are added in pairs, then the lanes.
        passes, steps, left = self.passes
        stretches = [steps] * passes + [left] + [1] * (self.walk.rest > 0)
        longest = sum(-(-stretch * self.walk.lane_values // SUMS) for stretch in stretches)
        return longest + (SUMS.bit_length() - 1) + (WARP.bit_length() - 1)

    def launch(self) -> Launch:
        return Launch(grid=-(-self.n // ROWS), block=ROWS * WARP)

    def emit(self, k: KernelBuilder) -> None:
        row = k.ctaid.x * ROWS + k.warp
        lane = self.walk.lane(k)
        x = lane.in_vector(k.arg.x)
        with k.when(row < self.n):
            total = k.warp_sum(self._lane_sum(k, lane, lane.in_row(k.arg.w.at(row, 0)), x))
            with k.when(k.lane == 0):
                k.store(k.arg.y[row], total)

    def _lane_sum(self, k: KernelBuilder, lane: Lane, row: GlobalArray, x: GlobalArray) -> Value:
        """The lane's share of the dot product; `row` and `x` start at its place in the first step."""
        walk = self.walk
        sums = [k.f32(0.0) for _ in range(SUMS)]
        passes, steps, left = self.passes
        looped = passes * steps
        if passes:
            for i in k.strided(0, looped, step=steps):
                block = advance(row, i, walk.bytes)
                self._add_steps(k, lane, sums, block, advance(x, i, walk.values), steps)
        if left:
            self._add_steps(k, lane, sums, row.at(looped * walk.bytes), x.at(looped * walk.values), left)
        if walk.rest:
            with k.when(lane.takes_rest):
                self._add_steps(k, lane, sums, row.at(walk.steps * walk.bytes), x.at(walk.steps * walk.values), 1)
        while len(sums) > 1:
            sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
        return sums[0]

    def _add_steps(self, k: KernelBuilder, lane: Lane, sums: list[Value], row: GlobalArray, x: GlobalArray, steps: int) -> None:
        """Add `steps` steps that start at the lane's block in `row` and its first value in `x`; each sum is written once."""
        walk = self.walk
        column = advance(row, lane.column, 1)
        running, count = list(sums), 0
        for step in range(steps):
            block, codes = row.at(step * walk.bytes), column.at(step * walk.bytes)
            for offset, weight in lane.decode(k, block, codes):
                at = count % SUMS
                running[at] = k.fma(weight, k.load(x[step * walk.values + offset]), running[at])
                count += 1
        for total, value in zip(sums, running, strict=True):
            if value is not total:
                k.assign(total, value)


def unrolled(steps: int, most: int) -> int:
    """How many of `steps` to write in one pass of a loop: at most `most`; rather a divisor if one is over half of that."""
    if steps <= most:
        return max(1, steps)
    return next((n for n in range(most, most // 2, -1) if steps % n == 0), most)
