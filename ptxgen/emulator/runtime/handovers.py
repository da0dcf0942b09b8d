"""What mbarriers hand over from thread to thread, for the sanitiser.

An arrival releases, and a wait for its phase acquires (PTX ISA 9.7.13.15 and 8.8). Accesses are told by their serial numbers.
For each mbarrier and thread it is kept up to which serial number the arrivals release its accesses: those of the phase at hand
(_PENDING), of the phases that are complete (_LATEST), and of all but the last of these (_BEFORE). What a lane was handed
follows from when it last found a phase complete. An arrival releases the lane's own accesses, those of its warp before the last
bar.warp.sync, those of the block before the last barrier, and what the lane was handed itself. The same is kept once more for
what has passed a proxy fence (proxies.py). At bar.warp.sync lanes learn of each other's waits, at a barrier of the block all
threads do."""

from __future__ import annotations

import ctypes

from ptxgen.emulator.layout import LANES_BYTES, ContextWord, State
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.views import Context, StructView, WarpState
from ptxgen.target import WARP_SIZE

MOST = 256
"""Mbarriers of a block that the sanitiser tells apart; the later ones count as one."""
BYTES = 8
"""Of an mbarrier."""
_VECTOR = f"<{WARP_SIZE} x i32>"
_PENDING, _LATEST, _BEFORE = range(0, 3 * LANES_BYTES, LANES_BYTES)  # a number a lane each; then the same of what is fenced
_OF_FENCED = 3 * LANES_BYTES
_RELEASED = MOST * LANES_BYTES
_RELEASED_BYTES = 2 * _OF_FENCED
_ADDRESSES = _RELEASED + MOST * _RELEASED_BYTES
_HANDOVERS = _ADDRESSES + MOST * BYTES


class Handover(ctypes.Structure):
    """Of an mbarrier: serial numbers up to which the arrivals release all accesses of the block, and up to which these have
    passed a proxy fence; at which the last complete phase, and the one before it, became complete."""

    _fields_ = (
        ("pending", ctypes.c_uint32),
        ("latest", ctypes.c_uint32),
        ("before", ctypes.c_uint32),
        ("fenced_pending", ctypes.c_uint32),
        ("fenced_latest", ctypes.c_uint32),
        ("fenced_before", ctypes.c_uint32),
        ("latest_at", ctypes.c_uint32),
        ("before_at", ctypes.c_uint32),
    )


_HANDOVER_BYTES = ctypes.sizeof(Handover)
_PHASES = {"pending": _PENDING, "latest": _LATEST, "before": _BEFORE}
_FAMILIES = (("", 0), ("fenced_", _OF_FENCED))
WAITS_BYTES = _HANDOVERS + MOST * _HANDOVER_BYTES
"""From `ContextWord.WAITS` on a warp has, for the sanitiser: of each mbarrier, when each lane last found a phase complete; up
to where its lanes' accesses are released; then, in the first warp, the mbarriers' addresses and `Handover`s."""


@runtime_function("i32", context="ptr", address="i64")
def number_of(b: Builder, context: IrValue, address: IrValue) -> None:
    """The number of an mbarrier among those of the block. A new one gets the next, and no lane has waited for it. What it has
    released in a block before is older than all that the sanitiser looks at."""
    c = Context(context)
    warps = c[ContextWord.WARPS].as_pointer()
    s, addresses = WarpState(warps), warps.at(c[ContextWord.WAITS] + _ADDRESSES)
    count = s[State.MBARRIERS].resized("i64")
    with b.loop(count) as (i, _), b.when(addresses.at(i, "i64").load("i64") == address):
        b.ret(i.resized("i32"))
    with b.when(count == MOST):
        b.ret(MOST - 1)
    addresses.at(count, "i64").store(address)
    s[State.MBARRIERS] = (count + 1).resized("i32")
    with b.loop(c[ContextWord.WARP_COUNT]) as (warp, _):
        b.fill(warps.at(warp * c[ContextWord.STATE_BYTES] + c[ContextWord.WAITS] + count * LANES_BYTES), 0, LANES_BYTES)
    b.ret(count.resized("i32"))


def _handover(context: IrValue, number: IrValue) -> StructView:
    c = Context(context)
    place = c[ContextWord.WARPS].as_pointer().at(c[ContextWord.WAITS] + _HANDOVERS + number.resized("i64") * _HANDOVER_BYTES)
    return StructView(place, Handover)


def _released(context: IrValue, state: IrValue, number: IrValue) -> IrValue:
    """Where the serial numbers are up to which an mbarrier releases the accesses of a warp's lanes."""
    return state.at(Context(context)[ContextWord.WAITS] + _RELEASED + number.resized("i64") * _RELEASED_BYTES)


