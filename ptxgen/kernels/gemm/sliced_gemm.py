"""Products whose blocks of threads share k: each has a slice of its windows, leaves its sums, and the last block to come adds
those of all in their order. What a kernel takes and gives for that; how sums are made is the kernel's business."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemm.half_gemm_type import of_windows
from ptxgen.kernels.gemm.joined_gemm import JoinedGemmType
from ptxgen.kernels.gemm.weight_tile import TILE_ROWS
from ptxgen.kernels.quantize.activation_halves import TILE, WINDOW, tiles_of
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32


@dataclass(frozen=True)
class SlicedGemmType(JoinedGemmType):
    """Y = X W^T by blocks of `block_rows` rows of weights, `columns` rows of activations and a slice of k each. partials: f32[
    groups, slices, sums, 32, 4], four sums of each lane for each tile of 16 rows of weights and 8 of activations; counters:
    u32[groups], zeros before and after a launch. Neither is there with one slice."""

    slices: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "slices", high=self.windows)

    @property
    @abstractmethod
    def columns(self) -> int:
        """Rows of activations of a block."""

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

    @property
    def scratch(self) -> tuple[str, ...]:
        return ("partials", "counters") if self.slices > 1 else ()

    def signature(self) -> Signature:
        arguments = super().signature()
        if self.slices == 1:
            return arguments
        partials = (self.groups, self.slices, self.sums, WARP_SIZE, 4)
        return arguments | {
            "partials": update(F32, *partials, partial=True),
            "counters": update(U32, self.groups, zeros=True),
        }

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        product = super().reference(**arguments)
        if self.slices == 1 or self.n2:
            return product
        weights, x = self._in_float64(arguments)
        sums = [x[:, part] @ weights[:, part].T for part in self._slices(WINDOW)]
        return {**product, "partials": self._as_partials(sums), "counters": np.zeros(self.groups)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        bound = super().tolerance(**arguments)
        if self.slices == 1 or self.n2:
            return bound
        sums = [self._product_bound(arguments, windows) for windows in self._slices(1)]
        return {**bound, "partials": self._as_partials(sums), "counters": np.zeros(self.groups)}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Counters are zeros, and what partials hold counts for nothing."""
        inputs = super().inputs(rng)
        if self.slices == 1 or self.n2:
            return inputs
        partials = self.signature()["partials"]
        assert isinstance(partials, Array)
        return {
            **inputs,
            "partials": np.full(partials.shape, np.nan, np.float32),
            "counters": np.zeros(self.groups, np.uint32),
        }

    def _slices(self, count: int) -> list[slice]:
        """The elements of k of each slice, where a window has `count`."""
        starts = range(0, self.windows, self.slice_windows)
        return [of_windows(slice(start, start + self.slice_windows), count) for start in starts]

    def _as_partials(self, sums: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """f64[m, n] of each slice as a block leaves them: past the last rows of weights and of activations zeros, past the last
        tile of these that again; zeros of a slice without windows."""
        rows = -(-self.n // self.block_rows) * self.block_rows
        padded = np.zeros((self.slices, tiles_of(self.m) * TILE, rows))
        padded[: len(sums), : self.m, : self.n] = sums
        placed = padded[:, self._rows_of_columns()]
        # [slice, column block, column tile, 2 t + u, row block, row tile, half, r]: c is 2 half + u, a lane 4 r + t.
        split = placed.reshape(self.slices, self.column_blocks, self.column_tiles, 4, 2, -1, self.row_tiles, 2, TILE)
        lanes = split.transpose(5, 1, 0, 6, 2, 8, 3, 7, 4)
        return lanes.reshape(self.groups, self.slices, self.sums, WARP_SIZE, 4)

    def _rows_of_columns(self) -> NDArray[np.int64]:
        """The row of activations that each column of all blocks stands for."""
        tiles = np.minimum(np.arange(self.column_blocks * self.column_tiles), tiles_of(self.m) - 1)
        return (tiles[:, None] * TILE + np.arange(TILE)).reshape(-1)


class SlicedBlock:
    """Which columns, rows and slice a block of threads has, and what it shares with the others of its group. Blocks with the
    same weights follow each other, so that these come from the L2 cache for all but one."""

    def __init__(self, kernel: SlicedGemmType, k: KernelBuilder) -> None:
        self.kernel, self.k = kernel, k
        number, self.column = apart(k.ctaid.x, kernel.column_blocks)
        self.rows, self.slice = apart(number, kernel.slices)
        self.group = k.ctaid.x if kernel.slices == 1 else self.rows * kernel.column_blocks + self.column

    def windows(self) -> tuple[Index, Index]:
        """The first window of the slice, and the end of its windows."""
        kernel, size = self.kernel, self.kernel.slice_windows
        if not isinstance(self.slice, Value):
            return 0, kernel.windows
        start = self.slice * size
        return start, self.k.min(start + size, kernel.windows)

    def leave(self, number: Index, four: Sequence[Value]) -> None:
        """Store the lane's sums of this number."""
        partials: GlobalArray = self.k.arg.partials
        self.k.store(partials[self.group, self.slice, number, self.k.lane, 0], four)

    def is_last(self) -> Value:
        """Whether the sums of all slices are there. All threads must reach it."""
        return self.k.last_block(self.k.arg.counters[self.group], self.kernel.slices)

    def of_all(self, number: Index) -> list[Value]:
        """The lane's sums of this number, of all slices in their order."""
        k, kernel = self.k, self.kernel
        partials: GlobalArray = k.arg.partials
        start = partials.at(self.group, 0, number, k.lane, 0)
        stride = kernel.sums * WARP_SIZE * 4
        return added(k.load_vector(start[i * stride], 4) for i in range(kernel.slices))


def added(fours: Iterable[Sequence[Value]]) -> list[Value]:
    """The sums of these, in their order."""
    total, *others = [list(four) for four in fours]
    for four in others:
        total = [one + other for one, other in zip(total, four, strict=True)]
    return total


def apart(number: Value, count: int) -> tuple[Value, Index]:
    """The quotient and the rest of a division."""
    return (number // count, number % count) if count > 1 else (number, 0)


def moved(k: KernelBuilder, base: Value, index: Index, stride: int) -> Value:
    """base + index * stride."""
    return k.mad(index, stride, base) if isinstance(index, Value) else base + index * stride if index else base
