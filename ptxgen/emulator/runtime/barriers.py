"""Barriers: lanes parked, woken and released. When that happens, schedule.py and a warp's own code decide.

A lane's pc is the block of code where it goes on; with WAITING set it waits there, and EXITED is past the end. What a lane
waits for is its `State.KIND`: 0 the lanes of its warp, n+1 barrier n of the block."""

from __future__ import annotations

from ptxgen.emulator.layout import BARRIERS, EXITED, WAITING, ContextWord, State
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.proxies import meet_as_block
from ptxgen.emulator.runtime.reports import report
from ptxgen.emulator.runtime.views import Context, WarpState
from ptxgen.emulator.sanitizer import FindingKind
from ptxgen.target import WARP_SIZE


@runtime_function("void", state="ptr", lanes="i32", taken="i32", target="i32", other="i32")
def leave(b: Builder, state: IrValue, lanes: IrValue, taken: IrValue, target: IrValue, other: IrValue) -> None:
    """The lanes of a mask go on at `target` if they are in `taken`, else at `other`."""
    s = WarpState(state)
    onward = taken.truths().select(target.splat(), other.splat())
    s[State.PCS] = lanes.truths().select(onward, s[State.PCS])


@runtime_function("void", state="ptr", lanes="i32", pc="i32", kind="<32 x i32>", need="<32 x i32>", line="i32")
def park(b: Builder, state: IrValue, lanes: IrValue, pc: IrValue, kind: IrValue, need: IrValue, line: IrValue) -> None:
    """The lanes of a mask wait, and go on at `pc`. `need` is how many threads the barrier waits for, 0 for all."""
    s = WarpState(state)
    waiting = pc | WAITING
    leave(b, state, lanes, lanes, waiting, waiting)
    truths = lanes.truths()
    s[State.KIND] = truths.select(kind, s[State.KIND])
    s[State.NEED] = truths.select(need, s[State.NEED])
    s[State.LINE] = truths.select(line.splat(), s[State.LINE])


@runtime_function("void", state="ptr", lanes="i32", pc="i32", kind="<32 x i32>", need="<32 x i32>", line="i32", votes="i32")
def park_voting(
    b: Builder, state: IrValue, lanes: IrValue, pc: IrValue, kind: IrValue, need: IrValue, line: IrValue, votes: IrValue
) -> None:
    """`park` at a barrier that counts for how many threads a predicate holds: `votes` are the lanes for which it does."""
    s = WarpState(state)
    s[State.VOTERS] = s[State.VOTERS] | lanes
    s[State.VOTES] = s[State.VOTES] & ~lanes | votes & lanes
    park(b, state, lanes, pc, kind, need, line)


def _give_counts(b: Builder, s: WarpState, lanes: IrValue, votes: IrValue) -> None:
    """Those of the lanes that wait for a count get that of their barrier, whose number they still have."""
    left = b.memory("i32")
    left.store(s[State.VOTERS] & lanes)
    with b.loop() as (_, groups):
        rest = left.load("i32")
        with b.when(rest == 0):
            groups.stop()
        kind = s[State.KIND].element(b.first_lane(rest))
        members = (s[State.KIND] == kind.splat()).mask() & rest
        left.store(rest ^ members)
        count = votes.at((kind - 1).resized("i64"), "i32").load("i32")
        s[State.COUNTED] = members.truths().select(count.splat(), s[State.COUNTED])


def _waiting(s: WarpState) -> IrValue:
    """The lanes that wait, as truths."""
    pcs = s[State.PCS]
    return (pcs >= WAITING) & (pcs != EXITED)


@runtime_function("i1", state="ptr")
def wake(b: Builder, state: IrValue) -> None:
    """Let the lanes go on that wait for their warp; whether there are any. It is called once no lane of the warp can run: those
    that are to come are here by then."""
    s = WarpState(state)
    woken = _waiting(s) & (s[State.KIND] == 0)
    s[State.PCS] = woken.select(s[State.PCS] & (WAITING - 1), s[State.PCS])
    b.ret(woken.mask() != 0)


