"""What has passed a proxy fence: bulk copies and products of warpgroups touch shared memory through the asynchronous proxy, all
other instructions, cp.async among them, through the generic one. Barriers and flags order accesses of one proxy alone.

The rule (PTX ISA 8.9.5, proxy-preserved base causality order, and 9.7.13.4): a bulk copy may overwrite what ordinary
instructions have read or written before, and a product may read what they have written, if

* a `fence.proxy.async` for shared memory stands between the two in causality order: it follows the access by its own thread's
  order, `bar.warp.sync`, a barrier of the block or an mbarrier, and so does the copy follow the fence. Which thread executes it
  does not matter: the accesses' own before it arrives at a barrier, or the one that begins the copy after it;
* or the access is a load whose value is read before an arrival at an mbarrier releases it (late_loads.py), and the copy follows
  a wait for that phase. So CUTLASS's PipelineTmaAsync has consumers use what they loaded and arrive at a slot's empty barrier
  (consumer_release), and its producer wait for that and copy, with no proxy fence. A load that is not used before is still on
  its way, and must be fenced as what was written must.

The other way round a completed mbarrier phase, or `wgmma.wait_group`, is a proxy fence itself (9.7.9.25.2, 9.7.15.4): that is
what BROUGHT records and product_checks.py look after.

Accesses are told by their serial numbers: all of a thread's accesses up to a number have passed, or none after it. What a fence
of a lane is for follows from three of them, and is known to the lane itself, after a bar.warp.sync to its warp and after a
barrier to the block."""

from __future__ import annotations

import ctypes

from ptxgen.emulator.layout import ContextWord, State
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.check import ask_mbarriers, who
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.handovers import fence_handed, handed, share_waits_of_block
from ptxgen.emulator.runtime.reports import report
from ptxgen.emulator.runtime.shadow import (
    ASYNCHRONOUS,
    BROUGHT,
    EVERY_THREAD,
    LATE,
    RECORD_BYTES,
    STATE_BYTES,
    THREAD_MASK,
    GranuleState,
    Me,
    Record,
    Slots,
    concurrent,
)
from ptxgen.emulator.runtime.views import Context, StructView, WarpState
from ptxgen.emulator.sanitizer import EXTRA_LATE, EXTRA_STORE, FindingKind
from ptxgen.target import WARP_SIZE

_VECTOR = f"<{WARP_SIZE} x i32>"
_BARRIER = f"{__name__}.barrier"  # every kernel is linked with it, and not with the rest


def _later(b: Builder, one: IrValue, other: IrValue) -> IrValue:
    return b.intrinsic("llvm.umax.v32i32", _VECTOR, one, other)


def _latest(b: Builder, numbers: IrValue) -> IrValue:
    return b.intrinsic("llvm.vector.reduce.umax.v32i32", "i32", numbers)


@runtime_function("void", context="ptr", state="ptr", lanes="i32")
def fence_proxy(b: Builder, context: IrValue, state: IrValue, lanes: IrValue) -> None:
    """The lanes of a mask execute a proxy fence for shared memory."""
    c, s = Context(context), WarpState(state)
    serial, barrier = (c[slot].resized("i32") for slot in (ContextWord.SERIAL, ContextWord.BARRIER_AT))
    for part, upto in ((State.FENCED, serial), (State.FENCED_WARP, s[State.MET_AT]), (State.FENCED_BLOCK, barrier)):
        s[part] = lanes.truths().select(upto.splat(), s[part])
    with b.when(c[ContextWord.WAITS] != 0), b.each_lane(lanes) as (lane, _):
        fence_handed(b, context, state, lane)


def _met(b: Builder, state: IrValue) -> IrValue:
    """Of each lane, what has passed a fence of the warp, its own or another's."""
    s = WarpState(state)
    return _later(b, s[State.PASSED_WARP], _later(b, s[State.FENCED], _latest(b, s[State.FENCED_WARP]).splat()))


@runtime_function("void", context="ptr", state="ptr")
def meet(b: Builder, context: IrValue, state: IrValue) -> None:
    """The lanes of a warp meet at a bar.warp.sync."""
    s = WarpState(state)
    s[State.PASSED_WARP] = _met(b, state)
    fenced, before = _latest(b, s[State.FENCED_BLOCK]), s[State.MET_FENCED_BLOCK]
    s[State.MET_FENCED_BLOCK] = (fenced > before).select(fenced, before)
    s[State.MET_AT] = Context(context)[ContextWord.SERIAL].resized("i32")


@runtime_function("void", part=_BARRIER, context="ptr")
def meet_as_block(b: Builder, context: IrValue) -> None:
    """The threads of a block meet at a barrier."""
    c = Context(context)
    with b.loop(c[ContextWord.WARP_COUNT]) as (warp, _):
        state = c[ContextWord.WARPS].as_pointer().at(warp * c[ContextWord.STATE_BYTES])
        s = WarpState(state)
        passed = _met(b, state)
        s[State.PASSED_WARP] = s[State.PASSED_BLOCK] = passed
        fenced = _latest(b, s[State.FENCED_BLOCK]).resized("i64")
        c[ContextWord.PASSED] = (fenced > c[ContextWord.PASSED]).select(fenced, c[ContextWord.PASSED])
    c[ContextWord.BARRIER_AT] = c[ContextWord.SERIAL]
    share_waits_of_block(b, context)