def _later(b: Builder, one: IrValue, other: IrValue) -> IrValue:
    """The larger numbers."""
    if one.type == _VECTOR:
        return b.intrinsic("llvm.umax.v32i32", _VECTOR, one, other)
    return (one > other).select(one, other)


@runtime_function("void", context="ptr", state="ptr", number="i32", lane="i32")
def note_arrival(b: Builder, context: IrValue, state: IrValue, number: IrValue, lane: IrValue) -> None:
    """What a lane has done, and all that is known to it to be done, is released by the phase at hand."""
    c, s = Context(context), WarpState(state)
    barrier, passed = (c[slot].resized("i32") for slot in (ContextWord.BARRIER_AT, ContextWord.PASSED))
    fenced_warp, fenced_block = (s.of_lane(part, lane).load("i32") for part in (State.FENCED_WARP, State.FENCED_BLOCK))
    of_warp = s[State.MET_AT].splat(), _later(b, s[State.PASSED_WARP], fenced_warp.splat())
    own = c[ContextWord.SERIAL].resized("i32"), s.of_lane(State.FENCED, lane).load("i32")
    everyone = barrier, _later(b, _later(b, passed, fenced_block), s[State.MET_FENCED_BLOCK])
    handover = _handover(context, number)
    for (name, offset), of_mates, of_lane, of_all in zip(_FAMILIES, of_warp, own, everyone, strict=True):
        mine = _released(context, state, number).at(offset)
        mine.store(_later(b, mine.load(_VECTOR, 64), of_mates), align=64)
        place = mine.at(lane.resized("i64"), "i32")
        place.store(_later(b, place.load("i32"), of_lane))
        handover[f"{name}pending"] = _later(b, handover[f"{name}pending"], of_all)
    with b.loop(WarpState(c[ContextWord.WARPS].as_pointer())[State.MBARRIERS].resized("i64")) as (other, others):
        phase = known_phase(b, context, state, other.resized("i32"), lane)
        with b.when((phase == _PENDING) | (other == number.resized("i64"))):
            others.go_on()
        for family in (False, True):
            _pass_on(b, context, other, phase, family, number, _PENDING, family)


def _pass_on(
    b: Builder,
    context: IrValue,
    source: IrValue,
    phase: IrValue,
    fenced: bool,
    target: IrValue,
    to: IrValue | int,
    to_fenced: bool,
) -> None:
    """Have one mbarrier release, from phase `to` on, what a `phase` of another does."""
    c = Context(context)
    (name, offset), (to_name, to_offset) = (_FAMILIES[one] for one in (fenced, to_fenced))
    theirs, handover = _handover(context, source), _handover(context, target)
    of_all = (phase == _LATEST).select(theirs[f"{name}latest"], theirs[f"{name}before"])
    for word, which in _PHASES.items():
        before = handover[to_name + word]
        after = _later(b, before, of_all)
        if not isinstance(to, int):
            handover[to_name + word] = (to == which).select(after, before)
        elif to == which:
            handover[to_name + word] = after
    at = b.number(to, "i64") if isinstance(to, int) else to.resized("i64")
    with b.loop(c[ContextWord.WARP_COUNT]) as (warp, _):
        state = c[ContextWord.WARPS].as_pointer().at(warp * c[ContextWord.STATE_BYTES])
        told = _released(context, state, source).at(phase.resized("i64") + offset).load(_VECTOR, 64)
        place = _released(context, state, target).at(at + to_offset)
        place.store(_later(b, place.load(_VECTOR, 64), told), align=64)


@runtime_function("void", context="ptr", state="ptr", lane="i32")
def fence_handed(b: Builder, context: IrValue, state: IrValue, lane: IrValue) -> None:
    """What a lane was handed has passed the proxy fence that it executes; to whoever has waited for the same, too."""
    with b.loop(WarpState(Context(context)[ContextWord.WARPS].as_pointer())[State.MBARRIERS].resized("i64")) as (
        number,
        numbers,
    ):
        phase = known_phase(b, context, state, number.resized("i32"), lane)
        with b.when(phase == _PENDING):
            numbers.go_on()
        _pass_on(b, context, number, phase, False, number, phase, True)


@runtime_function("void", context="ptr", number="i32")
def complete_phase(b: Builder, context: IrValue, number: IrValue) -> None:
    """What arrivals until now release, whoever waits for the mbarrier from now on is handed."""
    c, handover = Context(context), _handover(context, number)
    c[ContextWord.SERIAL] = c[ContextWord.SERIAL] + 1  # later than the waits before
    handover["before_at"], handover["latest_at"] = handover["latest_at"], c[ContextWord.SERIAL].resized("i32")
    for name, _ in _FAMILIES:
        handover[f"{name}before"], handover[f"{name}latest"] = handover[f"{name}latest"], handover[f"{name}pending"]
    with b.loop(c[ContextWord.WARP_COUNT]) as (warp, _):
        released = _released(context, c[ContextWord.WARPS].as_pointer().at(warp * c[ContextWord.STATE_BYTES]), number)
        for _, offset in _FAMILIES:
            for to, start in ((_BEFORE, _LATEST), (_LATEST, _PENDING)):
                released.at(offset + to).store(released.at(offset + start).load(_VECTOR, 64), align=64)


