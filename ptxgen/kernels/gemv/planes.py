"""The epilogue that quantises: it stores y and the int8 planes of values that belong to its rows. A scale of int8 planes
belongs to a group of 32 neighbouring results, which therefore meet in one warp, a lane each (grouped_rows.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from ptxgen.dsl.arguments import Signature, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.collective.plane_message import PlaneMessage
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.epilogue import Arrays, Epilogue, Exact, Float64
from ptxgen.kernels.quantize import int8_planes
from ptxgen.kernels.quantize.int8_planes import BLOCK, LARGEST
from ptxgen.kernels.quantize.plane_bounds import plane_bounds
from ptxgen.kernels.quantize.quantize import Quantize, write_planes
from ptxgen.kernels.shape import require, require_of
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32

PREFIX: Final = "y_"
"""Before the names of the planes that are written, since a kernel reads `digits`, `scales` and `sums`."""


@dataclass(frozen=True)
class GroupLane:
    """A group of 32 results that a warp finishes: its number, and the lane's row. mine: whether the block has computed it.
    live: whether the group has any row of the block, in all lanes the same."""

    number: Value
    row: Value
    mine: Value
    live: Value


@dataclass(frozen=True)
class Planes(Epilogue):
    """y: f32[n], n a multiple of 32, and its int8 planes, with the bits of the kernel that quantises: y_digits: s8[1,
    out_digits, n], y_scales: f32[1, n / 32], y_sums: s32[1, n / 32]. The last epilogue of a chain.

    Where the rows of a block of threads are no multiple of 32, counters: u32[n / 32], zeros before and after, count the blocks
    that have rows of a group."""

    suffix: ClassVar[str] = "_planes"
    summary: ClassVar[str] = "and the int8 planes of the result"
    kept_bytes: ClassVar[int] = F32.bytes
    out_digits: int

    def check(self, blocks: Blocks) -> None:
        require(blocks, "n", multiple=BLOCK)
        require_of(blocks.name, self, "out_digits", high=max(LARGEST))
        groups = groups_of_block(blocks)
        if blocks.warp_results > WARP_SIZE or groups > blocks.num_warps:
            raise ArgumentError(
                f"{blocks.name}: a warp has {WARP_SIZE} rows of y at most, and a block of threads a warp for each group of "
                f"{BLOCK} that it has rows of, not {blocks.warp_results} and {blocks.num_warps} for {groups} groups"
            )

    def scratch(self, blocks: Blocks) -> tuple[str, ...]:
        return ("counters",) if blocks.block_rows % BLOCK else ()

    def signature(self, blocks: Blocks, arguments: Signature) -> Signature:
        made = int8_planes.arrays(1, self.out_digits, blocks.n, "out")
        counters = {name: update(U32, blocks.n // BLOCK, zeros=True) for name in self.scratch(blocks)}
        return {**arguments, **{PREFIX + name: array for name, array in made.items()}, **counters}

    # Emission

    def begin(self, k: KernelBuilder, blocks: Blocks) -> PlaneMessage | None:
        """Write what comes early in the kernel; returns the message by which the planes go to other ranks, if they do."""
        return None

    def quantised(self, k: KernelBuilder, row: Value, y: Value, loaded: Value | None, live: Value) -> Value:
        """What is quantised for a y. All lanes of a warp come here, with the rows of a group; there is one where `live`."""
        return y

    def write(
        self,
        k: KernelBuilder,
        blocks: Blocks,
        group: GroupLane,
        y: Value,
        loaded: Value | None,
        live: Value,
        message: PlaneMessage | None,
    ) -> None:
        """Write the planes of a group, whose y the lanes have. loaded: the element that `needs` says, loaded where the group is
        live."""
        write_planes(k, self.out_digits, 0, group.row, [self.quantised(k, group.row, y, loaded, live)], live, PREFIX)

    # Reference

    def reference(self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64]) -> Exact:
        return Exact(values[0], {**self.planes_of(values[0]), **self._counters_again(blocks)})

    def tolerance(
        self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64], bounds: Sequence[Float64]
    ) -> Exact:
        """The planes are those of any y that near."""
        return Exact(bounds[0], {**self.plane_bounds(values[0], bounds[0]), **self._counters_again(blocks)})

    def planes_of(self, y: Float64) -> Arrays:
        """The planes of values f64[n] that are quantised, by the names of the arguments."""
        quantised = int8_planes.quantize(y.reshape(1, -1), self.out_digits)
        return {PREFIX + name: array for name, array in quantised._asdict().items()}

    def plane_bounds(self, y: Float64, bound: Float64) -> Arrays:
        """How far these may be from `planes_of(y)`, of any f32 values within `bound` of y."""
        bounds = plane_bounds(y.reshape(1, -1), bound.reshape(1, -1), self.out_digits)
        return {PREFIX + name: array for name, array in bounds.items()}

    def _counters_again(self, blocks: Blocks) -> Arrays:
        """What scratch must hold afterwards."""
        return {name: np.zeros(blocks.n // BLOCK) for name in self.scratch(blocks)}

    def inputs(self, blocks: Blocks, rng: np.random.Generator) -> dict[str, Any]:
        unwritten = int8_planes.unwritten(1, self.out_digits, blocks.n)
        inputs: dict[str, Any] = {PREFIX + name: array for name, array in unwritten.items()}
        return inputs | {name: np.zeros(blocks.n // BLOCK, np.uint32) for name in self.scratch(blocks)}

    def work(self, blocks: Blocks) -> Work:
        """That of the quantisation without reading y again."""
        quantize = Quantize(self.out_digits, blocks.n).work()
        return Work(quantize.flops, quantize.bytes - F32.bytes * blocks.n)

    @classmethod
    def samples(cls, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Of gate and up."""
        three = {"digits": 3, "out_digits": 3}
        k = max(fixed["format"].block, 3 * BLOCK)
        yield {"k": k, "n": 32, "num_warps": 2, "rows_per_warp": 4, **three}  # two blocks a group
        if fixed["format"].name == "Q4_K":
            yield {
                "k": 2048,
                "n": 96,
                "num_warps": 8,
                "row_groups": 8,
                "digits": 2,
                "out_digits": 3,
            }  # half of a block is past n
            yield {"k": 2048, "n": 96, "num_warps": 4, "row_groups": 7, "stages": 2, **three}  # blocks that share groups
            yield {"k": 4096, "n": 32, "num_warps": 8, "row_groups": 4, "stages": 3, "normed": True, "row_parts": 2, **three}
            yield {"k": 18944, "n": 32, "digits": 1, "out_digits": 2, "num_warps": 2}  # a loop
            yield {"k": 1536, "n": 64, "digits": 2, "out_digits": 1, "num_warps": 8, "row_groups": 2}  # a partial step alone
        if fixed["format"].name == "Q8_0":
            yield {"k": 896, "n": 32, "num_warps": 4, "row_groups": 4, **three}  # a partial step after others


def groups_of_block(blocks: Blocks) -> int:
    """The most groups that a block of threads has rows of."""
    rows = blocks.block_rows
    firsts = range(0, BLOCK * rows, rows)  # beyond, they lie as before
    return max((first + rows - 1) // BLOCK - first // BLOCK + 1 for first in firsts)
