"""`mma_{format}_gemm`: its settings and what follows from them. How a block of threads works stands in block_tile.py, where it
finds both operands in weight_tile.py and staged_digits.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.launch_config import EARLY_SM, LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.formats import REPACKED, Format
from ptxgen.kernels.gemm.block_tile import BlockTile, SharedLayout
from ptxgen.kernels.gemm.staged_digits import COLUMN_TILE
from ptxgen.kernels.gemm.weight_tile import STEP, TILE_ROWS
from ptxgen.kernels.gemv.digit_gemv_type import PACKED, DigitGemvType
from ptxgen.kernels.quantize.activation_digits import BLOCK
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import MAX_STATIC_SHARED, MAX_THREADS, WARP_SIZE

LARGEST_TILE: Final = 64
"""Rows of activations of a block, at most: a lane has a sum for every eighth of them and every eighth of its warp's rows."""

ENOUGH_WARPS: Final = 1024
"""Warps that keep a GPU with some 130 multiprocessors busy."""

MOST_COLUMNS: Final = 96
"""Rows of activations times digits times parts of k, of a step each, that fit shared memory twice beside the weights."""


@register(format=(*PACKED.values(), REPACKED["Q8_0_ALIGNED"]))  # Q6_K_ALIGNED has products by f16 in the catalogue
@dataclass(frozen=True)
class MmaGemm(DigitGemvType):
    """Y = X W^T for m rows of quantised activations, by int8 tensor cores.

    y: f32[m, n]; w: u8[n, row_bytes]; digits: s8[m, digits, k]; scales: f32[m, k / 32]; sums: s32[m, k / 32], as q8_quantize
    (digits=1), q16_quantize (2) or q24_quantize (3) writes them. A row of y has the same bits whatever m is and whatever the
    other rows are; `split` alone changes them.

    A warp takes 16 row_tiles rows of weights and up to `tile` rows of activations, `warps` such warps lie side by side along n,
    and `split` of them share k, whose sums are added in their order. `steps` times 128 values of all rows of activations of a
    block are staged at once, and the loads of `ahead` steps of weights are under way. With `pdl` the kernel waits for the one
    before it by itself, after its first loads of weights."""

    name_pattern = "mma_{format}_gemm"
    family: ClassVar[str] = "gemm"
    bit_free = ("warps", "row_tiles", "tile", "steps", "ahead", "resident_threads", "pdl")
    m: int = field(kw_only=True)
    warps: int = field(default=4, kw_only=True)
    row_tiles: int = field(default=1, kw_only=True)
    split: int = field(default=1, kw_only=True)
    tile: int = field(default=32, kw_only=True)
    steps: int = field(default=1, kw_only=True)
    ahead: int = field(default=1, kw_only=True)
    resident_threads: int = field(default=256, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m", "steps")
        require(self, "ahead", high=4)
        if self.steps % self.ahead and self.ahead % self.steps:
            raise ArgumentError(f"{self.name}: ahead must divide steps={self.steps} or be a multiple of it, got {self.ahead}")
        require(self, "tile", multiple=COLUMN_TILE, high=LARGEST_TILE)
        require(self, "row_tiles", high=4)
        require(self, "warps", "split", high=MAX_THREADS // WARP_SIZE)
        require(self, "resident_threads", high=2048)
        if self.warps * self.split > MAX_THREADS // WARP_SIZE:
            raise ArgumentError(
                f"{self.name}: warps={self.warps} times split={self.split} is over {MAX_THREADS // WARP_SIZE} warps of a block"
            )
        if self.shared.bytes > MAX_STATIC_SHARED:
            raise ArgumentError(
                f"{self.name}: a block would take {self.shared.bytes} bytes of shared memory, and {MAX_STATIC_SHARED} are "
                f"allowed; choose a smaller one of tile={self.tile}, steps={self.steps}, split={self.split}, "
                f"warps={self.warps}, row_tiles={self.row_tiles}"
            )

    @classmethod
    def suited(cls, format: Format, *, k: int, n: int, m: int, digits: int, split: int | None = None) -> MmaGemm:
        """A kernel with settings that suit the shape on a GPU with some 130 multiprocessors; a first guess, not measured. Give
        `split` where rows must have the same bits for every m: it is what results depend on, and here on n and m."""
        if split is None:
            # Eight warps for every multiprocessor. Parts of k take the shared memory of rows of activations.
            warps = -(-n // TILE_ROWS) * -(-m // 32)
            split = min(1 if warps >= ENOUGH_WARPS else 4 if m <= COLUMN_TILE else 2, -(-k // STEP))
        # Twice as many sums of products, for halves of blocks, and steps loaded ahead must leave room for the sums of rows.
        whole = format.scale_values == BLOCK
        room = min(MOST_COLUMNS // (digits * split), LARGEST_TILE if split == 1 and whole else 2 * COLUMN_TILE)
        tile = next(size for size in (64, 32, 16, 8) if size <= max(room, 8) and (size == 8 or size < 2 * m))
        ahead = 2 if tile < 32 and STEP // format.fragment_values * TILE_ROWS <= WARP_SIZE and whole else 1
        return cls(
            format, k=k, n=n, m=m, digits=digits, split=split, tile=tile, warps=max(1, 4 // split), ahead=ahead,
            resident_threads=384 if whole else 256,
        )  # fmt: skip

    @property
    def least_sm(self) -> int:
        return EARLY_SM if self.pdl else 80

    def early(self) -> KernelType:
        return replace(self, pdl=True)

    @property
    def batch(self) -> tuple[int, ...]:
        return (self.m,)

    @property
    def column_tiles(self) -> int:
        """Tiles of 8 rows of activations of a block."""
        return min(-(-self.m // COLUMN_TILE), self.tile // COLUMN_TILE)

    @property
    def block_columns(self) -> int:
        """Rows of activations of a block."""
        return self.column_tiles * COLUMN_TILE

    @property
    def block_rows(self) -> int:
        """Rows of weights of a block."""
        return TILE_ROWS * self.row_tiles * self.warps

    @property
    def row_steps(self) -> int:
        """Steps of a row, the last of which may be partial."""
        return -(-self.k // STEP)

    @property
    def part_steps(self) -> int:
        """Steps of a part of k; the last part may have fewer."""
        return -(-self.row_steps // self.split)

    @property
    def stages(self) -> int:
        """Stages of a warp."""
        return -(-self.part_steps // self.steps)

    @property
    def halves(self) -> bool:
        """Whether a scale is for 16 weights, of which a block of activations has two."""
        return self.format.scale_values < BLOCK

    @property
    def chain(self) -> int:
        """A product of each block, in halves or not, and as many minima; then the sums of the warps that share k."""
        minima = (2 if self.halves else 1) if self.format.has_minimum else 0
        return self.k // BLOCK * (1 + minima) + (1 if self.halves else 0) + self.split - 1

    @property
    def shared(self) -> SharedLayout:
        """What a block has in shared memory."""
        return SharedLayout(self)

    def launch(self) -> LaunchConfig:
        threads = WARP_SIZE * self.warps * self.split
        columns = -(-self.m // self.block_columns)
        resident = max(1, self.resident_threads // threads)
        return LaunchConfig(grid=columns * -(-self.n // self.block_rows), block=threads, resident=resident, early=self.pdl)

    def emit(self, k: KernelBuilder) -> None:
        block = BlockTile(self, k)
        block.add_row()
        block.store()

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[MmaGemm]:
        block = max(fixed["format"].block, BLOCK)
        if fixed["format"].name != "Q4_K":
            yield cls(m=1, k=5 * BLOCK if block == BLOCK else block, n=17, digits=3, warps=1, **fixed)
        else:
            yield cls(m=3, k=256, n=17, digits=3, warps=2, **fixed)
            yield cls(m=9, k=1536, n=33, digits=1, warps=2, split=2, ahead=2, **fixed)
            yield cls(m=17, k=768, n=33, digits=2, warps=1, row_tiles=2, split=2, tile=8, steps=2, **fixed)