_HANDED = f"{__name__}.handed"  # every kernel is linked with it, and not with the rest


@runtime_function("i32", part=_HANDED, context="ptr", state="ptr", number="i32", lane="i32")
def known_phase(b: Builder, context: IrValue, state: IrValue, number: IrValue, lane: IrValue) -> None:
    """Which of the phases of an mbarrier that are complete a lane has waited for: _LATEST, _BEFORE, or 0 for neither."""
    known = state.at(Context(context)[ContextWord.WAITS] + number.resized("i64") * LANES_BYTES)
    waited = known.at(lane.resized("i64"), "i32").load("i32")
    handover = _handover(context, number)
    before = (waited >= handover["before_at"]).select(b.number(_BEFORE), 0)
    phase = (waited >= handover["latest_at"]).select(b.number(_LATEST), before)
    b.ret((waited == 0).select(b.number(0), phase))


@runtime_function("i1", part=_HANDED, context="ptr", state="ptr", lane="i32", thread="i32", serial="i32", fenced="i1")
def handed(
    b: Builder, context: IrValue, state: IrValue, lane: IrValue, thread: IrValue, serial: IrValue, fenced: IrValue
) -> None:
    """Whether a lane has waited for an mbarrier that releases another thread's access of that serial number; with `fenced`, and
    that it has passed a proxy fence."""
    c = Context(context)
    with b.when(c[ContextWord.WAITS] == 0):
        b.ret(0)
    warps = c[ContextWord.WARPS].as_pointer()
    theirs = warps.at((thread >> 5).resized("i64") * c[ContextWord.STATE_BYTES])
    with b.loop(WarpState(warps)[State.MBARRIERS].resized("i64")) as (number, numbers):
        phase = known_phase(b, context, state, number.resized("i32"), lane)
        with b.when(phase == 0):
            numbers.go_on()
        handover, is_latest = _handover(context, number), phase == _LATEST
        of_all = is_latest.select(handover["latest"], handover["before"])
        of_fenced = is_latest.select(handover["fenced_latest"], handover["fenced_before"])
        with b.when(serial <= fenced.select(of_fenced, of_all)):
            b.ret(1)
        family = fenced.select(b.number(_OF_FENCED, "i64"), 0)
        numbers_of = _released(context, theirs, number).at(phase.resized("i64") + family)
        with b.when(serial <= numbers_of.at((thread & WARP_SIZE - 1).resized("i64"), "i32").load("i32")):
            b.ret(1)
    b.ret(0)


@runtime_function("void", part=_HANDED, context="ptr")
def share_waits_of_block(b: Builder, context: IrValue) -> None:
    """The threads of the block meet: what one has waited for, all have."""
    c = Context(context)
    warps = c[ContextWord.WARPS].as_pointer()
    with b.when(c[ContextWord.WAITS] == 0):
        b.ret()
    latest = b.memory("i32")
    with b.loop(WarpState(warps)[State.MBARRIERS].resized("i64")) as (number, _):
        latest.store(0)
        offset = c[ContextWord.WAITS] + number * LANES_BYTES
        for collects in (True, False):
            with b.loop(c[ContextWord.WARP_COUNT]) as (warp, _):
                place = warps.at(warp * c[ContextWord.STATE_BYTES]).at(offset)
                if collects:
                    of_warp = b.intrinsic("llvm.vector.reduce.umax.v32i32", "i32", place.load(_VECTOR, 64))
                    latest.store(_later(b, latest.load("i32"), of_warp))
                else:
                    place.store(latest.load("i32").splat(), align=64)


@runtime_function("void", context="ptr", state="ptr", lanes="i32")
def share_waits(b: Builder, context: IrValue, state: IrValue, lanes: IrValue) -> None:
    """The lanes of a mask meet: what one has waited for, all have."""
    c = Context(context)
    known = state.at(c[ContextWord.WAITS])
    vector = f"<{WARP_SIZE} x i32>"
    with b.loop(WarpState(c[ContextWord.WARPS].as_pointer())[State.MBARRIERS].resized("i64")) as (number, _):
        place = known.at(number * LANES_BYTES)
        before = place.load(vector, 64)
        theirs = lanes.truths().select(before, 0)
        latest = b.intrinsic("llvm.vector.reduce.umax.v32i32", "i32", theirs)
        place.store(lanes.truths().select(latest.splat(), before), align=64)
