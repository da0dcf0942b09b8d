"""The shadow of memory: who touched each granule before, and whether that conflicts with who touches it now. The race detector.

The idea is that of FastTrack (Flanagan and Freund, PLDI 2009) and of ThreadSanitizer's shadow words (Serebryany and
Iskhodzhanov, WBIA 2009): for every place remember a few earlier accesses with the time at which each was made, and ask at
the next access whether something orders the two. What orders them is the memory model of the PTX ISA (8.5 to 8.8). A barrier
orders all threads of its block. The blocks of a launch run one after the other, or all are there at once and take turns (a
cooperative launch). Vector clocks, of a number a block, are needed only in the second case.

* A time is an *epoch*: a counter of block barriers passed and blocks started. It tells the intervals between two barriers of a
  block apart, and blocks from each other. Blocks that run one after the other count on, so epochs from `Me.first` on are of the
  running block; of those that take turns each has a range of its own, SPAN epochs.
* Blocks that take turns learn of each other by flags (ordering_together.py): `Me.known` has, for each, the last epoch that
  comes before all that the running block does now.
* Within an interval, the count of `bar.warp.sync` that a warp has passed orders that warp's lanes.
* What a thread did before it arrived at an mbarrier comes before accesses of the lanes that waited for that phase
  (handovers.py).
* What a bulk copy wrote comes before accesses of the lanes that waited for its mbarrier, and of no others of its interval
  (BROUGHT, bulk_copies.py).
* Two accesses are **concurrent** (`concurrent`) if they are of two blocks, and mine does not know that the other comes before,
  or of one interval and of two threads (in global memory: of two warps, `Me.apart`) that no `bar.warp.sync` has ordered.
* Concurrent ones **conflict** (`conflict`) if one of them writes, unless both are strong in a scope that holds the other's
  thread (8.7.1, morally strong), or a fence and a flag order them (events.py, happens-before of 8.8).

A granule is as many bytes as the kernel's smallest access. Its shadow has fifteen records of accesses (`Slots`) and, in shared
memory, a `GranuleState`. The records of one kind lie together, so that memory which is only written takes one record a granule.

Which records are enough? Two weak writes that are concurrent conflict anyway, so of those the last is kept. The strong writes
of one scope, and the reads of one scope, may be many without any conflict; of those two are kept (`remember`), so that every
thread which conflicts with any conflicts with one of the two, as long as no flag orders some of them for it.
tests/ptxgen/emulator/test_shadow.py compares all this with a list of every access."""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag

from ptxgen.emulator.layout import LANES_BYTES
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.handovers import handed
from ptxgen.emulator.runtime.views import StructView
from ptxgen.target import WARP_SIZE

THREAD_BITS, LINE_BITS = 10, 20
"""Where a record's `what` holds the thread and the PTX line; the scope is above."""
THREAD_MASK = (1 << THREAD_BITS) - 1
MAX_LINE = (1 << LINE_BITS) - 1
OLDEST_EPOCH = 1
"""Blocks are counted from here on, so that zeroed memory is a shadow of nothing."""
SPAN_BITS = 22
SPAN = 1 << SPAN_BITS
"""Epochs of each of the blocks that take turns, more than it has barriers: block i's first is OLDEST_EPOCH + i * SPAN."""
BROUGHT = 1 << 31
"""Set in the `sync` of a write by a bulk copy that is done, beside the number of its mbarrier; its `serial` is when it was."""
ASYNCHRONOUS = 1 << 30
"""Set in the `sync` of a read through the asynchronous proxy."""
LATE = 1 << 29
"""Set in the `sync` of a read that may be over later than its thread's next arrival at an mbarrier (late_loads.py), or that
took the place of such a one; no longer once a copy over it was checked."""
EVERY_THREAD, EVERY_WARP = THREAD_MASK, THREAD_MASK & ~(WARP_SIZE - 1)
"""Values of `Me.apart`: what tells threads apart, what tells warps apart."""


class AccessKind(IntEnum):
    """What an access does. A COPY is a write by cp.async."""

    LOAD = 0
    STORE = 1
    ATOMIC = 2
    COPY = 3


