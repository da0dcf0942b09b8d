"""How a warp goes along a row of blocks for `dp4a`: one packed fragment a lane and step. What is done with the fragments is the
caller's business; iteration.py is the same for f32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats import Format
from ptxgen.formats.format import LaneAddress
from ptxgen.formats.packed import Bytes, Run
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.target import WARP_SIZE

MOST_LANE_GROUPS: Final = 4
"""Rows that a warp goes along side by side. Rows that an eighth of a warp would have lanes for are of no model."""


@dataclass(frozen=True)
class Fragments:
    """The steps of a warp, or of a group of so many of its lanes, over a row of `k` values: consecutive lanes take consecutive
    fragments."""

    format: Format
    k: int
    lanes: int = WARP_SIZE

    @classmethod
    def by_lane_groups(cls, format: Format, k: int) -> Fragments:
        """Those of a half or a quarter of a warp if it has a lane for every fragment of a row, so that the other lanes can have
        other rows; else of a warp."""
        needed, lanes = k // format.block * format.fragments, WARP_SIZE
        while lanes > WARP_SIZE // MOST_LANE_GROUPS and needed <= lanes // 2:
            lanes //= 2
        return cls(format, k, lanes)

    @property
    def lane_groups(self) -> int:
        """Rows that a warp goes along side by side."""
        return WARP_SIZE // self.lanes

    @property
    def blocks(self) -> int:
        """Blocks of a step."""
        return self.lanes // self.format.fragments

    @property
    def values(self) -> int:
        """Values of a step."""
        return self.blocks * self.format.block

    @property
    def bytes(self) -> int:
        """Bytes of a step."""
        return self.blocks * self.format.block_bytes

    @property
    def steps(self) -> int:
        """Steps of a row, the last of which may be partial."""
        return -(-self.k // self.values)

    @property
    def rest(self) -> int:
        """Blocks of the last step if it is partial, else 0."""
        return self.k % self.values // self.format.block

    def first_value(self, lane: int) -> int:
        """The lane's first value in a step."""
        block, fragment = divmod(lane, self.format.fragments)
        group, column = divmod(fragment, self.format.columns // self.format.packed_width)
        return (
            block * self.format.block
            + group * self.format.packed_depth * self.format.columns
            + column * self.format.packed_width
        )

    def lane(self, k: KernelBuilder) -> FragmentLane:
        """The place of each lane in a step."""
        lane_group, place = (k.lane // self.lanes, k.lane % self.lanes) if self.lane_groups > 1 else (0, k.lane)
        block, fragment = _divided(place, self.format.fragments, self.lanes)
        group, column = _divided(fragment, self.format.columns // self.format.packed_width)
        return FragmentLane(self, lane_group, place, block, group, column * self.format.packed_width)


def _divided(index: Index, divisor: int, size: int = WARP_SIZE) -> tuple[Index, Index]:
    """Quotient and remainder of an index below `size`, as constants where they are."""
    if divisor == 1:
        return index, 0
    if divisor == size:
        return 0, index
    return index // divisor, index % divisor


@dataclass(frozen=True)
class Cursor:
    """Where a lane's fragment of some step lies: its block, and its first column there."""

    fragments: Fragments
    block: Bytes
    column: Bytes

    def moved(self, steps: Index) -> Cursor:
        """So many steps further."""
        block = advance(self.block, steps, self.fragments.bytes)
        if self.column is self.block:
            return Cursor(self.fragments, block, block)
        return Cursor(self.fragments, block, advance(self.column, steps, self.fragments.bytes))


@dataclass(frozen=True)
class FragmentLane:
    """Which fragment of a step a lane takes: its block, and there its group and its first column. Before that its lane group of
    the warp, and its place among the lanes of that. Constants or u32."""

    fragments: Fragments
    lane_group: Index
    place: Value
    block: Index
    group: Index
    column: Index

    @property
    def first_value(self) -> Index:
        """The lane's first value in a step."""
        format = self.fragments.format
        return self.block * format.block + self.group * (format.packed_depth * format.columns) + self.column

    @property
    def takes_rest(self) -> Value:
        """The lanes that have a block in the last, partial step."""
        return self._block_value < self.fragments.rest

    def start(self, row: Bytes) -> Cursor:
        """The lane's fragment of the first step of a row of bytes."""
        return self._at(advance(row, self.block, self.fragments.format.block_bytes))

    def start_of_rest(self, k: KernelBuilder, row: GlobalArray) -> Cursor:
        """The lane's fragment of the partial last step of a row: `start_in_rest`."""
        block = self._block_in_rest(k)
        return self._in_rest(row.at((self.fragments.steps - 1) * self.fragments.bytes), block)

    def start_in_rest(self, k: KernelBuilder, step: Bytes) -> Cursor:
        """The lane's fragment of the partial last step, which starts there; a lane without one is sent to the last block, whose
        load is for nothing, so that loads need no branch."""
        return self._in_rest(step, self._block_in_rest(k))

    def to_rest(self, k: KernelBuilder) -> Value:
        """Bytes, modulo 2^32, from the lane's fragment of the first step to that of the partial last one, which is not the
        first: see `start_in_rest`."""
        last = k.min(self._block_value, self.fragments.rest - 1)
        block_bytes = self.fragments.format.block_bytes
        away: Value = (last - self._block_value) * block_bytes + (self.fragments.steps - 1) * self.fragments.bytes
        return away

    def of_block(self, row: Bytes, block: Index) -> Cursor:
        """The lane's fragment of a block of a row of bytes."""
        return self._at(advance(row, block, self.fragments.format.block_bytes))

    def load(self, k: KernelBuilder, cursor: Cursor) -> tuple[Value, ...]:
        """Write the loads of the lane's fragment."""
        place = LaneAddress(cursor.block, cursor.column, self.column)
        return self.fragments.format.load_packed(k, place, self.group)

    def unpack(self, k: KernelBuilder, raw: Sequence[Value]) -> list[Run]:
        """The runs of the lane's fragment, from what `load` loaded."""
        return self.fragments.format.unpack(k, raw, self.group)

    def _block_in_rest(self, k: KernelBuilder) -> Index:
        rest = self.fragments.rest
        return k.min(self._block_value, rest - 1) if rest > 1 else 0

    def _in_rest(self, step: Bytes, block: Index) -> Cursor:
        return self._at(advance(step, block, self.fragments.format.block_bytes))

    def _at(self, block: Bytes) -> Cursor:
        return Cursor(self.fragments, block, advance(block, self.column, 1))

    @property
    def _block_value(self) -> Value:
        if isinstance(self.block, int):
            raise ValueError(f"a row of {self.fragments.format} has no partial step")
        return self.block
