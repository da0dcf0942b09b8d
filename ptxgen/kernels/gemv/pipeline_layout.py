"""The pipeline of stages in shared memory that a warp of hw_dp4a has its weights copied into: its sizes, known before a kernel
is written. What fills and reads it stands in weight_pipeline.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ptxgen.kernels.gemv.fragments import Fragments

PIECE: Final = 16
"""What bulk copies start at a multiple of, and have a multiple of bytes of (PTX ISA 9.7.9.25.4.1)."""

LINE: Final = 128
"""Bytes of a line of the L2 cache. Copies of parts of lines were twice as slow (benchmarks/LOG.md)."""

BARRIER: Final = 16
"""Bytes before the weights of a stage, of which its mbarrier takes the first 8."""


@dataclass(frozen=True)
class PipelineLayout:
    """The pipeline of a warp: `count` stages, each with the same part of all rows that the warp has at once."""

    fragments: Fragments
    rows: int
    """Copies of a stage: one for all lane groups of the warp, whose rows are neighbours."""
    row_groups: int
    wanted: int
    """Stages that the kernel says; a warp that never fills so many has fewer."""

    @property
    def steps(self) -> int:
        """Steps of a part of a row: as few as are whole lines. The last may have fewer."""
        step = self.fragments.bytes
        return min(self.fragments.steps, next(count for count in range(1, LINE + 1) if count * step % LINE == 0))

    @property
    def parts(self) -> int:
        """Parts of a row."""
        return -(-self.fragments.steps // self.steps)

    @property
    def total(self) -> int:
        """Stages that a warp fills in all."""
        return self.row_groups * self.parts

    @property
    def count(self) -> int:
        """Stages that there are."""
        return min(self.wanted, self.total)

    @property
    def row_bytes(self) -> int:
        """Bytes of the rows that the lane groups of the warp have beside each other."""
        return self.fragments.format.row_bytes(self.fragments.k) * self.fragments.lane_groups

    @property
    def part_bytes(self) -> int:
        """Bytes of a copy, but for those of the last part of a row."""
        return min(self.row_bytes, self.steps * self.fragments.bytes * self.fragments.lane_groups)

    @property
    def last_bytes(self) -> int:
        """Bytes of a copy of the last part."""
        return self.row_bytes - (self.parts - 1) * self.part_bytes

    @property
    def stride(self) -> int:
        """Bytes from a stage to the next."""
        return BARRIER + self.rows * self.part_bytes

    @property
    def bytes(self) -> int:
        """Shared memory of a warp."""
        return self.count * self.stride

    @property
    def aligned(self) -> bool:
        """Whether bulk copies can bring the rows."""
        row = self.fragments.format.row_bytes(self.fragments.k)  # the last warp may begin at any row
        return row % PIECE == 0 and self.part_bytes % PIECE == 0
