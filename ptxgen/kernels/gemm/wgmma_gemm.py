"""`wgmma_{format}_gemm`: its settings and what follows from them. How a block of threads works stands in warpgroup_tile.py,
where it finds its activations in staged_halves.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.gemm.half_gemm_type import CATALOGUED, SUM_UNITS, HalfGemmType
from ptxgen.kernels.gemm.staged_halves import StageLayout
from ptxgen.kernels.gemm.warpgroup_tile import GROUP_ROWS, WarpgroupTile
from ptxgen.kernels.quantize.activation_halves import STEPS, WINDOW
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import HOPPER, WARPGROUP_SIZE, Target

WINDOWED = tuple(format for format in CATALOGUED if format.half_run == WINDOW // 4)
"""The formats with one scale for the integers of a window."""

COLUMNS = (8, 16, 24, 32, 48, 64, 96, 128)
"""Rows of activations that a product takes."""


@register(format=WINDOWED)
@dataclass(frozen=True)
class WgmmaGemm(HalfGemmType):
    """Y = X W^T for m rows of activation halves, by the warpgroup products of the H100 and H200.

    y: f32[m, n]; w: u8[n, row_bytes]; halves, scales: as pack_halves writes them, `parts` f16 a value. A row of y has the same
    bits whatever m is and whatever the other rows are.

    A warpgroup takes 64 rows of weights, whose integers it unpacks in its registers, `unpacked` steps of 16 values at a time,
    while those before are multiplied. `warpgroups` of them share `columns` rows of activations, which lie in shared memory in
    `stages` windows of 256 values: one is multiplied while the next are copied. With `residual` the result is added to y in
    place."""

    name_pattern = "wgmma_{format}_gemm"
    only_on: ClassVar[Target | None] = HOPPER
    bit_free = ("warpgroups", "columns", "stages", "unpacked")
    warpgroups: int = field(default=3, kw_only=True)
    columns: int = field(default=64, kw_only=True)
    stages: int = field(default=3, kw_only=True)
    unpacked: int = field(default=4, kw_only=True)
    residual: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format not in WINDOWED:
            known = ", ".join(format.name for format in WINDOWED)
            raise ArgumentError(f"{self.format} has several scales in a window; formats that have one: {known}")
        require(self, "warpgroups", high=4)
        require(self, "stages", low=2, high=8)
        for name, allowed in (("columns", COLUMNS), ("unpacked", (1, 2, 4, 8))):
            if getattr(self, name) not in allowed:
                choice = ", ".join(map(str, allowed))
                raise ArgumentError(f"{self.name}: {name} must be one of {choice}, got {getattr(self, name)}")
        if self.dynamic_shared > HOPPER.max_shared:
            raise ArgumentError(
                f"{self.name}: the windows of a block would take {self.dynamic_shared} bytes of shared memory, and "
                f"{HOPPER.max_shared} are allowed; choose a smaller one of stages={self.stages}, columns={self.columns}, "
                f"parts={self.parts}"
            )

    @classmethod
    def suited(cls, format: Format, *, k: int, n: int, m: int, parts: int) -> WgmmaGemm:
        """A kernel with settings that suit the shape on an H200: what was fastest for Q4_K and Q6_K at 512 rows and the shapes
        of an 8B, as far as it spills nothing."""
        if parts == 1 and m > 64:
            warpgroups, columns, unpacked = 2, 128, 2 if format.half_low else 4
        elif parts == 2 and format.half_low:  # a third product, whose operand takes registers of its own
            warpgroups, columns, unpacked = 2, 64, 2
        else:
            warpgroups, columns, unpacked = 3, 64, 4
        return cls(
            format, k=k, n=n, m=m, parts=parts, warpgroups=warpgroups, columns=columns, stages=2, unpacked=unpacked
        )  # fmt: skip

    @property
    def onto(self) -> bool:
        return self.residual

    @property
    def layout(self) -> StageLayout:
        """A window of activations in shared memory."""
        return StageLayout(self.columns, self.parts)

    @property
    def dynamic_shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.stages * self.layout.bytes

    @property
    def block_rows(self) -> int:
        """Rows of weights of a block."""
        return GROUP_ROWS * self.warpgroups

    @property
    def chain(self) -> int:
        """The products of a window, those of low registers too, and of its minima; for each of both a product of its scales and
        an fma for every window."""
        return SUM_UNITS * (WINDOW * (self.parts + 1) + STEPS * self.parts) + 2 * (1 + self.windows)

    def with_residual(self) -> KernelType | None:
        return None if self.residual else replace(self, residual=True)

    def launch(self) -> LaunchConfig:
        blocks = -(-self.m // self.columns) * -(-self.n // self.block_rows)
        return LaunchConfig(grid=blocks, block=WARPGROUP_SIZE * self.warpgroups, dynamic_shared=self.dynamic_shared)

    def emit(self, k: KernelBuilder) -> None:
        block = WarpgroupTile(self, k)
        block.add_rows()
        block.store()

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[WgmmaGemm]:
        if fixed["format"].name == "Q4_K":
            yield cls(m=9, k=1024, n=65, warpgroups=1, columns=16, **fixed)
            yield cls(m=1, k=256, n=1, parts=1, warpgroups=2, columns=8, stages=2, unpacked=1, **fixed)
        else:
            yield cls(m=1, k=512, n=7, warpgroups=1, columns=8, stages=2, unpacked=2, residual=True, **fixed)
