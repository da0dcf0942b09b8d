"""`half_mma_{format}_gemm`: its settings and what follows from them. How a block of threads works stands in half_tile.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.launch_config import EARLY_SM, LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.gemm.half_gemm_type import CATALOGUED, SUM_UNITS, HalfGemmType
from ptxgen.kernels.gemm.half_tile import HalfTile
from ptxgen.kernels.gemm.weight_tile import TILE_ROWS
from ptxgen.kernels.quantize.activation_halves import STEPS, TILE, WINDOW, windows_of
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import MAX_STATIC_SHARED, MAX_THREADS, WARP_SIZE

WIDE = 16384
"""Rows of weights from which on blocks are many enough that fewer warps share k, and fewer rows of a warp pay."""

DEEP = 32
"""Windows from which on more warps may share k."""

LARGEST_TILE = 64
"""Rows of activations of a block, at most: a lane has a sum for every eighth of them and every eighth of its warp's rows."""


@register(format=CATALOGUED)
@dataclass(frozen=True)
class HalfMmaGemm(HalfGemmType):
    """Y = X W^T for m rows of activation halves, by f16 tensor cores: scales are applied once for 256 values.

    y: f32[m, n]; w: u8[n, row_bytes]; halves, scales: as pack_halves writes them, `parts` f16 a value. A row of y has the same
    bits whatever m is and whatever the other rows are; `split` and `chains` alone change them.

    A warp takes 16 row_tiles rows of weights, whose integers it unpacks in its registers, and up to `tile` rows of activations.
    `warps` such warps lie side by side along n, and `split` of them share k, a window of 256 values each in turn, whose sums
    are added in their order. The products of a window go to `chains` sums in turn, none of which waits for the others; they are
    added where scales are applied. Weights are loaded `ahead` windows before they are used. With `pdl` the kernel waits for
    the one before it by itself, after its first loads of weights. With `residual` it adds its result to y in place."""

    name_pattern = "half_mma_{format}_gemm"
    bit_free = ("warps", "row_tiles", "tile", "ahead", "resident_threads", "pdl")
    warps: int = field(default=1, kw_only=True)
    row_tiles: int = field(default=1, kw_only=True)
    split: int = field(default=8, kw_only=True)
    chains: int = field(default=1, kw_only=True)
    tile: int = field(default=32, kw_only=True)
    ahead: int = field(default=1, kw_only=True)
    resident_threads: int = field(default=512, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)
    residual: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "ahead", low=0, high=2)
        require(self, "tile", multiple=TILE, high=LARGEST_TILE)
        require(self, "row_tiles", "chains", high=4)
        require(self, "warps", "split", high=MAX_THREADS // WARP_SIZE)
        require(self, "resident_threads", high=2048)
        if self.warps * self.split > MAX_THREADS // WARP_SIZE:
            raise ArgumentError(
                f"{self.name}: warps={self.warps} times split={self.split} is over {MAX_THREADS // WARP_SIZE} warps of a block"
            )
        if self.shared_words * 4 > MAX_STATIC_SHARED:
            raise ArgumentError(
                f"{self.name}: the sums of a block would take {self.shared_words * 4} bytes of shared memory, and "
                f"{MAX_STATIC_SHARED} are allowed; choose a smaller one of tile={self.tile}, split={self.split}, "
                f"warps={self.warps}, row_tiles={self.row_tiles}"
            )

    @classmethod
    def suited(
        cls, format: Format, *, k: int, n: int, m: int, parts: int, split: int | None = None, chains: int | None = None
    ) -> HalfMmaGemm:
        """A kernel with settings that suit the shape on a GPU with some 130 multiprocessors: measured for Q4_K at the shapes of
        an 8B, but for `chains`. Give `split` and `chains` where rows must have the same bits for every m: results depend on
        these, and they depend here on n and m."""
        few, wide = m <= TILE, n >= WIDE
        many_scales = format.half_run < WINDOW // 4  # which take registers of their own
        row_tiles = 1 if (few and wide) or many_scales else 2
        return cls(
            format, k=k, n=n, m=m, parts=parts, row_tiles=row_tiles, ahead=0,
            split=min(cls._suited_split(k, n, m), windows_of(k)) if split is None else split,
            chains=(4 // row_tiles if few else 1) if chains is None else chains,
            resident_threads=(512 if wide and not many_scales else 384) if few else 256,
        )  # fmt: skip

    @staticmethod
    def _suited_split(k: int, n: int, m: int) -> int:
        if m > 2 * TILE:
            return 2 if n >= WIDE else 4
        if m > TILE:
            return 8
        if n >= WIDE:
            return 4
        blocks, deep = -(-n // (2 * TILE_ROWS)), windows_of(k) >= DEEP
        return max(4, min(12, 1536 // blocks) if deep else min(8, 1152 // blocks))

    @property
    def onto(self) -> bool:
        return self.residual

    @property
    def least_sm(self) -> int:
        return EARLY_SM if self.pdl else 80

    def early(self) -> KernelType:
        return replace(self, pdl=True)

    @property
    def column_tiles(self) -> int:
        """Tiles of 8 rows of activations of a block."""
        return min(-(-self.m // TILE), self.tile // TILE)

    @property
    def block_columns(self) -> int:
        """Rows of activations of a block."""
        return self.column_tiles * TILE

    @property
    def block_rows(self) -> int:
        """Rows of weights of a block."""
        return TILE_ROWS * self.row_tiles * self.warps

    @property
    def shared_words(self) -> int:
        """f32 of the sums of all warps of a block, where some share k."""
        return 0 if self.split == 1 else self.split * self.block_rows * self.block_columns

    @property
    def chain(self) -> int:
        """The products of a window, those of low registers too, and the sums that they go to; a product and an fma for each of
        its scales and for the minima, an fma of the window; the sums of windows and of warps that share k."""
        products = WINDOW * (self.parts + 1)
        scales = 2 if self.format.half_run == WINDOW // 4 else STEPS
        return SUM_UNITS * products + self.chains - 1 + scales + 2 + -(-self.windows // self.split) + self.split

    def with_residual(self) -> KernelType | None:
        return None if self.residual else replace(self, residual=True)

    def launch(self) -> LaunchConfig:
        threads = WARP_SIZE * self.warps * self.split
        columns = -(-self.m // self.block_columns)
        resident = max(1, self.resident_threads // threads)
        return LaunchConfig(
            grid=columns * -(-self.n // self.block_rows), block=threads, resident=resident, early=self.pdl
        )  # fmt: skip

    def emit(self, k: KernelBuilder) -> None:
        block = HalfTile(self, k)
        block.add_rows()
        block.store()

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[HalfMmaGemm]:
        if fixed["format"].name == "Q4_K":
            yield cls(m=3, k=1280, n=17, split=2, chains=3, **fixed)
            yield cls(
                m=9, k=768, n=33, parts=1, row_tiles=2, split=1, ahead=0, resident_threads=256, residual=True, **fixed
            )  # fmt: skip
            yield cls(m=9, k=1280, n=33, warps=3, split=2, ahead=0, resident_threads=256, **fixed)
        else:
            block = fixed["format"].block
            k, resident = (3 * block, 512) if block == WINDOW else (WINDOW + 3 * block, 384)
            yield cls(m=1, k=k, n=17, split=2, ahead=0, resident_threads=resident, **fixed)
