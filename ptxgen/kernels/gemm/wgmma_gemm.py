"""`wgmma_{format}_gemm`: its settings and what follows from them. How a block of threads works stands in warpgroup_tile.py,
where it finds its activations in staged_halves.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.gemm.half_gemm_type import CATALOGUED, SUM_UNITS
from ptxgen.kernels.gemm.joined_gemm import MULTIPROCESSORS
from ptxgen.kernels.gemm.sliced_gemm import SlicedGemmType
from ptxgen.kernels.gemm.staged_halves import StageLayout
from ptxgen.kernels.gemm.staged_weights import IN_PIECES, TileLayout
from ptxgen.kernels.gemm.warpgroup_tile import GROUP_ROWS, WarpgroupTile
from ptxgen.kernels.quantize.activation_halves import STEPS, WINDOW
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import HOPPER, WARPGROUP_SIZE, Target

WINDOWED = tuple(format for format in CATALOGUED if format.half_run == WINDOW // 4)
"""The formats with one scale for the integers of a window."""

COLUMNS = (8, 16, 24, 32, 48, 64, 96, 128)
"""Rows of activations that a product takes."""

BLOCKS = ((3, 64, 4), (2, 128, 4), (2, 96, 4), (3, 48, 4), (2, 64, 4))
"""Warpgroups, columns and `unpacked` of blocks that `joined` chooses from: with two stages nothing is spilled for any format
if `unpacked` is 2 where there is a third product."""

LARGE_BLOCKS = ((4, 64, 2), (4, 48, 4))
"""The same for Q4_K alone: a thread of them has 128 registers, of which others would spill many. Q4_K itself keeps one word in
memory while windows go by, if 4 x 64 columns are for matrices with different numbers of rows."""

FEW = 32
"""Rows of activations up to which `suited` stages weights, too."""

SMALL_BLOCK = 144
"""Bytes of a block of weights up to which four warpgroups have room for three stages of them."""

UNPACKING = 100
"""What a window of a warpgroup's weights costs beside its products, as columns of these: fitted to times of Q4_K."""

UNPACKING_LOW = 350
"""The same where integers have a low register, fitted to Q6_K."""

MARGIN = 0.07
"""What `_time` may be off by, as a share: settings that were measured are kept unless others are better by more."""


