"""The pieces in which a warp copies and multiplies rows of weights."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.formats import Format
from ptxgen.kernels.gemv.fragments import Fragments

PIECE = 16
"""Bytes of a copy of a lane."""

SEGMENT_BYTES = 2304
"""About what a warp copies of a row at a time: two steps of Q4_K, four of Q8_0. What a copy costs beside its bytes is a fifth
of the instructions of a step."""


@dataclass(frozen=True)
class Segments:
    """The pieces in which rows of k values of a format are copied and multiplied: whole steps of a warp (fragments.py)."""

    format: Format
    k: int

    @property
    def fragments(self) -> Fragments:
        """How a warp goes along a row."""
        return Fragments(self.format, self.k)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.format.row_bytes(self.k)

    @property
    def steps(self) -> int:
        """Steps of a segment; the last of a row may have fewer."""
        return min(self.fragments.steps, max(1, SEGMENT_BYTES // self.fragments.bytes))

    @property
    def bytes(self) -> int:
        """Bytes of a segment, but for the last of a row."""
        return min(self.row_bytes, self.steps * self.fragments.bytes)

    @property
    def count(self) -> int:
        """Segments of a row."""
        return -(-self.fragments.steps // self.steps)

    @property
    def last_bytes(self) -> int:
        """Bytes of the last segment of a row."""
        return self.row_bytes - (self.count - 1) * self.bytes

    @property
    def last_steps(self) -> int:
        """Steps of the last segment of a row."""
        return self.fragments.steps - (self.count - 1) * self.steps

    @property
    def aligned(self) -> bool:
        """Whether all of them start at multiples of 16 bytes and have such a number of bytes."""
        return self.row_bytes % PIECE == 0 and (self.count == 1 or self.bytes % PIECE == 0)

    @property
    def stage_bytes(self) -> int:
        """What a segment takes in the pipeline: with the bytes around it that share 16 bytes with it."""
        return self.bytes if self.aligned else (self.bytes + 2 * (PIECE - 1)) // PIECE * PIECE