@runtime_function("i1", context="ptr", state="ptr", lane="i32", thread="i32", serial="i32", writes="i1")
def passed(
    b: Builder, context: IrValue, state: IrValue, lane: IrValue, thread: IrValue, serial: IrValue, writes: IrValue
) -> None:
    """Whether an access of a thread has passed to the asynchronous proxy before what a lane of this warp does now."""
    c, s = Context(context), WarpState(state)
    own = s.of_lane(State.FENCED_BLOCK, lane).load("i32")
    everyone = c[ContextWord.PASSED].resized("i32")
    with b.when((serial <= everyone) | (serial <= own) | (serial <= s[State.MET_FENCED_BLOCK])):
        b.ret(1)
    its_lane, its_warp = thread & WARP_SIZE - 1, thread >> 5
    theirs = WarpState(c[ContextWord.WARPS].as_pointer().at(its_warp.resized("i64") * c[ContextWord.STATE_BYTES]))
    with b.when(its_warp == s[State.WARP]):
        its_own = s.of_lane(State.FENCED, lane).load("i32")
        fenced = (its_lane == lane).select(its_own, s.of_lane(State.FENCED_WARP, lane).load("i32"))
        with b.when((serial <= fenced) | (serial <= s.of_lane(State.PASSED_WARP, its_lane).load("i32"))):
            b.ret(1)
    with b.when(serial <= theirs.of_lane(State.PASSED_BLOCK, its_lane).load("i32")):
        b.ret(1)
    b.ret(handed(b, context, state, lane, thread, serial, writes))


@runtime_function("void", context="ptr", state="ptr", lane="i32", to="i64", size="i64", line="i32")
def look_at_ordinary(
    b: Builder, context: IrValue, state: IrValue, lane: IrValue, to: IrValue, size: IrValue, line: IrValue
) -> None:
    """Report a copy to where ordinary instructions have read or written, and which follows them with no proxy fence between.
    What it does not follow is a race, which the check of its write reports."""
    c, s = Context(context), WarpState(state)
    offset = to - c[ContextWord.SHARED]
    with b.when((offset >= c[ContextWord.SHARED_BYTES]) | (offset + size > c[ContextWord.SHARED_BYTES])):
        b.ret()
    shadow, stride, shift = c[ContextWord.SHADOW].as_pointer(), c[ContextWord.SHARED_STRIDE], c[ContextWord.SHARED_SHIFT]
    states, first_epoch = shadow.at(stride * Slots.END), c[ContextWord.FIRST_EPOCH].resized("i32")
    me = b.memory("i8", ctypes.sizeof(Me))
    mine = StructView(me, Me)
    mine["epoch"], mine["sync"] = c[ContextWord.EPOCH].resized("i32"), s[State.SYNC_EPOCH]
    mine["floor"], mine["first"], mine["apart"] = first_epoch, first_epoch, EVERY_THREAD
    mine["what"] = s[State.WARP] * WARP_SIZE + lane
    ask_mbarriers(b, context, state, mine)
    first, warp = offset >> shift, s[State.WARP]
    of_block, of_warp = s.of_lane(State.FENCED_BLOCK, lane).load("i32"), s.of_lane(State.FENCED_WARP, lane).load("i32")
    with b.loop(size >> shift) as (i, _):
        granule = first + i
        under_way = StructView(states.at(granule * STATE_BYTES), GranuleState)["on_the_way"] != 0
        with b.loop(b.number(Slots.SYSTEM_WRITES, "i64")) as (slot, records):
            place = shadow.at(granule * RECORD_BYTES + slot * stride)
            record = StructView(place, Record)
            with b.when(record["epoch"] < first_epoch):  # blank, as most are
                records.go_on()
            writes = slot < Slots.READS
            late = ~writes & ((record["sync"] & LATE) != 0)
            with b.when(late):
                record["sync"] = record["sync"] & ~LATE
            thread, serial = record["what"] & THREAD_MASK, record["serial"]
            in_warp = (thread >> 5) == warp
            with b.when((serial <= of_block) | in_warp & (serial <= of_warp)):  # as `passed` would say, too
                records.go_on()
            is_copy = (slot == Slots.WEAK_WRITE) & (under_way | (record["sync"] >= BROUGHT))
            with b.when(is_copy | ((record["sync"] & ASYNCHRONOUS) != 0)):
                records.go_on()
            with b.when(passed(b, context, state, lane, thread, serial, writes | late)):
                records.go_on()
            with b.when(concurrent(b, me, place)):
                records.go_on()
            too_early = late & passed(b, context, state, lane, thread, serial, 0)
            bytes = size | writes.resized("i64") << EXTRA_STORE | too_early.resized("i64") << EXTRA_LATE
            report(b, context, state, FindingKind.UNFENCED_COPY, line, lane, to + (i << shift), who(record), bytes)
            b.ret()
