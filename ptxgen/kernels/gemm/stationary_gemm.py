"""`stationary_{format}_gemm`: its settings and what follows from them. How a block of threads works stands in
stationary_tile.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Array, KernelType, LaunchConfig, Signature, update
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.gemm.half_gemm_type import CATALOGUED, SUM_UNITS, of_windows
from ptxgen.kernels.gemm.joined_gemm import MULTIPROCESSORS, JoinedGemmType
from ptxgen.kernels.gemm.staged_halves import PIECE
from ptxgen.kernels.gemm.stationary_tile import StationaryTile
from ptxgen.kernels.gemm.weight_tile import TILE_ROWS
from ptxgen.kernels.quantize.activation_halves import STEPS, TILE, WINDOW
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import HOPPER, MAX_THREADS, WARP_SIZE
from ptxgen.types import F32, U32

IN_PIECES = tuple(format for format in CATALOGUED if format.half_bytes)
"""The formats whose blocks lie in memory as asynchronous copies want them."""

MOST_TILES = 8
"""Tiles of weights of a block from which on `suited` takes no more slices of k for more of them."""

MOST_COLUMNS = 32
"""Rows of activations of a block with one part, at most, and half of it with two: a lane holds 68 or 34 registers for 8."""


@register(format=IN_PIECES)
@dataclass(frozen=True)
class StationaryGemm(JoinedGemmType):
    """Y = X W^T for few rows of activation halves, by f16 tensor cores: activations stay in registers while weights go by.

    y: f32[m, n]; w: u8[n, row_bytes]; halves, scales: as pack_halves writes them, `parts` f16 a value. A row of y has the same
    bits whatever m is and whatever the other rows are; `slices`, `split` and `chains` alone change them. With one slice they
    are those of half_mma with the same split and chains.

    A warp keeps a window of 256 values of `columns` rows of activations and multiplies it with `row_tiles` tiles of 16 rows of
    weights, one after another, before it takes its next window. Weights come through a ring of `stages` tiles in shared memory
    that each warp has for itself, so that none waits for others. `split` warps of a block share the
    windows, every split-th each, and `slices` blocks share k: each leaves its sums in `partials`, and the last to come adds
    them in their order. counters: u32, zeros before and after a launch. The products of a window go to `chains` sums in turn.
    With `pdl` the kernel waits for the one before it by itself, after its first copies of weights. With `residual` it adds its
    result to y in place. One launch may multiply two or three matrices, of n, n2 and n3 rows, by the same activations: w2 and
    y2, w3 and y3 are as w and y."""

    name_pattern = "stationary_{format}_gemm"
    bit_free = ("row_tiles", "columns", "stages", "resident_threads", "pdl")
    row_tiles: int = field(default=2, kw_only=True)
    columns: int = field(default=8, kw_only=True)
    split: int = field(default=8, kw_only=True)
    slices: int = field(default=1, kw_only=True)
    stages: int = field(default=3, kw_only=True)
    chains: int = field(default=1, kw_only=True)
    resident_threads: int = field(default=512, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)
    residual: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.format.half_bytes:
            known = ", ".join(format.name for format in IN_PIECES)
            raise ArgumentError(f"{self.format} has blocks that are not aligned to 16 bytes; formats whose are: {known}")
        require(self, "row_tiles", high=64)
        require(self, "columns", multiple=TILE, high=MOST_COLUMNS // self.parts)
        require(self, "split", high=MAX_THREADS // WARP_SIZE)
        require(self, "slices", high=self.windows)
        require(self, "stages", low=2, high=8)
        require(self, "chains", high=4)
        require(self, "resident_threads", high=2048)
        if self.dynamic_shared > HOPPER.max_shared:
            raise ArgumentError(
                f"{self.name}: weights and sums of a block would take {self.dynamic_shared} bytes of shared memory, and "
                f"{HOPPER.max_shared} are allowed; choose a smaller one of stages={self.stages}, row_tiles={self.row_tiles}, "
                f"split={self.split}, columns={self.columns}"
            )

    @classmethod
    def suited(cls, format: Format, *, k: int, n: int, m: int, parts: int) -> StationaryGemm:
        """A kernel with settings that suit the shape on a GPU with some 130 multiprocessors: a block for each, of as many warps
        as registers allow, and as many slices of k as leave a block at most MOST_TILES tiles of weights, since the more of
        these it has the fewer blocks load the same activations. Not measured."""
        columns = min(-(-m // TILE) * TILE, MOST_COLUMNS // parts)
        most = 16 if columns * (parts + 1) <= 3 * TILE and format.half_bytes <= 48 else 8
        windows, tiles = -(-k // WINDOW), -(-n // TILE_ROWS) * -(-m // columns)
        kernel = cls(format, k=k, n=n, m=m, parts=parts, columns=columns, resident_threads=WARP_SIZE * most, row_tiles=1)
        largest = min(windows, max(-(-windows // most), MULTIPROCESSORS // tiles))
        for slices in range(largest, 0, -1):
            each = -(-windows // slices)
            slices = -(-windows // each)  # every slice has a window
            split = -(-each // -(-each // most))
            row_tiles = -(-tiles * slices // MULTIPROCESSORS)
            if row_tiles <= MOST_TILES:
                break
        kernel = replace(kernel, slices=slices, split=split, stages=2)
        return replace(kernel, row_tiles=min(row_tiles, 2 * MOST_TILES, kernel._fitting()))

    @property
    def onto(self) -> bool:
        return self.residual

    @property
    def least_sm(self) -> int:
        return 90 if self.pdl else 80

    @property
    def column_tiles(self) -> int:
        """Tiles of 8 rows of activations of a block."""
        return self.columns // TILE

    @property
    def column_blocks(self) -> int:
        """Blocks with the same weights."""
        return -(-self.m // self.columns)

    @property
    def block_rows(self) -> int:
        """Rows of weights of a block."""
        return TILE_ROWS * self.row_tiles

    @property
    def groups(self) -> int:
        """Blocks along m and the rows of all matrices: those that share only k are one."""
        return self.column_blocks * self.row_blocks

    @property
    def slice_windows(self) -> int:
        """Windows of a slice; the last may have fewer."""
        return -(-self.windows // self.slices)

    @property
    def row_pieces(self) -> int:
        """Pieces of 16 bytes of a row's window of weights."""
        return self.format.block_bytes // PIECE

    @property
    def row_stride(self) -> int:
        """Bytes from one row of a tile to the next in shared memory: an odd number of pieces, so that eight lanes of two rows
        read from all banks."""
        return PIECE * (self.row_pieces | 1)

    @property
    def stage_bytes(self) -> int:
        """The bytes of a tile of weights and a window."""
        return TILE_ROWS * self.row_stride

    @property
    def sums(self) -> int:
        """Groups of four f32 of a lane that a warp has for the block's rows."""
        return self.row_tiles * self.column_tiles

    @property
    def dynamic_shared(self) -> int:
        """Bytes of shared memory of a block: the rings of its warps, then their sums."""
        return self.split * (self.stages * self.stage_bytes + self.sums * WARP_SIZE * 4 * F32.bytes)

    @property
    def chain(self) -> int:
        """The products of a window, those of low registers too, and the sums that they go to; a product of scales and an fma
        for the minima, an fma of the window; the sums of windows, of warps and of blocks that share k."""
        products = WINDOW * (self.parts + 1) + STEPS * self.parts
        windows = -(-self.slice_windows // self.split)
        return SUM_UNITS * products + self.chains - 1 + 4 + windows + self.split + self.slices

    def with_residual(self) -> KernelType | None:
        return None if self.residual else replace(self, residual=True)

    def joined(self, others: Sequence[KernelType]) -> KernelType | None:
        """With this one's split and slices, and blocks of as many rows of weights as fill a GPU."""
        wide = self.beside(others)
        if wide is None:
            return None
        tiles = sum(-(-n // TILE_ROWS) for n in wide.matrices) * self.column_blocks * self.slices
        row_tiles = min(max(self.row_tiles, -(-tiles // MULTIPROCESSORS)), 2 * MOST_TILES, self._fitting())
        return replace(wide, row_tiles=row_tiles)

    def _fitting(self) -> int:
        """The most tiles of weights of a block whose sums have room beside its rings."""
        rings = self.stages * self.stage_bytes
        return (HOPPER.max_shared // self.split - rings) // (self.column_tiles * WARP_SIZE * 4 * F32.bytes)

    def signature(self) -> Signature:
        arguments = super().signature()
        if self.slices == 1:
            return arguments
        partials = (self.groups, self.slices, self.sums, WARP_SIZE, 4)
        return arguments | {
            "partials": update(F32, *partials, partial=True),
            "counters": update(U32, self.groups, zeros=True),
        }

    @property
    def scratch(self) -> tuple[str, ...]:
        return ("partials", "counters") if self.slices > 1 else ()

    def launch(self) -> LaunchConfig:
        threads = WARP_SIZE * self.split
        return LaunchConfig(
            grid=self.groups * self.slices, block=threads, resident=max(1, self.resident_threads // threads), early=self.pdl,
            dynamic_shared=self.dynamic_shared,
        )  # fmt: skip

    def emit(self, k: KernelBuilder) -> None:
        block = StationaryTile(self, k)
        block.add_products()
        block.store()

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
        tiles = -(-self.m // TILE)
        rows = -(-self.n // self.block_rows) * self.block_rows
        columns = np.minimum(np.arange(self.column_blocks * self.column_tiles), tiles - 1)[:, None] * TILE + np.arange(TILE)
        padded = np.zeros((self.slices, tiles * TILE, rows))
        padded[: len(sums), : self.m, : self.n] = sums
        placed = padded[:, columns.reshape(-1)]
        # [slice, column block, column tile, 2 t + u, row block, row tile, half, r]: c is 2 half + u, a lane 4 r + t.
        split = placed.reshape(self.slices, self.column_blocks, self.column_tiles, 4, 2, -1, self.row_tiles, 2, TILE)
        lanes = split.transpose(5, 1, 0, 6, 2, 8, 3, 7, 4)
        return lanes.reshape(self.groups, self.slices, self.sums, WARP_SIZE, 4)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[StationaryGemm]:
        if fixed["format"].name == "Q4_K":
            yield cls(m=3, k=1280, n=35, n2=9, n3=64, split=2, slices=2, chains=3, resident_threads=256, **fixed)
            yield cls(
                m=9,
                k=768,
                n=65,
                parts=1,
                columns=16,
                row_tiles=3,
                split=3,
                stages=2,
                resident_threads=256,
                residual=True,
                **fixed,
            )
        else:
            yield cls(m=1, k=512, n=17, row_tiles=1, split=2, resident_threads=256, **fixed)
