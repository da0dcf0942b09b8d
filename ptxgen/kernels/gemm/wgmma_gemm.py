"""`wgmma_{format}_gemm`: its settings and what follows from them. How a block of threads works stands in warpgroup_tile.py,
where it finds its activations in staged_f16.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.kernels.gemm.block_grid import BlockGrid, matrices_of, require_shares
from ptxgen.kernels.gemm.f16_gemm_type import CATALOGUED, SUM_UNITS, F16GemmType
from ptxgen.kernels.gemm.staged_weights import IN_PIECES
from ptxgen.kernels.gemm.warpgroup_tile import WarpgroupBlock, WarpgroupTile
from ptxgen.kernels.quantize.f16_split import STEPS, WINDOW
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require, require_room
from ptxgen.target import HOPPER, WARPGROUP_SIZE, Target

WINDOWED = tuple(format for format in CATALOGUED if format.half_run == WINDOW // 4)
"""The formats with one scale for the integers of a window."""

COLUMNS = (8, 16, 24, 32, 48, 64, 96, 128)
"""Rows of activations that a product takes."""


@register(format=WINDOWED)
@dataclass(frozen=True)
class WgmmaGemm(F16GemmType):
    """Y = X W^T for m rows of an f16 split of activations, by the warpgroup products of sm_90a.

    y: f32[m, n]; w: u8[n, row_bytes]; halves, scales: as pack_halves writes them, `parts` f16 a value. A row of y has the same
    bits whatever m is and whatever the other rows are.

    A warpgroup takes 64 rows of weights, whose integers it unpacks in its registers, `unpacked` steps of 16 values at a time,
    while those before are multiplied. `warpgroups` of them share `columns` rows of activations, which lie in shared memory in
    `stages` windows of 256 values: one is multiplied while the next are copied. Weights are loaded a window ahead; where they
    are `staged` they come through shared memory, too, as far ahead as activations, in three stages or more. Then `slices`
    blocks may share k, which changes bits; with one slice they are those of any other setting. With `pdl` the kernel waits for
    the one before it by itself, after its first weights. With `residual` the result is added to y in place. One launch may
    multiply two or three matrices, of n, n2 and n3 rows, by the same activations: w2 and y2, w3 and y3 are as w and y."""

    name_pattern = "wgmma_{format}_gemm"
    only_on: ClassVar[Target | None] = HOPPER
    bit_free = ("warpgroups", "columns", "stages", "unpacked", "staged", "pdl")
    n2: int = field(default=0, kw_only=True)
    n3: int = field(default=0, kw_only=True)
    slices: int = field(default=1, kw_only=True)
    warpgroups: int = field(default=3, kw_only=True)
    columns: int = field(default=64, kw_only=True)
    stages: int = field(default=3, kw_only=True)
    unpacked: int = field(default=4, kw_only=True)
    staged: bool = field(default=False, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)
    residual: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_shares(self, self.n2, self.windows)
        if self.format not in WINDOWED:
            known = ", ".join(format.name for format in WINDOWED)
            raise ArgumentError(f"{self.format} has several scales in a window; formats that have one: {known}")
        require(self, "warpgroups", high=4)
        require(self, "stages", low=2, high=8)
        for name, allowed in (("columns", COLUMNS), ("unpacked", (1, 2, 4, 8))):
            if getattr(self, name) not in allowed:
                choice = ", ".join(map(str, allowed))
                raise ArgumentError(f"{self.name}: {name} must be one of {choice}, got {getattr(self, name)}")
        if self.staged and self.format not in IN_PIECES:
            known = ", ".join(format.name for format in IN_PIECES if format in WINDOWED)
            raise ArgumentError(f"{self.name}: staged wants blocks that are aligned to 16 bytes; formats whose are: {known}")
        if self.staged and self.stages < 3:
            raise ArgumentError(f"{self.name}: staged wants 3 stages or more, got {self.stages}")
        if self.slices > 1 and not self.staged:
            raise ArgumentError(f"{self.name}: slices={self.slices} wants staged weights")
        if (self.slices - 1) * (size := self.blocks.slice_windows) >= self.windows:  # stages are filled without asking
            raise ArgumentError(
                f"{self.name}: each slice needs a window: {self.windows} windows make {-(-self.windows // size)} slices of "
                f"{size}, got slices={self.slices}"
            )
        used = self.block.shared_bytes
        require_room(self, "the windows of a block", used, HOPPER.max_shared, "stages", "columns", "parts")

    @property
    def block(self) -> WarpgroupBlock:
        """What a block of threads is."""
        own = ("warpgroups", "columns", "stages", "unpacked", "staged")
        return WarpgroupBlock(self.format, self.parts, **{name: getattr(self, name) for name in own})

    @property
    def blocks(self) -> BlockGrid:
        matrices = matrices_of(self.n, self.n2, self.n3)
        return BlockGrid(self.m, self.k, matrices, self.block.rows, self.columns, self.slices)

    @property
    def chain(self) -> int:
        """The products of a window, those of low registers too, and of its minima; for each of both a product of its scales and
        an fma for every window; the sums of blocks that share k."""
        products = WINDOW * (self.parts + 1) + STEPS * self.parts
        return SUM_UNITS * products + 2 * (1 + self.blocks.slice_windows) + self.slices - 1

    def parameters(self) -> dict[str, Any]:
        """Of a second and a third matrix, where there is one."""
        return {name: value for name, value in super().parameters().items() if value or name not in ("n2", "n3")}

    def launch(self) -> LaunchConfig:
        threads, shared = WARPGROUP_SIZE * self.warpgroups, self.block.shared_bytes
        return LaunchConfig(self.blocks.groups * self.slices, threads, dependent=self.pdl, dynamic_shared=shared)

    def emit(self, k: KernelBuilder) -> None:
        tile = WarpgroupTile(self, self.block, k)
        tile.add_rows()
        tile.store()

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[WgmmaGemm]:
        if fixed["format"].name == "Q4_K":
            yield cls(m=9, k=1024, n=65, warpgroups=1, columns=16, **fixed)
            yield cls(m=1, k=256, n=1, parts=1, warpgroups=2, columns=8, stages=2, unpacked=1, **fixed)
            yield cls(m=3, k=1280, n=65, n2=7, n3=64, warpgroups=1, columns=8, staged=True, slices=3, **fixed)
        else:
            yield cls(m=1, k=512, n=7, warpgroups=1, columns=8, stages=2, unpacked=2, residual=True, **fixed)