class Slots(IntEnum):
    """Where the records of a kind are: a weak write; two strong writes, and two reads, of each scope. Those of the system,
    which only launches on several devices have, stand behind the others: nobody else looks at them."""

    WEAK_WRITE = 0
    STRONG_WRITES = 1
    READS = 5
    SYSTEM_WRITES = 11
    SYSTEM_READS = 13
    END = 15


class Verdict(IntFlag):
    """What is wrong with an access to a granule: nothing wrote it, a copy to it is on its way, it conflicts with a write, or
    with a read."""

    UNWRITTEN = 1
    ON_THE_WAY = 2
    WRITER = 4
    READER = 8


class Record(ctypes.Structure):
    """An access: its epoch, `what` it is (thread | line << 10 | scope << 30), its warp's bar.warp.sync count, and its serial
    number, which the lanes of one instruction share. The scope is 0 for a weak one, 1 for the block, 2 for the GPU, 3 for the
    system."""

    _fields_ = (
        ("epoch", ctypes.c_uint32),
        ("what", ctypes.c_uint32),
        ("sync", ctypes.c_uint32),
        ("serial", ctypes.c_uint32),
    )


class Me(ctypes.Structure):
    """The access that is being checked. Records of epochs before `floor` count as none, those before `first` as another
    block's. `apart`: bits of a thread's number; threads that agree in them are in order anyway. `stride` is the distance of two
    records of one granule; `ordered`, if not 0, is a function (Me *, Record *) -> i32 that says whether fences and flags order
    the two. `known`, if not 0, is the address of a u32 for each of the blocks that take turns; then epochs from `first` + SPAN
    on are another block's, too; if `device_span` is not 0, those that are not so near behind `device` are another device's.
    `waits` is the address of what the warp's lanes waited for, LANES_BYTES of each mbarrier, which BROUGHT records ask for;
    `context` and `state`, unless 0, are asked for what mbarriers handed over."""

    _anonymous_ = ("record",)
    _fields_ = (
        ("record", Record),
        ("floor", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("apart", ctypes.c_uint32),
        ("stride", ctypes.c_int64),
        ("ordered", ctypes.c_int64),
        ("known", ctypes.c_int64),
        ("device", ctypes.c_uint32),
        ("device_span", ctypes.c_uint32),
        ("waits", ctypes.c_int64),
        ("context", ctypes.c_int64),
        ("state", ctypes.c_int64),
    )


class GranuleState(ctypes.Structure):
    """Of shared memory: the epoch of the last write, and whether a copy is still on its way (`Verdict.ON_THE_WAY`, else 0)."""

    _fields_ = (("written", ctypes.c_uint32), ("on_the_way", ctypes.c_uint32))


RECORD_BYTES = ctypes.sizeof(Record)
STATE_BYTES = ctypes.sizeof(GranuleState)


def shadow_bytes(granules: int, *, states: bool) -> int:
    """Bytes of the shadow of so many granules."""
    return granules * (RECORD_BYTES * Slots.END + (STATE_BYTES if states else 0))


def _elsewhere(mine: StructView, theirs: StructView) -> IrValue:
    """Whether an access is another block's."""
    beyond = (mine["known"] != 0) & (theirs["epoch"] - mine["first"] >= SPAN)
    return beyond | (theirs["epoch"] < mine["first"])


def _on_another_device(mine: StructView, theirs: StructView) -> IrValue:
    """Whether an access is another device's."""
    return (mine["device_span"] != 0) & (theirs["epoch"] - mine["device"] >= mine["device_span"])


def _in_interval(b: Builder, mine: StructView, theirs: StructView) -> IrValue:
    """Whether nothing orders two accesses between two barriers of a block."""
    same_interval = theirs["epoch"] == mine["epoch"]
    differing = (mine["what"] ^ theirs["what"]) & THREAD_MASK
    another_thread = (differing & mine["apart"]) != 0
    another_warp = differing >= WARP_SIZE
    not_met_since = ((mine["sync"] ^ theirs["sync"]) & ~(ASYNCHRONOUS | LATE)) == 0
    unordered = b.memory("i1")
    unordered.store(same_interval & another_thread & (another_warp | not_met_since), "i1")
    with b.when(unordered.load("i1") & (mine["context"] != 0)):
        lane, thread = mine["what"] & WARP_SIZE - 1, theirs["what"] & THREAD_MASK
        context, state = mine["context"].as_pointer(), mine["state"].as_pointer()
        unordered.store(~handed(b, context, state, lane, thread, theirs["serial"], 0))
    with b.when(same_interval & (theirs["sync"] >= BROUGHT)):
        known = mine["waits"].as_pointer().at((theirs["sync"] ^ BROUGHT).resized("i64") * LANES_BYTES)
        waited = known.at((mine["what"] & WARP_SIZE - 1).resized("i64"), "i32").load("i32")
        unordered.store(waited < theirs["serial"], "i1")
    return unordered.load("i1")


@runtime_function("i1", me="ptr", other="ptr")
def concurrent(b: Builder, me: IrValue, other: IrValue) -> None:
    """Whether no barrier, and no thread's own order, puts the earlier access `other` before mine."""
    mine, theirs = StructView(me, Me), StructView(other, Record)
    recorded = theirs["epoch"] >= mine["floor"]
    another_block = theirs["epoch"] < mine["first"]
    b.ret(recorded & (another_block | _in_interval(b, mine, theirs)))


@runtime_function("i1", me="ptr", other="ptr")
def concurrent_together(b: Builder, me: IrValue, other: IrValue) -> None:
    """`concurrent` where blocks take turns."""
    mine, theirs = StructView(me, Me), StructView(other, Record)
    with b.when(theirs["epoch"] < mine["floor"]):
        b.ret(0)
    with b.when(_elsewhere(mine, theirs)):
        block = (theirs["epoch"] - OLDEST_EPOCH >> SPAN_BITS).resized("i64")
        b.ret(theirs["epoch"] > mine["known"].as_pointer().at(block, "i32").load("i32"))
    b.ret(_in_interval(b, mine, theirs))


@runtime_function("i1", me="ptr", other="ptr")
def conflict(b: Builder, me: IrValue, other: IrValue) -> None:
    """Whether an earlier access races with mine, one of the two being a write."""
    mine, theirs = StructView(me, Me), StructView(other, Record)
    with b.when(mine["known"] != 0), b.when(~concurrent_together(b, me, other)):
        b.ret(0)
    with b.when(mine["known"] == 0), b.when(~concurrent(b, me, other)):
        b.ret(0)
    with b.when(mine["serial"] == theirs["serial"]):  # lanes of one store: whether they agree is asked after it, by value
        b.ret(0)
    in_device = _elsewhere(mine, theirs).select(b.number(2), 1)
    scope_needed = _on_another_device(mine, theirs).select(b.number(3), in_device)
    scope_shift = THREAD_BITS + LINE_BITS
    both_strong = (mine["what"] >> scope_shift >= scope_needed) & (theirs["what"] >> scope_shift >= scope_needed)
    with b.when(both_strong):
        b.ret(0)
    ordered = mine["ordered"]
    with b.when(ordered == 0):
        b.ret(1)
    b.ret(b.call_address(ordered, "i32", me, other) == 0)


def _replace(b: Builder, record: IrValue, me: IrValue) -> None:
    """Keep my access in the place of an earlier one; if that is late, so is what stands for it."""
    kept = StructView(record, Record)
    late = (kept["epoch"] >= StructView(me, Me)["floor"]).select(kept["sync"] & LATE, 0)
    b.copy_structure(Record, record, me)
    kept["sync"] = kept["sync"] | late


@runtime_function("void", first="ptr", me="ptr")
def remember(b: Builder, first: IrValue, me: IrValue) -> None:
    """Keep my access in a pair of records whose accesses do not conflict with each other, nor with mine.

    A first that is not concurrent with me is blank, mine or ordered before me: whoever conflicts with it now conflicts with me,
    too, so I take its place. Else who does not conflict with the first is of its warp, so the second shall be of another warp
    or block if any is, and else of another thread. Where blocks take turns, who does not conflict with the first may also be of
    a later interval of its block, so another block is the best that the second can be of, and one of another device is better.
    """
    mine, theirs = StructView(me, Me), StructView(first, Record)
    second = first.at(mine["stride"])
    another_warp = ((mine["what"] ^ theirs["what"]) & EVERY_WARP) != 0
    with b.when(mine["known"] != 0):
        with b.when(~concurrent_together(b, me, first)):
            _replace(b, first, me)
            b.ret()
        seconds = StructView(second, Record)
        better = _on_another_device(mine, theirs) | another_warp & ~_elsewhere(mine, seconds)
        better = better | _elsewhere(mine, theirs) & ~_on_another_device(mine, seconds)
        with b.when(~concurrent_together(b, me, second) | better):
            _replace(b, second, me)
        b.ret()
    with b.when(~concurrent(b, me, first)):
        _replace(b, first, me)
        b.ret()
    with b.when(~concurrent(b, me, second) | another_warp):
        _replace(b, second, me)


@runtime_function("i32", granule="ptr", state="ptr", me="ptr", access="i32", other="ptr")
def touch(b: Builder, granule: IrValue, state: IrValue, me: IrValue, access: IrValue, other: IrValue) -> None:
    """The verdict on my access to a granule, which it then records. `granule` is its first record, `state` its state or null;
    with a conflict, the record of the other access goes to `other`."""
    mine = StructView(me, Me)
    stride, floor = mine["stride"], mine["floor"]
    is_load = access == AccessKind.LOAD
    race = b.memory("i32")
    race.store(0)
    several = mine["device_span"] != 0
    alone = is_load.select(b.number(Slots.READS, "i64"), Slots.SYSTEM_WRITES)  # reads do not conflict with reads
    kinds = several.select(is_load.select(b.number(Slots.SYSTEM_READS, "i64"), Slots.END), alone)
    with b.loop(kinds) as (slot, loop):
        is_read = (slot >= Slots.READS) & (slot < Slots.SYSTEM_WRITES) | (slot >= Slots.SYSTEM_READS)
        with b.when(is_read & is_load):
            loop.go_on()
        record = granule.at(slot * stride)
        with b.when(StructView(record, Record)["epoch"] < floor):  # blank, as most are: `conflict` would say so, too
            loop.go_on()
        with b.when(conflict(b, me, record)):
            b.copy_structure(Record, other, record)
            race.store(is_read.select(b.number(Verdict.READER), Verdict.WRITER))
            loop.stop()
    scope = (mine["what"] >> THREAD_BITS + LINE_BITS).resized("i64")
    with b.when((scope == 0) & ~is_load):
        b.copy_structure(Record, granule, me)
    with b.when((scope != 0) | is_load):
        pair = is_load.select(scope * 2 + Slots.READS, scope * 2 + (Slots.STRONG_WRITES - 2))
        of_system = is_load.select(b.number(Slots.SYSTEM_READS, "i64"), Slots.SYSTEM_WRITES)
        remember(b, granule.at((scope == 3).select(of_system, pair) * stride), me)
    verdict = race.load("i32")
    with b.when(b.is_null(state)):
        b.ret(verdict)
    states = StructView(state, GranuleState)
    unread = (states["written"] < floor).select(b.number(Verdict.UNWRITTEN), states["on_the_way"])
    with b.when(is_load):
        early = unread == Verdict.ON_THE_WAY  # that says more than the race that it is, too
        b.ret(early.select(b.number(0), verdict) | unread)
    states["written"] = mine["epoch"]
    states["on_the_way"] = (access == AccessKind.COPY).select(b.number(Verdict.ON_THE_WAY), 0)
    b.ret(verdict | (access == AccessKind.ATOMIC).select(unread, 0))


@runtime_function("i32", granule="ptr", state="ptr", many="i64", me="ptr", access="i32", other="ptr")
def touches(b: Builder, granule: IrValue, state: IrValue, many: IrValue, me: IrValue, access: IrValue, other: IrValue) -> None:
    """`touch` of `many` granules one after the other: the verdict on the first that has one."""
    ignored = b.memory("i8", RECORD_BYTES)
    verdict = b.memory("i32")
    verdict.store(0)
    step = b.is_null(state).select(b.number(0, "i64"), STATE_BYTES)
    with b.loop(many) as (i, _):
        fresh = verdict.load("i32") == 0
        place = fresh.select(other, ignored)
        one = touch(b, granule.at(i * RECORD_BYTES), state.at(i * step), me, access, place)
        verdict.store(fresh.select(one, verdict.load("i32")))
    b.ret(verdict.load("i32"))
