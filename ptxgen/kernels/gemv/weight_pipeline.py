"""How a warp of hw_dp4a has its weights copied ahead: bulk copies bring them into a ring of slots in shared memory, which is
the warp's own, and the warp multiplies what has come. What is under way takes no registers, and no place in the queue of
loads, so that activations and weights do not wait for each other; and the first copies are begun before the kernel before
this one has ended, since nobody writes weights. A slot is read as a whole before it is multiplied, so that what follows is
asked for at once."""

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
"""Steps of a turn that are written out; longer rows loop over slots."""


@dataclass(frozen=True)
class Slot:
    """Where a slot is, and the parity of the phase of its mbarrier in which what is wanted comes."""

    base: Value
    offset: int
    parity: Value

    def at(self, offset: int) -> Element:
        """So many bytes behind its beginning, where its mbarrier is."""
        return Element("shared", self.base.register, self.offset + offset, U8)


class WeightRing:
    """The rows of a warp, `results_at_once` of each matrix a turn, part after part. Copies are begun by one lane, those of the
    first slots here, and in blocks that come late by `fill_late`."""

    def __init__(self, warp: Warp, start: int) -> None:
        """start: where the rings of all warps begin in the shared memory that the launch asks for."""
        self.warp, self.k = warp, warp.k
        k, blocks = warp.k, warp.blocks
        self.slots = blocks.pipeline_layout
        self._matrices = len(blocks.weights)
        late_from = blocks.late_from if self.slots.count > 1 else None
        self._late_from = late_from if late_from is not None and late_from < blocks.count else None
        self._at_once = blocks.lane_results
        self._turn_bytes = self._at_once * self.slots.row_bytes
        """From the rows of a turn to those of the next."""
        ring = k.symbol_address(k.dynamic_shared(U8).name)
        self._ring = k.mad(k.warp, self.slots.bytes, ring + start)
        self._sources = warp.rows[: self._matrices]
        with k.when(self._leads()):
            for number in range(self.slots.count):
                k.mbarrier_init(self._slot(number).at(0).address, 1)
            k.fence_mbarrier_init()
            self._fill(range(1 if blocks.paced else self.slots.count))
        if blocks.paced and self.slots.count > 1:
            k.bar_warp_sync(FULL_WARP)  # all lanes see the mbarriers
            with nullcontext() if self._late_from is None else k.when(k.ctaid.x < self._late_from):
                self._fill_paced()

    def fill_late(self) -> None:
        """Begin the first copies that are not begun yet (Blocks.late_from): behind the loads of activations."""
        if self._late_from is not None:
            with self.k.when(self._leads() & (self.k.ctaid.x >= self._late_from)):
                self._fill(range(1, self.slots.count))

    def sums(self, load_early: Callable[[], None]) -> list[Value]:
        """Write all turns; returns, for each matrix, the sum of each row of the warp in the lane that has it (Warp.own).
        Activations are staged. load_early: writes the loads that the epilogue needs. In a loop they come first; else after the
        last refill, whose fence would wait for them."""
        kept = [self.k.variable(0.0, F32) for _ in range(self._matrices)]
        written_out = self.slots.fragments.steps <= WRITTEN_OUT and self.slots.turns == 1
        refilled = self.slots.total - self.slots.count if written_out else 0
        if not refilled:
            load_early()
        if self.slots.fragments.steps > WRITTEN_OUT:
            self._write_parts(kept)
        elif self.slots.turns > 1:
            self._write_turns(kept)
        else:
            for part in range(self.slots.parts):
                refill = self._refiller(self._slot(part), part)
                last = part == refilled - 1
                self._add_part(part, self._slot(part), partial(_in_turn, refill, load_early) if last else refill)
            self._keep(kept, self.warp.lane.place)
        return kept

    # The text: a turn, a turn in a loop, or a part of a row in a loop

    def _write_turns(self, kept: list[Value]) -> None:
        """The loop over turns."""
        k, slots = self.k, self.slots
        self._sources = [replace(source, base=k.variable(source.base, U64)) for source in self._sources]
        place, slot = k.variable(self.warp.lane.place, U32), self._moving()
        for turn in k.strided(0, slots.turns):
            for part in range(slots.parts):
                self._add_part(part, slot, self._refiller(slot, part, turn))
                self._advance(slot)
            self._keep(kept, place)
            for source in self._sources:
                k.assign(source.base, source.base + self._turn_bytes)
            k.assign(place, place - self._at_once)

    def _write_parts(self, kept: list[Value]) -> None:
        """The loop over the parts of the rows of all turns."""
        k, slots, warp = self.k, self.slots, self.warp
        turn, coming = divmod(slots.count, slots.parts)
        ahead = turn * self._turn_bytes + coming * slots.part_bytes
        self._sources = [replace(one, base=k.variable(one.base + ahead, U64)) for one in self._sources]
        place, slot = k.variable(warp.lane.place, U32), self._moving()
        part, coming_part = k.variable(0, U32), k.variable(coming, U32)
        blocks, of_row = slots.steps * slots.fragments.blocks, slots.fragments.k // slots.fragments.format.block
        everywhere = of_row % blocks == 0
        whole = everywhere or slots.parts > slots.count  # else lanes past the end of a row would load what is not there yet
        for number in k.strided(0, slots.total):
            start = self._wait(slot)
            first = k.mad(part, blocks, warp.lane.block)
            loaded = [self._load(start, step) for step in range(slots.steps)] if whole else []
            if whole:
                self._refill(slot, number, coming_part)
            for step in range(slots.steps):
                with nullcontext() if everywhere else k.when(first + step * slots.fragments.blocks < of_row):
                    warp.add_step(loaded[step] if whole else self._load(start, step), range(1), part * slots.steps, step)
            if not whole:
                self._refill(slot, number, coming_part)
            self._advance(slot)
            last = part == slots.parts - 1
            k.assign(part, k.select(last, k.u32(0), part + 1))
            with k.when(last):
                self._keep(kept, place)
                self._begin()
                k.assign(place, place - self._at_once)

    def _add_part(self, part: int, slot: Slot, refill: Callable[[], None]) -> None:
        """Add the steps of this part of the rows, and call `refill` when all loads from the slot are issued."""
        k, warp, slots = self.k, self.warp, self.slots
        start = self._wait(slot)
        if part == 0:
            self._begin()
        first = part * slots.steps
        last = min(first + slots.steps, slots.fragments.steps)
        rest = slots.fragments.rest > 0 and last == slots.fragments.steps
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
        """Reduce the sums of a turn, and leave each in the lane of its row. place: the lane's number among the rows of its
        share from those of this turn on, modulo 2^32."""
        k = self.k
        for number, (total,) in enumerate(self.warp.totals):
            row, matrix = divmod(number, self._matrices)
            k.assign(kept[matrix], k.select(place == row, self.warp.sum(total), kept[matrix]))

    # Slots

    def _slot(self, number: int) -> Slot:
        """That of the part of this number among all that the warp takes."""
        around, place = divmod(number, self.slots.count)
        return Slot(self._ring, place * self.slots.stride, self.k.u32(around & 1))

    def _moving(self) -> Slot:
        """The first one, in registers that `_advance` changes."""
        return Slot(self.k.variable(self._ring, U32), 0, self.k.variable(0, U32))

    def _advance(self, slot: Slot) -> None:
        k = self.k
        after = slot.base + self.slots.stride
        around = after == self._ring + self.slots.bytes
        k.assign(slot.base, k.select(around, self._ring, after))
        k.assign(slot.parity, k.select(around, slot.parity ^ 1, slot.parity))

    def _wait(self, slot: Slot) -> SharedPart:
        """Wait for what comes into the slot; returns where it is."""
        k = self.k
        with k.loop() as loop:
            loop.break_if(k.mbarrier_try_wait_parity(slot.at(0).address, slot.parity))
        return SharedPart(k, slot.base, U8, slot.offset + BARRIER)

    def _load(self, start: SharedPart, step: int) -> Raw:
        """Load the lane's fragments of a step of the part that starts there."""
        slots, lane = self.slots, self.warp.lane
        own = advance(start, lane.share, slots.row_bytes // slots.fragments.shares)
        first = lane.start(own).moved(step)
        return [lane.load(self.k, _further(first, number * slots.part_bytes)) for number in range(slots.rows)]

    # Copies

    # Lanes read a slot by ordinary loads; a bulk copy, which goes through the asynchronous proxy, overwrites it. The barrier of
    # the warp orders the loads before what the copying lane does next, and that lane's proxy fence orders them before the copy:
    # nothing else orders accesses through two proxies (PTX ISA 8.9.5). With an mbarrier instead, on which all lanes arrived
    # after their loads, copies overtook loads whose values were not used yet (benchmarks/LOG.md).

    def _refiller(self, slot: Slot, part: int, turn: Value | None = None) -> Callable[[], None]:
        """What copies into the slot what follows this part of the rows by as much as the ring holds. turn: that of a loop, from
        whose rows on the sources are; None where there is one."""
        k, slots = self.k, self.slots
        further, coming = divmod(part + slots.count, slots.parts)

        def refill() -> None:
            if further >= slots.turns:
                return
            k.bar_warp_sync(FULL_WARP)
            leads = self._leads()
            with k.when(leads & (turn < slots.turns - further) if turn is not None and further else leads):
                k.fence_proxy(proxy="async.shared::cta")
                self._fetch(slot, further, coming)

        return refill

    def _refill(self, slot: Slot, number: Value, coming_part: Value) -> None:
        """Copy into the slot, which has the part of this number among all, what the sources are at, if any is left."""
        k, slots = self.k, self.slots
        if slots.count < slots.total:
            k.bar_warp_sync(FULL_WARP)
            with k.when(self._leads() & (number < slots.total - slots.count)):
                k.fence_proxy(proxy="async.shared::cta")
                self._fetch_next(slot, coming_part)

    def _fill_paced(self) -> None:
        """Begin the copies of each further slot when those of the one before have come."""
        for number in range(1, self.slots.count):
            self._wait(self._slot(number - 1))
            with self.k.when(self._leads()):
                self._fill(range(number, number + 1))

    def _fill(self, numbers: range) -> None:
        """Begin the first copies into the slots of these numbers."""
        for number in numbers:
            self._fetch(self._slot(number), *divmod(number, self.slots.parts))

    def _leads(self) -> Value:
        """Whether this is the lane that asks for copies. All lanes come here together. Of an elected lane the assembler knows
        that it is alone: it would write a loop over lanes else, since a copy takes its addresses from uniform registers."""
        _, leads = self.k.elect(FULL_WARP)
        return leads

    def _fetch(self, slot: Slot, turn: int, part: int) -> None:
        """Begin to copy this part of the rows so many turns from where the sources are."""
        size = self.slots.last_bytes if part == self.slots.parts - 1 else self.slots.part_bytes
        self._copy(slot, size, turn * self._turn_bytes + part * self.slots.part_bytes)

    def _fetch_next(self, slot: Slot, part: Value) -> None:
        """Begin to copy what the sources are at, which is a part of this number; and go on with both."""
        k, slots = self.k, self.slots
        ends = part == slots.parts - 1
        size = k.select(ends, k.u32(slots.last_bytes), k.u32(slots.part_bytes))
        self._copy(slot, size, 0)
        k.assign(part, k.select(ends, k.u32(0), part + 1))
        before = (slots.parts - 1) * slots.part_bytes
        move = k.u64(k.select(ends, k.u32(self._turn_bytes - before), k.u32(slots.part_bytes)))
        for source in self._sources:
            k.assign(source.base, source.base + move)

    def _copy(self, slot: Slot, size: Value | int, offset: int) -> None:
        """Begin to copy `size` bytes of each row, from so many behind its source on."""
        k, slots = self.k, self.slots
        barrier = slot.at(0).address
        k.mbarrier_arrive_expect_tx(barrier, size * slots.rows)
        for number in range(slots.rows):
            row, matrix = divmod(number, self._matrices)
            source = self._sources[matrix].at(offset + row * slots.row_bytes)
            to = slot.at(BARRIER + number * slots.part_bytes)
            k.cp_async_bulk(to.address, source[0].address, size, barrier)


def _in_turn(*writers: Callable[[], None]) -> None:
    """What each of them writes, one after the other."""
    for write in writers:
        write()


def _further(cursor: Cursor, nbytes: int) -> Cursor:
    """So many bytes further, in shared memory."""
    block = cursor.block.at(nbytes)
    return Cursor(cursor.fragments, block, block if cursor.column is cursor.block else cursor.column.at(nbytes))
