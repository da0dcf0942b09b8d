"""`stationary_{format}_gemm`: its settings and what follows from them. How a block of threads works stands in
stationary_tile.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.launch_config import EARLY_SM, LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.gemm.half_gemm_type import SUM_UNITS
from ptxgen.kernels.gemm.joined_gemm import MULTIPROCESSORS
from ptxgen.kernels.gemm.sliced_gemm import SlicedGemmType
from ptxgen.kernels.gemm.staged_weights import IN_PIECES, TileLayout
from ptxgen.kernels.gemm.stationary_tile import ABREAST, StationaryTile
from ptxgen.kernels.gemm.weight_tile import TILE_ROWS
from ptxgen.kernels.quantize.activation_halves import STEPS, TILE, WINDOW
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import HOPPER, MAX_THREADS, WARP_SIZE
from ptxgen.types import F32

MOST_TILES = 16
"""Tiles of weights of a block that `suited` takes at most."""

MOST_WARPS = 8
"""Warps of a block that `suited` takes: twice as many have 128 registers each, and were slower."""

MOST_COLUMNS = 32
"""Rows of activations of a block with one part, at most, and half of it with two: a lane holds 68 or 34 registers for 8."""


@register(format=IN_PIECES)
@dataclass(frozen=True)
class StationaryGemm(SlicedGemmType):
    """Y = X W^T for few rows of activation halves, by f16 tensor cores: activations stay in registers while weights go by.

    y: f32[m, n]; w: u8[n, row_bytes]; halves, scales: as pack_halves writes them, `parts` f16 a value. A row of y has the same
    bits whatever m is and whatever the other rows are; `slices`, `split`, `chains` and `abreast` alone change them. With one
    slice, and not abreast, they are those of half_mma with the same split and chains.

    A warp keeps a window of 256 values of `columns` rows of activations and multiplies it with `row_tiles` tiles of 16 rows of
    weights, one after another, before it takes its next window. Weights come through a ring of `stages` tiles in shared memory
    that each warp has for itself, so that none waits for others. `split` warps of a block share the
    windows, every split-th each, and `slices` blocks share k: each leaves its sums in `partials`, and the last to come adds
    them in their order. counters: u32, zeros before and after a launch. The products of a window go to `chains` sums in turn.
    With `abreast` both parts of up to four rows stand side by side in one tile of activations, and half as many products do.
    With `pdl` the kernel waits for the one before it by itself, after its first copies of weights. With `residual` it adds its
    result to y in place. One launch may multiply two or three matrices, of n, n2 and n3 rows, by the same activations: w2 and
    y2, w3 and y3 are as w and y."""

    name_pattern = "stationary_{format}_gemm"
    bit_free = ("row_tiles", "columns", "stages", "resident_threads", "pdl")
    row_tiles: int = field(default=2, kw_only=True)
    columns: int = field(default=8, kw_only=True)
    split: int = field(default=8, kw_only=True)
    stages: int = field(default=3, kw_only=True)
    chains: int = field(default=1, kw_only=True)
    abreast: bool = field(default=False, kw_only=True)
    resident_threads: int = field(default=512, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)
    residual: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.format.half_bytes:
            known = ", ".join(format.name for format in IN_PIECES)
            raise ArgumentError(
                f"{self.format} has blocks that are not made of aligned pieces for lanes; formats whose are: {known}"
            )
        require(self, "row_tiles", high=64)
        require(self, "columns", multiple=TILE, high=MOST_COLUMNS // self.parts)
        require(self, "split", high=MAX_THREADS // WARP_SIZE)
        require(self, "stages", low=2, high=8)
        require(self, "chains", high=4)
        require(self, "resident_threads", high=2048)
        if self.abreast and (self.parts, self.columns) != (2, TILE):
            raise ArgumentError(
                f"{self.name}: what stands abreast are two parts in {TILE} columns, got parts={self.parts}, "
                f"columns={self.columns}"
            )
        if self.abreast:
            require(self, "m", high=ABREAST)
        if self.dynamic_shared > HOPPER.max_shared:
            raise ArgumentError(
                f"{self.name}: weights and sums of a block would take {self.dynamic_shared} bytes of shared memory, and "
                f"{HOPPER.max_shared} are allowed; choose a smaller one of stages={self.stages}, row_tiles={self.row_tiles}, "
                f"split={self.split}, columns={self.columns}"
            )

    @classmethod
    def suited(cls, format: Format, *, k: int, n: int, m: int, parts: int) -> StationaryGemm:
        """A kernel with settings that suit the shape on a GPU with some 130 multiprocessors: a block for each, of eight warps,
        which have registers enough. More slices of k gain nothing where there are blocks enough with one: measured for 2 to 32
        rows and the shapes of an 8B on an H200. Parts stand abreast where they can."""
        columns = min(-(-m // TILE) * TILE, MOST_COLUMNS // parts)
        windows, tiles = -(-k // WINDOW), -(-n // TILE_ROWS) * -(-m // columns)
        each = -(-windows // min(windows, max(1, MULTIPROCESSORS // (2 * tiles))))
        slices = -(-windows // each)  # every slice has a window
        kernel = cls(
            format, k=k, n=n, m=m, parts=parts, columns=columns, slices=slices, split=min(each, MOST_WARPS), row_tiles=1,
            chains=4 if columns == TILE else 1, abreast=parts == 2 and m <= ABREAST, resident_threads=WARP_SIZE * MOST_WARPS,
        )  # fmt: skip
        return replace(kernel, row_tiles=min(-(-tiles * slices // MULTIPROCESSORS), MOST_TILES, kernel._fitting()))

    @property
    def onto(self) -> bool:
        return self.residual

    @property
    def least_sm(self) -> int:
        return EARLY_SM if self.pdl else 80

    def early(self) -> KernelType:
        return replace(self, pdl=True)

    @property
    def block_rows(self) -> int:
        """Rows of weights of a block."""
        return TILE_ROWS * self.row_tiles

    @property
    def tile(self) -> TileLayout:
        """A tile of weights in shared memory."""
        return TileLayout(self.format)

    @property
    def dynamic_shared(self) -> int:
        """Bytes of shared memory of a block: the rings of its warps, then their sums."""
        return self.split * (self.stages * self.tile.bytes + self.sums * WARP_SIZE * 4 * F32.bytes)

    @property
    def chain(self) -> int:
        """The products of a window, those of low registers too, and the sums that they go to; a product of scales and an fma
        for the minima, an fma of the window; the sums of windows, of warps, of parts that stand
        abreast and of blocks that share k."""
        products = WINDOW * (self.parts + 1) + STEPS * self.parts
        windows = -(-self.slice_windows // self.split)
        return SUM_UNITS * products + self.chains - 1 + 4 + windows + self.split + self.slices + self.abreast

    def with_residual(self) -> KernelType | None:
        return None if self.residual else replace(self, residual=True)

    def joined(self, others: Sequence[KernelType]) -> KernelType | None:
        """With this one's split and slices, and blocks of as many rows of weights as fill a GPU."""
        wide = self.beside(others)
        if wide is None:
            return None
        tiles = sum(-(-n // TILE_ROWS) for n in wide.matrices) * self.column_blocks * self.slices
        row_tiles = min(max(self.row_tiles, -(-tiles // MULTIPROCESSORS)), MOST_TILES, self._fitting())
        return replace(wide, row_tiles=row_tiles)

    def _fitting(self) -> int:
        """The most tiles of weights of a block whose sums have room beside its rings."""
        rings = self.stages * self.tile.bytes
        return (HOPPER.max_shared // self.split - rings) // (self.column_tiles * WARP_SIZE * 4 * F32.bytes)

    def launch(self) -> LaunchConfig:
        """A block that starts early takes more than half of a multiprocessor's shared memory: else some would get two while
        others, where the kernels before still run, get none."""
        threads = WARP_SIZE * self.split
        return LaunchConfig(
            grid=self.groups * self.slices, block=threads, resident=max(1, self.resident_threads // threads), early=self.pdl,
            dynamic_shared=max(self.dynamic_shared, HOPPER.max_shared // 2 + 1) if self.pdl else self.dynamic_shared,
        )  # fmt: skip

    def emit(self, k: KernelBuilder) -> None:
        block = StationaryTile(self, k)
        block.add_products()
        block.store()

    def _rows_of_columns(self) -> NDArray[np.int64]:
        return np.arange(TILE) % ABREAST if self.abreast else super()._rows_of_columns()

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
        yield cls(m=3, k=768, n=33, row_tiles=2, split=2, slices=2, abreast=True, resident_threads=256, **fixed)
