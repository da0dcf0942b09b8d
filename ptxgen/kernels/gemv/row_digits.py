"""hw_dp4a whose epilogue makes activation digits of its own results. A scale of digits belongs to a group of 32 neighbouring
results, which therefore meet in one warp, a lane each: in shared memory those of a block of threads; and in global memory where
several blocks have rows of a group, of which the last to come finds what the others left. What is computed for a result, and
what of it is quantised, a kernel says."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.memory import Element
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.gemv.chunks import Warp
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.quantize import activation_digits
from ptxgen.kernels.quantize.activation_digits import BLOCK, LARGEST
from ptxgen.kernels.quantize.digit_bounds import digit_bounds
from ptxgen.kernels.quantize.quantize import Quantize, write_digits
from ptxgen.kernels.shape import require
from ptxgen.target import FULL_WARP, WARP_SIZE
from ptxgen.types import F32, U32

PREFIX = "y_"
"""Before the names of the digits that are written, since a kernel reads `digits`, `scales` and `sums`."""


@dataclass(frozen=True)
class GroupLane:
    """A group of 32 results that a warp finishes: its number, and the lane's row. mine: whether the block has computed it.
    live: whether the group has any row of the block, in all lanes the same."""

    number: Value
    row: Value
    mine: Value
    live: Value


@dataclass(frozen=True)
class RowDigits(HwDp4aGemv):
    """An hw_dp4a that writes y: f32[n], n a multiple of 32, and y_digits: s8[1, out_digits, n], y_scales: f32[1, n / 32],
    y_sums: s32[1, n / 32], the digits of values that belong to its results.

    A block of threads has num_warps * rows_per_warp * turns rows, of short ones two or four times as many. Where these are no
    multiple of 32, counters: u32[n / 32], zeros before and after, count the blocks that have rows of a group."""

    out_digits: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "n", multiple=BLOCK)
        require(self, "out_digits", high=max(LARGEST))
        if self.warp_results > WARP_SIZE or self.groups_of_block > self.num_warps:
            raise ArgumentError(
                f"{self.name}: a warp has {WARP_SIZE} rows of y at most, and a block of threads a warp for each group of "
                f"{BLOCK} that it has rows of, not {self.warp_results} and {self.num_warps} for {self.groups_of_block} groups"
            )

    @property
    def groups_of_block(self) -> int:
        """The most groups that a block of threads has rows of."""
        rows = self.block_rows
        firsts = range(0, BLOCK * rows, rows)  # beyond, they lie as before
        return max((first + rows - 1) // BLOCK - first // BLOCK + 1 for first in firsts)

    @property
    def static_bytes(self) -> int:
        return super().static_bytes + self.block_rows * F32.bytes * len(self.weights)

    @property
    def scratch(self) -> tuple[str, ...]:
        return ("counters",) if self.block_rows % BLOCK else ()

    def signature(self) -> Signature:
        made = activation_digits.arrays(1, self.out_digits, self.n, "out")
        counters = {name: update(U32, self.n // BLOCK, zeros=True) for name in self.scratch}
        return {**super().signature(), **{PREFIX + name: array for name, array in made.items()}, **counters}

    # What a kernel computes for a lane's result

    def for_result(self, k: KernelBuilder, row: Value) -> Element | None:
        """What `result` needs of a row beside the sums, f32: loaded so early that nobody waits for it."""
        return None

    def for_digits(self, k: KernelBuilder, row: Value) -> Element | None:
        """The same for `quantised`."""
        return None

    @abstractmethod
    def result(self, k: KernelBuilder, sums: list[Value], loaded: Value | None) -> Value:
        """y of a row, from its sum in each of the matrices."""

    def quantised(self, k: KernelBuilder, row: Value, y: Value, loaded: Value | None, live: Value) -> Value:
        """What is quantised for a y. All lanes of a warp come here, with the rows of a group; there is one where `live`."""
        return y

    # How results meet

    def _early(self, k: KernelBuilder, warp: Warp) -> list[Value | None]:
        """What `result` needs, and what `quantised` does."""
        place = self._group_lane(k)
        return [_loaded(k, place.mine, self.for_result(k, place.row)), _loaded(k, place.live, self.for_digits(k, place.row))]

    def _store(self, k: KernelBuilder, warp: Warp, before: list[Value | None]) -> None:
        rows = [warp.sum(total) for (total,) in warp.totals]
        sums = []
        for number in range(len(self.weights)):
            mine, *others = rows[number :: len(self.weights)]
            for place, other in enumerate(others, 1):
                mine = k.select(warp.lane.place == place, other, mine)
            sums.append(mine)
        self._store_own(k, warp, sums, before)

    def _store_own(self, k: KernelBuilder, warp: Warp, sums: list[Value], early: list[Value | None]) -> None:
        """The sums meet in shared memory, where a warp for each group of the block has a lane a row."""
        for_result, for_digits = early
        shared = [k.shared(F32, self.block_rows) for _ in sums]
        row, has = warp.first_row + warp.own, warp.own < self.warp_results
        if not self.whole:
            has = has & (row >= warp.first_new) & (row < self.n)
        with k.when(has) if self.warp_results < WARP_SIZE or not self.whole else nullcontext():
            for view, own in zip(shared, sums, strict=True):
                k.store(view[row - k.ctaid.x * self.block_rows], own)
        k.barrier()
        with k.when(k.warp < self.groups_of_block) if self.groups_of_block < self.num_warps else nullcontext():
            group = self._group_lane(k)
            place = group.row - k.ctaid.x * self.block_rows
            if self.scratch or self.n % self.block_rows:  # a row of the group may be another block's, or of no group
                place = k.select(group.mine, place, k.u32(0))
            y = self.result(k, [k.load(view[place]) for view in shared], for_result)
            with k.when(group.mine):
                k.store(k.arg.y[group.row], y)
            if not self.scratch:
                self._write(warp, group, y, for_digits, group.live)
                return
            with k.when(group.live):
                all_rows = k.variable(y, F32)
                complete = self._last_of_group(k, group, all_rows)
                with k.when(complete):
                    self._write(warp, group, all_rows, for_digits, complete)

    def _last_of_group(self, k: KernelBuilder, group: GroupLane, y: Value) -> Value:
        """Whether all rows of the warp's group are there; then `y` becomes that of each lane's."""
        first = group.number * BLOCK
        others = (first + (BLOCK - 1)) // self.block_rows - first // self.block_rows
        k.bar_warp_sync(FULL_WARP)  # what the lanes wrote comes before the count, which publishes it
        count = k.variable(0, U32)
        with k.when((k.lane == 0) & (others > 0)):
            counter = k.arg.counters[group.number].address
            given = k.atom(counter, others, order="acq_rel", scope="gpu", space="global", op="inc", type="u32")
            k.assign(count, given)  # inc goes from `others` to 0
        count = k.shuffle(count, 0)
        k.bar_warp_sync(FULL_WARP)
        complete: Value = count == others
        with k.when(complete & ~group.mine):
            k.assign(y, k.load(k.arg.y[group.row]))
        return complete

    def _write(self, warp: Warp, group: GroupLane, y: Value, loaded: Value | None, live: Value) -> None:
        k = warp.k
        write_digits(k, self.out_digits, 0, group.row, [self.quantised(k, group.row, y, loaded, live)], live, PREFIX)

    def _group_lane(self, k: KernelBuilder) -> GroupLane:
        """The place of a lane in the group that its warp finishes."""
        first = k.ctaid.x * self.block_rows
        if not self.scratch:
            row = first + k.tid.x
            there = k.tid.x < self.block_rows
            there = there if self.n % self.block_rows == 0 else there & (row < self.n)
            return GroupLane(row // BLOCK, row, there, there)
        number = first // BLOCK + k.warp
        row = number * BLOCK + k.lane
        end = first + self.block_rows
        if self.n % self.block_rows:
            end = k.min(end, self.n)
        return GroupLane(number, row, (row >= first) & (row < end), number * BLOCK < end)

    # What the digits add to a kernel's description

    def digits_of(self, y: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """The digits of values f64[n] that are quantised, by the names of the arguments."""
        quantised = activation_digits.quantize(y.reshape(1, -1), self.out_digits)
        return {PREFIX + name: array for name, array in quantised._asdict().items()}

    def digit_bounds(self, y: NDArray[np.float64], bound: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """How far these may be from `digits_of(y)`, of any f32 values within `bound` of y."""
        bounds = digit_bounds(y.reshape(1, -1), bound.reshape(1, -1), self.out_digits)
        return {PREFIX + name: array for name, array in bounds.items()}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        unwritten = activation_digits.unwritten(1, self.out_digits, self.n)
        inputs = super().inputs(rng) | {PREFIX + name: array for name, array in unwritten.items()}
        return inputs | {name: np.zeros(self.n // BLOCK, np.uint32) for name in self.scratch}

    def work(self) -> Work:
        """That of the product, and of the quantisation without reading y again."""
        product, quantize = super().work(), Quantize(self.out_digits, self.n).work()
        return Work(flops=product.flops + quantize.flops, bytes=product.bytes + quantize.bytes - F32.bytes * self.n)

    def counters_again(self) -> dict[str, NDArray[Any]]:
        """What scratch must hold afterwards."""
        return {name: np.zeros(self.n // BLOCK) for name in self.scratch}


def _loaded(k: KernelBuilder, live: Value, element: Element | None) -> Value | None:
    """The element where `live` holds."""
    if element is None:
        return None
    loaded = k.variable(0.0, F32)
    with k.when(live):
        k.assign(loaded, k.load(element))
    return loaded
