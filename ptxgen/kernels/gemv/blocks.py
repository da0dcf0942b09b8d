"""The blocks of threads of a GEMV on int8 planes that multiply matrices of one format: their settings, and the sizes that
follow from these. How they go along a row stands in chunks.py, row_groups.py and weight_pipeline.py."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import PIPELINE_SHARED
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.gemv.fragments import Fragments
from ptxgen.kernels.gemv.pipeline_layout import LINE, PIECE, PipelineLayout
from ptxgen.kernels.gemv.shared_planes import Layout, chunks, dynamic_bytes
from ptxgen.kernels.gemv.source import PlaneSource
from ptxgen.kernels.segments import BlockMatrix, LastMatrix, MatrixOfBlock
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE

MOST_RESIDENT: Final = 2048
"""Threads of a multiprocessor."""

MOST_STAGES: Final = 32
"""Of a pipeline: more are of no use."""


@dataclass(frozen=True)
class Blocks:
    """A warp takes rows_per_warp rows, a block num_warps warps. Where a half or a quarter of a warp has a lane for every
    fragment of a row (k up to 1024 or 512 of Q4_K), each half or quarter takes rows_per_warp rows of its own, so a warp has two
    or four times as many, with the bits of a whole warp. Settings are as in HwDp4aGemv."""

    name: str = field(compare=False)
    """Of the kernel, for messages."""
    format: Format
    source: PlaneSource
    matrices: tuple[int, ...]
    """The rows of each matrix of which a block has rows of one."""
    num_warps: int
    rows_per_warp: int
    ahead: int
    resident_threads: int
    pdl: bool
    row_groups: int
    stages: int
    weights: tuple[str, ...] = ("w",)
    """The matrices that a warp has rows of: those of the same numbers of each, which rows_per_warp counts together."""
    kept_bytes: int = 0
    """Bytes of static shared memory that the epilogues take for each result of a block."""
    paced: bool = False
    """Whether the first copies into a stage start when those of the previous stage have arrived, and not all at once: before
    the previous launch has ended, copies in flight delay its end."""
    late_from: int | None = None
    """Where copies are paced, the block from which on blocks start the copies of later stages only when they have waited for
    the previous launch and loaded the activations; None where none does."""
    beside: bool = False
    """Whether other blocks of the launch have another format: the activations are in the shared memory that the launch asks
    for, in the form of this one's, never in static memory, of which the other blocks would want more."""
    first: int = 0
    """Blocks of the launch before these."""
    number: int = 1
    """That of the first matrix among all of the launch; the arguments of the second have 2 behind their names."""

    # What is multiplied

    @property
    def k(self) -> int:
        """Values of a row."""
        return self.source.k

    @property
    def n(self) -> int:
        """Rows of the first matrix."""
        return self.matrices[0]

    @property
    def digits(self) -> int:
        """Int8 planes of an activation."""
        return self.source.digits

    @property
    def tokens(self) -> int:
        """Rows of activations."""
        return self.source.tokens

    @cached_property
    def fragments(self) -> Fragments:
        """How a warp goes along a row."""
        return Fragments.by_lane_groups(self.format, self.k)

    def matrix_of_block(self, k: KernelBuilder) -> BlockMatrix | None:
        """Which of several matrices a block has rows of; None where there is one."""
        if self.number > 1:
            block = k.ctaid.x - self.first
            return LastMatrix(k, number=self.number, n=self.n, block=block, block_rows=self.block_rows)
        return MatrixOfBlock(self, k, k.ctaid.x, at_once=("w",)) if len(self.matrices) > 1 else None

    # Rows of warps and blocks

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.num_warps * WARP_SIZE

    @property
    def threads_at_once(self) -> int:
        """Threads whose registers a multiprocessor holds. A lane that loads bytes which others have their codes in, too, takes
        as many times the registers, and has as many times the values in flight."""
        return max(1, self.resident_threads // self.format.shared_bytes)

    @property
    def in_row_groups(self) -> bool:
        """Whether a warp's sums end in the lanes of their rows, as several row groups leave them, and all its rows are
        there."""
        return self.row_groups > 1 or self.stages > 0

    @property
    def lane_results(self) -> int:
        """Results whose rows of weights a lane has fragments of at once, which share each read of the activations."""
        return self.rows_per_warp // len(self.weights)

    @property
    def results_at_once(self) -> int:
        """Results whose rows of weights a warp has at once."""
        return self.lane_results * self.fragments.lane_groups

    @property
    def warp_results(self) -> int:
        """Results of a warp in all."""
        return self.results_at_once * self.row_groups

    @property
    def block_rows(self) -> int:
        """Results of a block of threads."""
        return self.num_warps * self.warp_results

    @property
    def count(self) -> int:
        """Blocks that there are."""
        return sum(-(-n // self.block_rows) for n in self.matrices)

    @property
    def whole(self) -> bool:
        """Whether every warp has `warp_results` rows of the first matrix from `first_row` on."""
        return self.n % self.block_rows == 0

    def first_row(self, k: KernelBuilder) -> Value:
        """The number of the warp's first result."""
        first: Value = (k.ctaid.x * self.num_warps + k.warp) * self.warp_results
        return first

    @property
    def most_results(self) -> tuple[int, str]:
        """How many results a warp may have whose sums end in the lanes of their rows, and of what there are so many."""
        return min((WARP_SIZE, "lanes"), (min(self.matrices), "rows of a matrix"))

    # Shared memory

    @property
    def stages_at_once(self) -> bool:
        """Whether all activations of a row are in shared memory together."""
        return self.in_row_groups or len(chunks(self.format, self.k, 1, self.digits)) == 1

    @cached_property
    def dynamic_shared(self) -> int:
        """Bytes of shared memory that the launch asks for; 0 where what is static does."""
        if self.stages or self.beside:
            return self.pipelined_bytes(self.stages)
        return dynamic_bytes(self.format, self.k, self.tokens, self.digits)

    @property
    def static_bytes(self) -> int:
        """Bytes of the static arrays in shared memory that stand beside activations and pipelines."""
        return self.source.static_bytes + self.block_rows * self.kept_bytes

    @cached_property
    def pipeline_layout(self) -> PipelineLayout:
        """The pipeline of a warp."""
        return PipelineLayout(self.fragments, self.rows_per_warp, self.row_groups, self.stages)

    @property
    def pipeline_start(self) -> int:
        """Where the pipelines of a block begin: behind all activations."""
        return -(-Layout(self.format, self.k, 1, self.digits).bytes // LINE) * LINE

    def pipelined_bytes(self, count: int) -> int:
        """Bytes of shared memory that all activations and pipelines of so many stages take."""
        return self.pipeline_start + self.num_warps * replace(self.pipeline_layout, wanted=count).bytes

    def fits_stages(self, count: int) -> bool:
        """Whether a pipeline can have so many stages, and a warp its rows."""
        room = self.pipelined_bytes(count) + self.static_bytes <= PIPELINE_SHARED
        return self.pipeline_layout.aligned and room and self.warp_results <= self.most_results[0]

    # What is refused

    def check_numbers(self) -> None:
        """ArgumentError for settings that are beyond their limits, whatever the others are."""
        require(self, "num_warps", high=32)
        require(self, "rows_per_warp", high=8, multiple=len(self.weights))
        require(self, "ahead", high=8)
        require(self, "resident_threads", high=MOST_RESIDENT)
        require(self, "row_groups", high=WARP_SIZE)
        require(self, "stages", low=0, high=MOST_STAGES)

    def check(self) -> None:
        """ArgumentError for settings that there cannot be together."""
        self.source.check(self.name, pdl=self.pdl)
        if self.source.row_parts > 1 and not self.stages_at_once:
            raise self._does_not_fit("row_parts")
        if self.stages:
            self._check_pipeline()
        elif self.row_groups > 1 and len(chunks(self.format, self.k, 1, self.digits)) > 1:
            raise self._does_not_fit("row_groups")
        if self.in_row_groups:
            self._check_row_groups()

    def _does_not_fit(self, setting: str) -> ArgumentError:
        return ArgumentError(
            f"{self.name}: {setting} must be 1 where activations do not fit shared memory at once, as {self.digits} planes of "
            f"k={self.k}"
        )

    def _check_pipeline(self) -> None:
        if self.pdl:
            raise ArgumentError(
                f"{self.name}: with a pipeline, which is filled before the launch before has ended, pdl must be False"
            )
        if not self.pipeline_layout.aligned:
            raise ArgumentError(
                f"{self.name}: stages must be 0 where rows are no whole pieces of {PIECE} bytes, as those of k={self.k}"
            )
        taken = self.dynamic_shared + self.static_bytes
        if taken > PIPELINE_SHARED:
            raise ArgumentError(
                f"{self.name}: stages must be smaller than {self.stages}, with which a block takes {taken} bytes of shared "
                f"memory; there are {PIPELINE_SHARED}"
            )

    def _check_row_groups(self) -> None:
        what = "row_groups" if self.row_groups > 1 else "rows_per_warp"
        if self.tokens > 1:
            one = "row_groups must be 1" if self.row_groups > 1 else "stages must be 0"
            raise ArgumentError(f"{self.name}: {one} for several rows of activations, here {self.tokens}")
        most, of = self.most_results
        if self.warp_results > most:
            raise ArgumentError(
                f"{self.name}: {what} must be fewer than {getattr(self, what)}, in which a warp has {self.warp_results} rows: "
                f"there are {most} {of}"
            )
