"""How the blocks of threads of a launch share a product: each takes some rows of one of up to three matrices, some rows of
activations and a slice of k. Where slices are several each block leaves its sums, and the last one to come adds those of all in
their order. How sums are made is the kernel's business."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.gemm.weight_tile import TILE_ROWS
from ptxgen.kernels.quantize.f16_split import TILE, tiles_of, windows_of
from ptxgen.kernels.shape import require
from ptxgen.target import MAX_THREADS, WARP_SIZE
from ptxgen.types import F32, U32

F64 = NDArray[np.float64]

LARGEST_TILE = 64
"""Rows of activations of a block of `mma`, at most: a lane has a sum for every eighth of them and of its warp's rows."""


@dataclass(frozen=True)
class BlockGrid:
    """Blocks of `block_rows` rows of weights and `columns` rows of activations, of m rows of k values; `matrices`: the rows of
    each. Blocks that share only k, one for each of the `slices`, are a group. abreast: a tile of activations holds its first
    half of rows twice."""

    m: int
    k: int
    matrices: tuple[int, ...]
    block_rows: int
    columns: int
    slices: int = 1
    abreast: bool = False

    def numbered(self) -> Iterator[tuple[str, int]]:
        """Each matrix: what follows the names of its arguments, and its rows."""
        return ((str(number) if number > 1 else "", n) for number, n in enumerate(self.matrices, 1))

    @property
    def windows(self) -> int:
        """Windows of a row, the last of which may be partial."""
        return windows_of(self.k)

    @property
    def row_tiles(self) -> int:
        """Tiles of 16 rows of weights of a block."""
        return self.block_rows // TILE_ROWS

    @property
    def column_tiles(self) -> int:
        """Tiles of 8 rows of activations of a block."""
        return self.columns // TILE

    @property
    def sums(self) -> int:
        """Groups of four f32 that a lane has for the block's rows, or that several lanes share."""
        return self.row_tiles * self.column_tiles

    @property
    def row_blocks(self) -> int:
        """Blocks along the rows of all matrices."""
        return sum(-(-n // self.block_rows) for n in self.matrices)

    @property
    def column_blocks(self) -> int:
        """Blocks with the same weights."""
        return -(-self.m // self.columns)

    @property
    def groups(self) -> int:
        """Blocks along m and the rows of all matrices: those that share only k are one."""
        return self.column_blocks * self.row_blocks

    @property
    def slice_windows(self) -> int:
        """Windows of a slice; the last may have fewer."""
        return -(-self.windows // self.slices)

    def arguments(self) -> Signature:
        """What blocks share, where slices are several. partials: f32[groups, slices, sums, 32, 4], four sums of each lane for
        each tile of 16 rows of weights and 8 of activations; counters: u32[groups], zeros before and after a launch."""
        if self.slices == 1:
            return {}
        partials = (self.groups, self.slices, self.sums, WARP_SIZE, 4)
        return {"partials": update(F32, *partials, partial=True), "counters": update(U32, self.groups, zeros=True)}

    def scratch_inputs(self) -> dict[str, Any]:
        """What these hold before a launch: any partials, and zeros."""
        if self.slices == 1:
            return {}
        partials = np.full((self.groups, self.slices, self.sums, WARP_SIZE, 4), np.nan, np.float32)
        return {"partials": partials, "counters": np.zeros(self.groups, np.uint32)}

    def scratch_of(self, sums: Iterable[Sequence[F64]]) -> dict[str, F64]:
        """What they hold afterwards, from f64[m, rows] of each matrix and slice."""
        if self.slices == 1:
            return {}
        partials = [self._as_partials(one, n) for one, n in zip(sums, self.matrices, strict=True)]
        return {"partials": np.concatenate(partials), "counters": np.zeros(self.groups)}

    def slices_of(self, count: int) -> list[slice]:
        """The elements of k of each slice, where a window has `count`; none where slices are not several."""
        if self.slices == 1:
            return []
        size = self.slice_windows * count
        return [slice(start, start + size) for start in range(0, self.windows * count, size)]

    def _as_partials(self, sums: Sequence[F64], n: int) -> F64:
        """f64[m, n] of each slice as a block leaves them: past the last rows of weights and of activations zeros, past the last
        tile of these that again; zeros of a slice without windows."""
        rows = -(-n // self.block_rows) * self.block_rows
        padded = np.zeros((self.slices, tiles_of(self.m) * TILE, rows))
        padded[: len(sums), : self.m, :n] = sums
        placed = padded[:, self._rows_of_columns()]
        # [slice, column block, column tile, 2 t + u, row block, row tile, half, r]: c is 2 half + u, a lane 4 r + t.
        split = placed.reshape(self.slices, self.column_blocks, self.column_tiles, 4, 2, -1, self.row_tiles, 2, TILE)
        lanes = split.transpose(5, 1, 0, 6, 2, 8, 3, 7, 4)
        return lanes.reshape(-1, self.slices, self.sums, WARP_SIZE, 4)

    def _rows_of_columns(self) -> NDArray[np.int64]:
        """The row of activations that each column of all blocks stands for."""
        if self.abreast:
            return np.arange(TILE) % (TILE // 2)
        tiles = np.minimum(np.arange(self.column_blocks * self.column_tiles), tiles_of(self.m) - 1)
        return (tiles[:, None] * TILE + np.arange(TILE)).reshape(-1)


def matrices_of(n: int, n2: int, n3: int) -> tuple[int, ...]:
    """The rows of each matrix, where 0 stands for none."""
    return tuple(rows for rows in (n, n2, n3) if rows)


def require_shares(kernel: KernelType, n2: int, windows: int) -> None:
    """Raise ShapeError unless the fields n2, n3 and slices of a kernel are possible."""
    require(kernel, "n2", low=0)
    require(kernel, "n3", low=0, high=None if n2 else 0)
    require(kernel, "slices", high=windows)


class BlockPlace:
    """Which columns, rows and slice a block of threads has, and what it shares with the others of its group. Blocks with the
    same weights follow each other, so that these come from the L2 cache for all but one."""

    def __init__(self, grid: BlockGrid, k: KernelBuilder) -> None:
        self.grid, self.k = grid, k
        number, self.column = apart(k.ctaid.x, grid.column_blocks)
        self.rows, self.slice = apart(number, grid.slices)
        self.group = k.ctaid.x if grid.slices == 1 else self.rows * grid.column_blocks + self.column

    def windows(self) -> tuple[Index, Index]:
        """The first window of the slice, and the end of its windows."""
        grid, size = self.grid, self.grid.slice_windows
        if not isinstance(self.slice, Value):
            return 0, grid.windows
        start = self.slice * size
        return start, self.k.min(start + size, grid.windows)

    def leave(self, number: Index, four: Sequence[Value]) -> None:
        """Store the lane's sums of this number."""
        partials: GlobalArray = self.k.arg.partials
        self.k.store(partials[self.group, self.slice, number, self.k.lane, 0], four)

    def is_last(self) -> Value:
        """Whether the sums of all slices are there. All threads must reach it."""
        return self.k.last_block(self.k.arg.counters[self.group], self.grid.slices)

    def of_all(self, number: Index) -> list[Value]:
        """The lane's sums of this number, of all slices in their order."""
        k, grid = self.k, self.grid
        partials: GlobalArray = k.arg.partials
        start = partials.at(self.group, 0, number, k.lane, 0)
        stride = grid.sums * WARP_SIZE * 4
        return added(k.load_vector(start[i * stride], 4) for i in range(grid.slices))


def added(fours: Iterable[Sequence[Value]]) -> list[Value]:
    """The sums of these, in their order."""
    total, *others = [list(four) for four in fours]
    for four in others:
        total = [one + other for one, other in zip(total, four, strict=True)]
    return total


def apart(number: Value, count: int) -> tuple[Value, Index]:
    """The quotient and the rest of a division."""
    return (number // count, number % count) if count > 1 else (number, 0)


def require_warps(kernel: KernelType, warps: int, split: int) -> None:
    """Raise ArgumentError unless a block can have `warps` warps along its rows of weights for each of `split` parts of k."""
    most = MAX_THREADS // WARP_SIZE
    require(kernel, "warps", "split", high=most)
    require(kernel, "row_tiles", high=4)
    require(kernel, "tile", multiple=TILE, high=LARGEST_TILE)
    require(kernel, "resident_threads", high=2048)
    if warps * split > most:
        raise ArgumentError(f"{kernel.name}: warps={warps} times split={split} is over {most} warps of a block")


def warp_place(k: KernelBuilder, warps: int, split: int) -> tuple[Index, Index]:
    """Which part of k a warp of such a block takes, and its place along the rows of weights."""
    if split == 1:
        return 0, k.warp
    return (k.warp, 0) if warps == 1 else (k.warp // warps, k.warp % warps)


def moved(k: KernelBuilder, base: Value, index: Index, stride: int) -> Value:
    """base + index * stride."""
    return k.mad(index, stride, base) if isinstance(index, Value) else base + index * stride if index else base
