"""The weight pipeline of hw_dp4a: bulk copies bring the weights of a warp into its own stages in shared memory, ahead of their
use. A copy in flight takes no registers and no place in the queue of loads, so activations and weights do not wait for each
other. No kernel writes weights, so the first copies start before the previous kernel has ended. A warp reads a whole stage
before it multiplies it, so that the refill starts at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ptxgen.dsl.memory import Element, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.chunks import Raw, Warp
from ptxgen.kernels.gemv.fragments import Cursor
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.kernels.gemv.pipeline_layout import BARRIER
from ptxgen.target import FULL_WARP
from ptxgen.types import F32, U8, U32, U64

WRITTEN_OUT: Final = 8
"""Steps of a row group that are written out; longer rows loop over stages."""


@dataclass(frozen=True)
class WeightStage:
    """Where a stage is, and the parity of the phase of its mbarrier in which what is wanted comes."""

    base: Value
    offset: int
    parity: Value

    def at(self, offset: int) -> Element:
        """So many bytes behind its beginning, where its mbarrier is."""
        return Element("shared", self.base.register, self.offset + offset, U8)


class WeightPipeline:
    """The rows of a warp, `results_at_once` of each matrix in a row group, part after part. Copies are begun by one lane, those
    of the first stages here, and in blocks that come late by `fill_late`."""

    def __init__(self, warp: Warp, start: int) -> None:
        """start: where the pipelines of all warps begin in the shared memory that the launch asks for."""
        self.warp, self.k = warp, warp.k
        k, blocks = warp.k, warp.blocks
        self.layout = blocks.pipeline_layout
        self._matrices = len(blocks.weights)
        late_from = blocks.late_from if self.layout.count > 1 else None
        self._late_from = late_from if late_from is not None and late_from < blocks.count else None
        self._at_once = blocks.lane_results
        self._group_bytes = self._at_once * self.layout.row_bytes
        """From the rows of a row group to those of the next."""
        pipelines = k.symbol_address(k.dynamic_shared(U8).name)
        self._first = k.mad(k.warp, self.layout.bytes, pipelines + start)
        self._sources = warp.rows[: self._matrices]
        with k.when(self._leads()):
            for number in range(self.layout.count):
                k.mbarrier_init(self._stage(number).at(0).address, 1)
            k.fence_mbarrier_init()
            self._fill(range(1 if blocks.paced else self.layout.count))
        if blocks.paced and self.layout.count > 1:
            k.bar_warp_sync(FULL_WARP)  # all lanes see the mbarriers
            with nullcontext() if self._late_from is None else k.when(k.ctaid.x < self._late_from):
                self._fill_paced()

    def fill_late(self) -> None:
        """Begin the first copies that are not begun yet (Blocks.late_from): behind the loads of activations."""
        if self._late_from is not None:
            with self.k.when(self._leads() & (self.k.ctaid.x >= self._late_from)):
                self._fill(range(1, self.layout.count))

    def sums(self, load_early: Callable[[], None]) -> list[Value]:
        """Write all row groups; returns, for each matrix, the sum of each row of the warp in the lane that has it (Warp.own).
        Activations are staged. load_early: writes the loads that the epilogue needs. In a loop they come first; else after the
        last refill, whose fence would wait for them."""
        kept = [self.k.variable(0.0, F32) for _ in range(self._matrices)]
        written_out = self.layout.fragments.steps <= WRITTEN_OUT and self.layout.row_groups == 1
        refilled = self.layout.total - self.layout.count if written_out else 0
        if not refilled:
            load_early()
        if self.layout.fragments.steps > WRITTEN_OUT:
            self._write_parts(kept)
        elif self.layout.row_groups > 1:
            self._write_row_groups(kept)
        else:
            for part in range(self.layout.parts):
                refill = self._refiller(self._stage(part), part)
                last = part == refilled - 1
                self._add_part(part, self._stage(part), partial(_one_by_one, refill, load_early) if last else refill)
            self._keep(kept, self.warp.lane.place)
        return kept

    # The text: a row group, a row group in a loop, or a part of a row in a loop

    def _write_row_groups(self, kept: list[Value]) -> None:
        """The loop over row groups."""
        k, layout = self.k, self.layout
        self._sources = [replace(source, base=k.variable(source.base, U64)) for source in self._sources]
        place, stage = k.variable(self.warp.lane.place, U32), self._moving()
        for row_group in k.strided(0, layout.row_groups):
            for part in range(layout.parts):
                self._add_part(part, stage, self._refiller(stage, part, row_group))
                self._advance(stage)
            self._keep(kept, place)
            for source in self._sources:
                k.assign(source.base, source.base + self._group_bytes)
            k.assign(place, place - self._at_once)

    def _write_parts(self, kept: list[Value]) -> None:
        """The loop over the parts of the rows of all row groups."""
        k, layout, warp = self.k, self.layout, self.warp
        row_group, coming = divmod(layout.count, layout.parts)
        ahead = row_group * self._group_bytes + coming * layout.part_bytes
        self._sources = [replace(one, base=k.variable(one.base + ahead, U64)) for one in self._sources]
        place, stage = k.variable(warp.lane.place, U32), self._moving()
        part, coming_part = k.variable(0, U32), k.variable(coming, U32)
        blocks, of_row = layout.steps * layout.fragments.blocks, layout.fragments.k // layout.fragments.format.block
        everywhere = of_row % blocks == 0
        whole = everywhere or layout.parts > layout.count  # else lanes past the end of a row would load what is not there yet
        for number in k.strided(0, layout.total):
            start = self._wait(stage)
            first = k.mad(part, blocks, warp.lane.block)
            loaded = [self._load(start, step) for step in range(layout.steps)] if whole else []
            if whole:
                self._refill(stage, number, coming_part)
            for step in range(layout.steps):
                with nullcontext() if everywhere else k.when(first + step * layout.fragments.blocks < of_row):
                    warp.add_step(loaded[step] if whole else self._load(start, step), range(1), part * layout.steps, step)
            if not whole:
                self._refill(stage, number, coming_part)
            self._advance(stage)
            last = part == layout.parts - 1
            k.assign(part, k.select(last, k.u32(0), part + 1))
            with k.when(last):
                self._keep(kept, place)
                self._begin()
                k.assign(place, place - self._at_once)

    def _add_part(self, part: int, stage: WeightStage, refill: Callable[[], None]) -> None:
        """Add the steps of this part of the rows, and call `refill` when all loads from the stage are issued."""
        k, warp, layout = self.k, self.warp, self.layout
        start = self._wait(stage)
        if part == 0:
            self._begin()
        first = part * layout.steps
        last = min(first + layout.steps, layout.fragments.steps)
        rest = layout.fragments.rest > 0 and last == layout.fragments.steps
        loaded = [self._load(start, step - first) for step in range(first, last - rest)]
        if not rest:
            refill()
        for step, raw in enumerate(loaded, first):
            warp.add_step(raw, range(1), step)
        if rest:
            with k.when(warp.lane.takes_rest):
                warp.add_step(self._load(start, last - 1 - first), range(1), last - 1)
            refill()

    def _begin(self) -> None:
        """Of rows that follow."""
        for (total,) in self.warp.totals:
            self.k.assign(total, 0.0)

    def _keep(self, kept: list[Value], place: Value) -> None:
        """Reduce the sums of a row group, and leave each in the lane of its row. place: the lane's number among the rows of its
        lane group from those of this row group on, modulo 2^32."""
        k = self.k
        for number, (total,) in enumerate(self.warp.totals):
            row, matrix = divmod(number, self._matrices)
            k.assign(kept[matrix], k.select(place == row, self.warp.sum(total), kept[matrix]))

    # Stages

    def _stage(self, number: int) -> WeightStage:
        """That of the part of this number among all that the warp takes."""
        around, place = divmod(number, self.layout.count)
        return WeightStage(self._first, place * self.layout.stride, self.k.u32(around & 1))

    def _moving(self) -> WeightStage:
        """The first one, in registers that `_advance` changes."""
        return WeightStage(self.k.variable(self._first, U32), 0, self.k.variable(0, U32))

    def _advance(self, stage: WeightStage) -> None:
        k = self.k
        after = stage.base + self.layout.stride
        around = after == self._first + self.layout.bytes
        k.assign(stage.base, k.select(around, self._first, after))
        k.assign(stage.parity, k.select(around, stage.parity ^ 1, stage.parity))

    def _wait(self, stage: WeightStage) -> SharedPart:
        """Wait for what comes into the stage; returns where it is."""
        k = self.k
        with k.loop() as loop:
            loop.break_if(k.mbarrier_try_wait_parity(stage.at(0).address, stage.parity))
        return SharedPart(k, stage.base, U8, stage.offset + BARRIER)

    def _load(self, start: SharedPart, step: int) -> Raw:
        """Load the lane's fragments of a step of the part that starts there."""
        layout, lane = self.layout, self.warp.lane
        own = advance(start, lane.lane_group, layout.row_bytes // layout.fragments.lane_groups)
        first = lane.start(own).moved(step)
        return [lane.load(self.k, _further(first, number * layout.part_bytes)) for number in range(layout.rows)]

    # Copies

    # Lanes read a stage by ordinary loads; a bulk copy, which goes through the asynchronous proxy, overwrites it. The barrier
    # of
    # the warp orders the loads before what the copying lane does next, and that lane's proxy fence orders them before the copy:
    # nothing else orders accesses through two proxies (PTX ISA 8.9.5). With an mbarrier instead, on which all lanes arrived
    # after their loads, copies overtook loads whose values were not used yet (benchmarks/LOG.md).

    def _refiller(self, stage: WeightStage, part: int, row_group: Value | None = None) -> Callable[[], None]:
        """What copies into the stage what follows this part of the rows by as much as the pipeline holds. row_group: that of a
        loop, from whose rows on the sources are; None where there is one."""
        k, layout = self.k, self.layout
        further, coming = divmod(part + layout.count, layout.parts)

        def refill() -> None:
            if further >= layout.row_groups:
                return
            k.bar_warp_sync(FULL_WARP)
            leads = self._leads()
            with k.when(leads & (row_group < layout.row_groups - further) if row_group is not None and further else leads):
                k.fence_proxy(proxy="async.shared::cta")
                self._fetch(stage, further, coming)

        return refill

    def _refill(self, stage: WeightStage, number: Value, coming_part: Value) -> None:
        """Copy into the stage, which has the part of this number among all, what the sources are at, if any is left."""
        k, layout = self.k, self.layout
        if layout.count < layout.total:
            k.bar_warp_sync(FULL_WARP)
            with k.when(self._leads() & (number < layout.total - layout.count)):
                k.fence_proxy(proxy="async.shared::cta")
                self._fetch_next(stage, coming_part)

    def _fill_paced(self) -> None:
        """Begin the copies of each further stage when those of the one before have come."""
        for number in range(1, self.layout.count):
            self._wait(self._stage(number - 1))
            with self.k.when(self._leads()):
                self._fill(range(number, number + 1))

    def _fill(self, numbers: range) -> None:
        """Begin the first copies into the stages of these numbers."""
        for number in numbers:
            self._fetch(self._stage(number), *divmod(number, self.layout.parts))

    def _leads(self) -> Value:
        """Whether this is the lane that asks for copies. All lanes come here together. Of an elected lane the assembler knows
        that it is alone: it would write a loop over lanes else, since a copy takes its addresses from uniform registers."""
        _, leads = self.k.elect(FULL_WARP)
        return leads

    def _fetch(self, stage: WeightStage, row_group: int, part: int) -> None:
        """Begin to copy this part of the rows so many row groups from where the sources are."""
        size = self.layout.last_bytes if part == self.layout.parts - 1 else self.layout.part_bytes
        self._copy(stage, size, row_group * self._group_bytes + part * self.layout.part_bytes)

    def _fetch_next(self, stage: WeightStage, part: Value) -> None:
        """Begin to copy what the sources are at, which is a part of this number; and go on with both."""
        k, layout = self.k, self.layout
        ends = part == layout.parts - 1
        size = k.select(ends, k.u32(layout.last_bytes), k.u32(layout.part_bytes))
        self._copy(stage, size, 0)
        k.assign(part, k.select(ends, k.u32(0), part + 1))
        before = (layout.parts - 1) * layout.part_bytes
        move = k.u64(k.select(ends, k.u32(self._group_bytes - before), k.u32(layout.part_bytes)))
        for source in self._sources:
            k.assign(source.base, source.base + move)

    def _copy(self, stage: WeightStage, size: Value | int, offset: int) -> None:
        """Begin to copy `size` bytes of each row, from so many behind its source on."""
        k, layout = self.k, self.layout
        barrier = stage.at(0).address
        k.mbarrier_arrive_expect_tx(barrier, size * layout.rows)
        for number in range(layout.rows):
            row, matrix = divmod(number, self._matrices)
            source = self._sources[matrix].at(offset + row * layout.row_bytes)
            to = stage.at(BARRIER + number * layout.part_bytes)
            k.cp_async_bulk(to.address, source[0].address, size, barrier)


def _one_by_one(*writers: Callable[[], None]) -> None:
    """What each of them writes, one after the other."""
    for write in writers:
        write()


def _further(cursor: Cursor, nbytes: int) -> Cursor:
    """So many bytes further, in shared memory."""
    block = cursor.block.at(nbytes)
    return Cursor(cursor.fragments, block, block if cursor.column is cursor.block else cursor.column.at(nbytes))
