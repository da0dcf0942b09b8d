"""hw_dp4a whose epilogue makes activation digits of its own results. A scale of digits belongs to a group of 32 neighbouring
results, which therefore meet in one warp, a lane each: in shared memory where a block of threads has whole groups, else in
global memory, where the last block of a group to come finds what the others left. What is computed for a result and what of it
is quantised a kernel says."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Signature, Work, update
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
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32

PREFIX = "y_"
"""Before the names of the digits that are written, since a kernel reads `digits`, `scales` and `sums`."""


@dataclass(frozen=True)
class RowDigits(HwDp4aGemv):
    """An hw_dp4a that writes y: f32[n], n a multiple of 32, and y_digits: s8[1, out_digits, n], y_scales: f32[1, n / 32],
    y_sums: s32[1, n / 32], the digits of values that belong to its results.

    A block of threads has num_warps * rows_per_warp * turns rows, of short ones two or four times as many: a multiple of 32, or
    1, 2, 4, 8 or 16. Then counters: u32[n / 32], zeros before and after, count the blocks of each group."""

    out_digits: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "n", multiple=BLOCK)
        require(self, "out_digits", high=max(LARGEST))
        if WARP_SIZE % self.warp_results or (self.block_rows % BLOCK and BLOCK % self.block_rows):
            raise ArgumentError(
                f"{self.name}: a warp has 1, 2, 4, 8, 16 or 32 rows of y and a block of threads so many or a multiple of 32, "
                f"not {self.warp_results} and {self.block_rows}"
            )

    @property
    def blocks_of_group(self) -> int:
        """Blocks of threads that have the rows of a group together."""
        return max(1, BLOCK // self.block_rows)

    @property
    def whole(self) -> bool:
        return True  # as `first_row` is

    def first_row(self, k: KernelBuilder) -> Value:
        """Warps past the end compute the last rows again, because all have to stage; what they get is not stored."""
        first = super().first_row(k)
        return first if self.n % self.block_rows == 0 else k.min(first, self.n - self.warp_results)

    @property
    def scratch(self) -> tuple[str, ...]:
        return ("counters",) if self.blocks_of_group > 1 else ()

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
        own, live = self._own_row(k, warp)
        row, leads = (own, live) if self.blocks_of_group == 1 else (self._row_of_group(k), k.warp == 0)
        return [_loaded(k, live, self.for_result(k, own)), _loaded(k, leads, self.for_digits(k, row))]

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
        if self.blocks_of_group == 1:
            self._finish_in_block(k, warp, sums, *early)
        else:
            self._finish_in_last(k, warp, sums, *early)

    def _finish_in_block(
        self, k: KernelBuilder, warp: Warp, sums: list[Value], early: Value | None, for_digits: Value | None
    ) -> None:  # fmt: skip
        """A warp for each group of the block has a lane a row."""
        shared = [k.shared(F32, self.block_rows) for _ in sums]
        with k.when(warp.own < self.warp_results) if self.warp_results < WARP_SIZE else nullcontext():
            place = k.warp * self.warp_results + warp.own
            for view, own in zip(shared, sums, strict=True):
                k.store(view[place], own)
        k.barrier()
        groups = self.block_rows // BLOCK
        with k.when(k.warp < groups) if groups < self.num_warps else nullcontext():
            row, live = self._own_row(k, warp)
            y = self.result(k, [k.load(view[k.tid.x]) for view in shared], early)
            with k.when(live):
                k.store(k.arg.y[row], y)
            self._write(k, row, y, for_digits, live)

    def _finish_in_last(
        self, k: KernelBuilder, warp: Warp, sums: list[Value], early: Value | None, for_digits: Value | None
    ) -> None:  # fmt: skip
        """The first warp of the last block of a group has a lane a row."""
        own, live = self._own_row(k, warp)
        y = self.result(k, sums, early)
        with k.when(live):
            k.store(k.arg.y[own], y)
        group, leads = k.ctaid.x // self.blocks_of_group, k.warp == 0
        with k.when(k.last_block(k.arg.counters[group], self.blocks_of_group)), k.when(leads):
            row = self._row_of_group(k)
            self._write(k, row, k.load(k.arg.y[row]), for_digits, leads)

    def _write(self, k: KernelBuilder, row: Value, y: Value, loaded: Value | None, live: Value) -> None:
        write_digits(k, self.out_digits, 0, row, [self.quantised(k, row, y, loaded, live)], live, PREFIX)

    def _own_row(self, k: KernelBuilder, warp: Warp) -> tuple[Value, Value]:
        """The row whose result the lane computes, and whether there is one."""
        if self.blocks_of_group > 1:
            return warp.first_row + warp.own, warp.own < self.warp_results
        row = k.ctaid.x * self.block_rows + k.tid.x
        live = k.tid.x < self.block_rows
        return row, live if self.n % self.block_rows == 0 else live & (row < self.n)

    def _row_of_group(self, k: KernelBuilder) -> Value:
        """The row of the lane in the group that the block has rows of with others."""
        row: Value = k.ctaid.x // self.blocks_of_group * BLOCK + k.lane
        return row

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