@runtime_function("i1", context="ptr")
def release(b: Builder, context: IrValue) -> None:
    """Open each barrier of the block that as many threads wait at as it needs; whether there is none. All threads of the block
    wait, sleep or have ended. One that waits for all opens when those wait that have not ended; that others ended is a
    finding."""
    c = Context(context)
    sanitised = c[ContextWord.FINDINGS] != 0
    warps, count, state_bytes = c[ContextWord.WARPS].as_pointer(), c[ContextWord.WARP_COUNT], c[ContextWord.STATE_BYTES]
    arrived = c[ContextWord.ARRIVED].as_pointer()
    threads = c[ContextWord.THREADS].resized("i32")
    # One more than there are, for barriers of other numbers; they never open
    waiters, needs, lines, votes = (b.memory("i32", BARRIERS + 1) for _ in range(4))
    b.fill(waiters, 0, 4 * (BARRIERS + 1))
    b.fill(votes, 0, 4 * (BARRIERS + 1))
    alive = b.memory("i32")
    alive.store(0)
    with b.loop(count) as (warp, _):
        s = WarpState(warps.at(warp * state_bytes))
        waiting = _waiting(s).mask()
        alive.store(alive.load("i32") + b.population((s[State.PCS] != EXITED).mask()))
        left = b.memory("i32")
        left.store(waiting)
        with b.loop() as (_, groups):  # of lanes at one barrier
            rest = left.load("i32")
            with b.when(rest == 0):
                groups.stop()
            lane = b.first_lane(rest)
            kind = s[State.KIND].element(lane)
            members = (s[State.KIND] == kind.splat()).mask() & rest
            left.store(rest ^ members)
            number = (kind - 1 > BARRIERS).select(b.number(BARRIERS), kind - 1).resized("i64")
            place = waiters.at(number, "i32")
            place.store(place.load("i32") + b.population(members))
            voted = votes.at(number, "i32")
            voted.store(voted.load("i32") + b.population(s[State.VOTERS] & s[State.VOTES] & members))
            needs.at(number, "i32").store(s.of_lane(State.NEED, lane).load("i32"))
            lines.at(number, "i32").store(s.of_lane(State.LINE, lane).load("i32"))
    opened = b.memory("i32")
    opened.store(0)
    with b.loop(b.number(BARRIERS, "i64")) as (number, barriers):
        waiting_here = waiters.at(number, "i32").load("i32")
        with b.when(waiting_here == 0):
            barriers.go_on()
        arrivals = arrived.at(number, "i32")
        here = waiting_here + arrivals.load("i32")
        need = needs.at(number, "i32").load("i32")
        for_all = need == 0
        with b.when(here < for_all.select(alive.load("i32"), need)):
            barriers.go_on()
        arrivals.store(0)
        with b.when(sanitised & for_all & (here != threads)):
            line = lines.at(number, "i32").load("i32")
            report(
                b,
                context,
                warps,
                b.number(FindingKind.BARRIER),
                line,
                b.number(0),
                here.resized("i64"),
                number,
                c[ContextWord.THREADS],
            )
        opened.store(opened.load("i32") | b.number(1) << number.resized("i32"))
    open_bits = opened.load("i32")
    with b.when(open_bits == 0):
        b.ret(1)
    c[ContextWord.EPOCH] = c[ContextWord.EPOCH] + 1
    with b.when(sanitised):
        meet_as_block(b, context)
    with b.loop(c[ContextWord.TOGETHER]) as (i, _):
        known, taken = (c[slot].as_pointer().at(i, "i32") for slot in (ContextWord.KNOWN, ContextWord.TAKEN))
        later = known.load("i32") < taken.load("i32")
        known.store(later.select(taken.load("i32"), known.load("i32")))
    with b.loop(count) as (warp, others):
        state = warps.at(warp * state_bytes)
        s = WarpState(state)
        pcs = s[State.PCS]
        is_open = (open_bits.splat() >> (s[State.KIND] - 1 & BARRIERS - 1)).resized(f"<{WARP_SIZE} x i1>")
        released = is_open & _waiting(s)
        s[State.PCS] = released.select(pcs & (WAITING - 1), pcs)
        lanes = released.mask()
        with b.when((s[State.VOTERS] & lanes) != 0):
            _give_counts(b, s, lanes, votes)
        with b.when((lanes == 0) | ~sanitised):
            others.go_on()
        elsewhere = (pcs != pcs.element(b.first_lane(lanes)).splat()).mask() & lanes
        with b.when(elsewhere != 0):
            lane = b.first_lane(elsewhere)
            line = s.of_lane(State.LINE, lane).load("i32")
            zero = b.number(0, "i64")
            report(b, context, state, b.number(FindingKind.BARRIER_DIVERGED), line, lane, zero, b.number(-1, "i64"), zero)
    b.ret(0)