@register(format=WINDOWED)
@dataclass(frozen=True)
class WgmmaGemm(SlicedGemmType):
    """Y = X W^T for m rows of activation halves, by the warpgroup products of the H100 and H200.

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
    warpgroups: int = field(default=3, kw_only=True)
    columns: int = field(default=64, kw_only=True)
    stages: int = field(default=3, kw_only=True)
    unpacked: int = field(default=4, kw_only=True)
    staged: bool = field(default=False, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)
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
        if self.staged and self.format not in IN_PIECES:
            known = ", ".join(format.name for format in IN_PIECES if format in WINDOWED)
            raise ArgumentError(f"{self.name}: staged wants blocks that are aligned to 16 bytes; formats whose are: {known}")
        if self.staged and self.stages < 3:
            raise ArgumentError(f"{self.name}: staged wants 3 stages or more, got {self.stages}")
        if self.slices > 1 and not self.staged:
            raise ArgumentError(f"{self.name}: slices={self.slices} wants staged weights")
        if (self.slices - 1) * self.slice_windows >= self.windows:  # stages are filled without asking
            raise ArgumentError(
                f"{self.name}: each slice needs a window: {self.windows} windows make "
                f"{-(-self.windows // self.slice_windows)} slices of {self.slice_windows}, got slices={self.slices}"
            )
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
        if m <= FEW and format in IN_PIECES:
            columns, small = next(columns for columns in COLUMNS if columns >= m), format.block_bytes <= SMALL_BLOCK
            warpgroups, unpacked = (4, 4) if small else (2, 2)
            few = cls(
                format, k=k, n=n, m=m, parts=parts, warpgroups=warpgroups, columns=columns, unpacked=unpacked, staged=True
            )  # fmt: skip
            return few._sliced()
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
        return self.stages * self.stage_bytes

    @property
    def tile(self) -> TileLayout:
        """A window of 16 rows of weights in shared memory."""
        return TileLayout(self.format)

    @property
    def stage_bytes(self) -> int:
        """Of a window of activations, and of weights if they are staged."""
        return self.layout.bytes + (self.row_tiles * self.tile.bytes if self.staged else 0)

    @property
    def block_rows(self) -> int:
        """Rows of weights of a block."""
        return GROUP_ROWS * self.warpgroups

    @property
    def chain(self) -> int:
        """The products of a window, those of low registers too, and of its minima; for each of both a product of its scales and
        an fma for every window; the sums of blocks that share k."""
        return SUM_UNITS * (WINDOW * (self.parts + 1) + STEPS * self.parts) + 2 * (1 + self.slice_windows) + self.slices - 1

    def parameters(self) -> dict[str, Any]:
        """Of a second and a third matrix, where there is one."""
        return {name: value for name, value in super().parameters().items() if value or name not in ("n2", "n3")}

    def early(self) -> KernelType:
        return replace(self, pdl=True)

    def with_residual(self) -> KernelType | None:
        return None if self.residual else replace(self, residual=True)

    def joined(self, others: Sequence[KernelType]) -> KernelType | None:
        """With those settings of all these kernels that keep an H200 busy for the shortest time, or with other blocks if they
        do for a clearly shorter one: bits are the same with any. None if launches of their own take less. Where weights are
        staged with this one's settings, and as many slices as keep it busy, which changes bits."""
        wide = self.beside(others)
        if wide is None:
            return None
        if self.staged:
            return wide._sliced()
        apart = [one for one in (self, *others) if isinstance(one, WgmmaGemm)]
        own, other = (
            min((replace(one, n=wide.n, n2=wide.n2, n3=wide.n3) for one in settings), key=WgmmaGemm._time)
            for settings in (apart, self._other_blocks())
        )
        best = other if other._time() < (1 - MARGIN) * own._time() else own
        return best if best._time() <= sum(one._time() for one in apart) else None

    def _sliced(self) -> WgmmaGemm:
        """This kernel with as many slices as an H200 has multiprocessors for, each with a window."""
        most = max(1, min(self.windows, MULTIPROCESSORS // self.groups))
        each = -(-self.windows // most)
        return replace(self, slices=-(-self.windows // each))

    def _other_blocks(self) -> Iterator[WgmmaGemm]:
        """This kernel with other blocks that fit."""
        for warpgroups, columns, unpacked in (LARGE_BLOCKS if self.format.name == "Q4_K" else ()) + BLOCKS:
            if 2 * StageLayout(columns, self.parts).bytes <= HOPPER.max_shared:
                unpacked = 2 if self.format.half_low and self.parts == 2 else unpacked
                yield replace(self, warpgroups=warpgroups, columns=columns, stages=2, unpacked=unpacked)

    def _time(self) -> int:
        """How long a launch takes, in a unit of all for the same k, if a multiprocessor has one block at a time: rounds of
        blocks, in each of which every warpgroup multiplies and unpacks, and the columns are copied. benchmarks/LOG.md says
        how far what was measured on an H200 is from it."""
        rounds = -(-self.groups // MULTIPROCESSORS)
        columns, unpacking = self.columns * self.parts, UNPACKING_LOW if self.format.half_low else UNPACKING
        return rounds * (self.warpgroups * (columns + unpacking) + columns)

    def launch(self) -> LaunchConfig:
        return LaunchConfig(
            grid=self.groups * self.slices, block=WARPGROUP_SIZE * self.warpgroups,
            early=self.pdl, dynamic_shared=self.dynamic_shared,
        )  # fmt: skip

    def emit(self, k: KernelBuilder) -> None:
        block = WarpgroupTile(self, k)
        block.add_rows()
        block.store()

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[WgmmaGemm]:
        if fixed["format"].name == "Q4_K":
            yield cls(m=9, k=1024, n=65, warpgroups=1, columns=16, **fixed)
            yield cls(m=1, k=256, n=1, parts=1, warpgroups=2, columns=8, stages=2, unpacked=1, **fixed)
            yield cls(m=3, k=1280, n=65, n2=7, n3=64, warpgroups=1, columns=8, staged=True, slices=3, **fixed)
        else:
            yield cls(m=1, k=512, n=7, warpgroups=1, columns=8, stages=2, unpacked=2, residual=True, **fixed)
