"""Row groups of hw_dp4a: a warp computes its rows group after group, while the activations stay in shared memory. The steps of
all row groups are one sequence: loads continue from one group into the next, so that memory is busy while sums are reduced.
The text has one row group, or as few as the loop needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.chunks import Raw, Warp, in_variable, registers, step_size
from ptxgen.kernels.gemv.fragments import Cursor
from ptxgen.types import F32

# Bytes of which every multiple is a constant offset that no format's loads mind: what is aligned stays so.
ALIGNED = 16


class RowGroups:
    """The rows of a warp, `results_at_once` of each matrix a row group. Weights of `ahead` steps are in flight: when
    a step is used, the one `ahead` steps later is loaded into the same registers. The first are loaded here."""

    def __init__(self, warp: Warp) -> None:
        self.warp, self.k = warp, warp.k
        blocks, self.steps = warp.blocks, warp.fragments.steps
        self.row_groups = blocks.warp_results // blocks.results_at_once
        self.ahead, self.in_text = _pass(self.row_groups, self.steps, min(blocks.ahead, _most_ahead(blocks)))
        self._at_once = blocks.lane_results
        self._row_bytes = blocks.format.row_bytes(blocks.k) * warp.fragments.lane_groups
        """From a row of the lane to its next one."""
        self._rest = warp.fragments.rest > 0
        self._cursors = warp.cursors[: len(blocks.weights)]
        """Of the first row of each matrix: the others are so many bytes further."""
        if self._rest and self.steps == 1:
            self._cursors = [warp.lane.start_of_rest(self.k, row) for row in warp.rows[: len(blocks.weights)]]
        elif self._rest:
            self._to_rest = warp.lane.to_rest(self.k)
        self._loops = self.in_text < self.row_groups
        if self._loops:
            self._cursors = [_moving(self.k, cursor) for cursor in self._cursors]
        count = min(self.ahead, self.row_groups * self.steps)
        self._raw = [[tuple(in_variable(self.k, one) for one in raw) for raw in self._load(step)] for step in range(count)]

    def sums(self, load_early: Callable[[], None]) -> list[Value]:
        """Write all row groups; returns, for each matrix, the sum of each row of the warp in the lane that has it (Warp.own).
        Activations are staged. load_early: writes the loads that the epilogue needs, which come first."""
        load_early()
        k = self.k
        kept = [k.variable(0.0, F32) for _ in self.warp.blocks.weights]
        if not self._loops:
            self._write_pass(kept, self.warp.lane.place, None)
            return kept
        place = in_variable(k, self.warp.lane.place)
        """The lane's number among the rows of its lane group from those of this pass on, modulo 2^32."""
        rows = self.in_text * self._at_once
        for row_group in k.strided(0, self.row_groups, step=self.in_text):
            self._write_pass(kept, place, row_group < self.row_groups - self.in_text)
            for cursor in self._cursors:
                for pointer in _pointers(cursor):
                    k.assign(pointer.base, pointer.base + rows * self._row_bytes)
            k.assign(place, place - rows)
        return kept

    def _write_pass(self, kept: list[Value], place: Value, more: Value | None) -> None:
        """Write the row groups of the text. more: whether a pass follows, None if none ever does."""
        k, warp, in_text = self.k, self.warp, self.in_text * self.steps
        for step in range(in_text):
            raw, in_group = self._raw[step % self.ahead], step % self.steps
            if in_group == 0:
                for (total,) in warp.totals:
                    k.assign(total, 0.0)
            if self._rest and in_group == self.steps - 1:
                with k.when(warp.lane.takes_rest):
                    warp.add_step(raw, range(1), in_group)
            else:
                warp.add_step(raw, range(1), in_group)
            if step + self.ahead < in_text:
                self._load_again(raw, step + self.ahead)
            elif more is not None:
                with k.when(more):
                    self._load_again(raw, step + self.ahead)
            if in_group == self.steps - 1:
                self._keep(kept, place, step // self.steps)

    def _keep(self, kept: list[Value], place: Value, row_group: int) -> None:
        """Reduce the sums of a row group, and leave each in the lane of its row."""
        k, weights = self.k, len(kept)
        for number, (total,) in enumerate(self.warp.totals):
            row, matrix = divmod(number, weights)
            mine = place == row_group * self._at_once + row
            k.assign(kept[matrix], k.select(mine, self.warp.sum(total), kept[matrix]))

    def _load_again(self, raw: Raw, step: int) -> None:
        for old, new in zip(raw, self._load(step), strict=True):
            for register, value in zip(old, new, strict=True):
                self.k.assign(register, value)

    def _load(self, step: int) -> Raw:
        """Load this step of the text, or of what follows it."""
        row_group, in_group = divmod(step, self.steps)
        rows = range(row_group * self._at_once, (row_group + 1) * self._at_once)
        cursors = [_further(cursor, row * self._row_bytes) for row in rows for cursor in self._cursors]
        if self._rest and in_group == self.steps - 1 > 0:
            cursors = [_with(cursor, lambda pointer: pointer.at(self._to_rest)) for cursor in cursors]
        else:
            cursors = [cursor.moved(in_group) for cursor in cursors]
        return [self.warp.lane.load(self.k, cursor) for cursor in cursors]


def _pass(row_groups: int, steps: int, most_ahead: int) -> tuple[int, int]:
    """How many steps to load ahead, at most `most_ahead`, and how many row groups the text has: as few as a loop needs that
    finds the weights of a step in the same registers each time. A text of more takes more registers than there are."""
    for ahead in range(most_ahead, 1, -1):
        if steps % ahead == 0:
            return ahead, 1
        if ahead % steps == 0 and row_groups % (ahead // steps) == 0:
            return ahead, ahead // steps
    return 1, 1


def _most_ahead(blocks: Blocks) -> int:
    """Steps of weights to load ahead so that these take 3 of 8 registers at most: the step in use needs about as many."""
    return max(1, registers(blocks) * 3 // 8 // step_size(blocks).registers)


def _pointers(cursor: Cursor) -> list[GlobalArray]:
    """The block's, and the column's if it is another."""
    return [cast("GlobalArray", one) for one in (cursor.block, cursor.column)[: 1 + (cursor.column is not cursor.block)]]


def _with(cursor: Cursor, change: Callable[[GlobalArray], GlobalArray]) -> Cursor:
    """Each pointer changed."""
    block, *column = map(change, _pointers(cursor))
    return Cursor(cursor.fragments, block, *(column or [block]))


def _moving(k: KernelBuilder, cursor: Cursor) -> Cursor:
    """The cursor in registers that a loop changes."""
    return _with(cursor, lambda pointer: replace(pointer, base=in_variable(k, pointer.base)))


def _further(cursor: Cursor, nbytes: int) -> Cursor:
    """So many bytes further."""
    if nbytes % ALIGNED == 0:
        return _with(cursor, lambda pointer: pointer.at(nbytes)) if nbytes else cursor
    return _with(cursor, lambda pointer: replace(pointer, base=pointer.base + nbytes))
