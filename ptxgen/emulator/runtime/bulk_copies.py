"""cp.async.bulk: a warp queues its copies, which are done at the wait that covers them and not before. Once the phase of an
mbarrier waits for nothing but bytes that queued copies have, a `try_wait` for it does those copies, and the next phase begins.

A program may see what a copy brings at any moment from where it begins on. So with a seed (`ContextWord.HASTE`) the bytes of
some are moved at once, of some between two later instructions, of the others at the wait (`hurry`); for all else, the sanitiser
among it, a copy is done at the wait.

What a copy wrote may be read by lanes that waited for it, whichever lane began it. So the record of a copy that is done is
marked with its mbarrier and the moment (`shadow.BROUGHT`), which mbarriers.py compares with when each lane waited."""

from __future__ import annotations

import ctypes

from ptxgen.emulator.layout import LANES_BYTES, ContextWord, State
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.check import ALIGNED, access_word, check
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.handovers import BYTES, WAITS_BYTES, complete_phase, number_of
from ptxgen.emulator.runtime.haste import chosen
from ptxgen.emulator.runtime.mbarriers import PARITY, PENDING, TO_COPY, is_mbarrier, settle
from ptxgen.emulator.runtime.proxies import look_at_ordinary
from ptxgen.emulator.runtime.reports import report
from ptxgen.emulator.runtime.shadow import (
    BROUGHT,
    RECORD_BYTES,
    STATE_BYTES,
    THREAD_MASK,
    AccessKind,
    GranuleState,
    Record,
    Slots,
)
from ptxgen.emulator.runtime.views import Context, StructView, WarpState
from ptxgen.emulator.sanitizer import SPACE_CODES, FindingKind, extra
from ptxgen.isa.effects import MemoryScope
from ptxgen.target import WARP_SIZE

CAPACITY = 256
"""Copies in flight a warp; one more completes the oldest early, which a program cannot tell from a fast memory."""
UNIT = 16
"""Bytes. Addresses and sizes of bulk copies are multiples of it."""


class BulkCopy(ctypes.Structure):
    """A queued copy: addresses, that of the mbarrier which is `told` of it, bytes, the lane that began it, the PTX line, and 1
    if its bytes were `moved` already."""

    _fields_ = (
        ("to", ctypes.c_int64),
        ("start", ctypes.c_int64),
        ("told", ctypes.c_int64),
        ("size", ctypes.c_int32),
        ("lane", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("moved", ctypes.c_int32),
    )


_COPY_BYTES = ctypes.sizeof(BulkCopy)
QUEUE_BYTES = CAPACITY * _COPY_BYTES
"""From `ContextWord.BULK` on a warp has its queue, and then what the sanitiser knows of mbarriers."""


def bulk_bytes(*, sanitize: bool) -> int:
    """Bytes that a warp has for its copies, and for the sanitiser for its mbarriers."""
    return QUEUE_BYTES + WAITS_BYTES if sanitize else QUEUE_BYTES


@runtime_function("void", entry="ptr")
def move(b: Builder, entry: IrValue) -> None:
    """Move the bytes of a queued copy, if they were not before."""
    copy = StructView(entry, BulkCopy)
    with b.when(copy["moved"] != 0):
        b.ret()
    copy["moved"] = 1
    b.copy(copy["to"].as_pointer(), copy["start"].as_pointer(), copy["size"].resized("i64"))


@runtime_function("void", context="ptr", state="ptr")
def hurry(b: Builder, context: IrValue, state: IrValue) -> None:
    """Move the bytes of some copy of the warp, or of none, as chance will have it; of none without a seed."""
    count = WarpState(state)[State.BULK_COPIES]
    which = chosen(b, context, count)
    with b.when(which != count.resized("i64")):
        move(b, state.at(Context(context)[ContextWord.BULK]).at(which * _COPY_BYTES))


@runtime_function("void", context="ptr", state="ptr", entry="ptr")
def complete_bulk_copy(b: Builder, context: IrValue, state: IrValue, entry: IrValue) -> None:
    """Do a queued copy and tell its mbarrier; for the sanitiser it is a write of this moment, and no longer on its way."""
    c, copy = Context(context), StructView(entry, BulkCopy)
    to, size, place = copy["to"], copy["size"].resized("i64"), copy["told"].as_pointer()
    move(b, entry)
    word = place.load("i64")
    completes = settle(b, place, TO_COPY.put(word, TO_COPY.of(word) - size))
    with b.when(c[ContextWord.FINDINGS] == 0):
        b.ret()
    c[ContextWord.SERIAL] = c[ContextWord.SERIAL] + 1  # later than the waits before
    number = number_of(b, context, copy["told"])
    with b.when(completes):
        complete_phase(b, context, number)
    shadow, shift = c[ContextWord.SHADOW].as_pointer(), c[ContextWord.SHARED_SHIFT]
    states = shadow.at(c[ContextWord.SHARED_STRIDE] * Slots.END)
    epoch = c[ContextWord.EPOCH].resized("i32")
    first = (to - c[ContextWord.SHARED]) >> shift
    with b.loop(size >> shift) as (i, _):
        granule = StructView(states.at((first + i) * STATE_BYTES), GranuleState)
        write = StructView(shadow.at((first + i) * RECORD_BYTES), Record)
        with b.when(granule["on_the_way"] == 0):
            who, where = (write["what"] & THREAD_MASK).resized("i64"), to + (i << shift)
            report(b, context, state, FindingKind.UNDER_WAY, copy["line"], copy["lane"], where, who, 0)
        granule["written"], granule["on_the_way"] = epoch, 0
        write["epoch"], write["sync"], write["serial"] = epoch, number | BROUGHT, c[ContextWord.SERIAL].resized("i32")


@runtime_function("i1", context="ptr", address="i64")
def covered(b: Builder, context: IrValue, address: IrValue) -> None:
    """Whether the phase waits for nothing but bytes that the first of its queued copies have."""
    c = Context(context)
    word = address.as_pointer().load("i64")
    with b.when(PENDING.of(word) != 0):
        b.ret(0)
    left = b.memory("i64")
    left.store(TO_COPY.of(word))
    with b.loop(c[ContextWord.WARP_COUNT]) as (warp, _):
        state = c[ContextWord.WARPS].as_pointer().at(warp * c[ContextWord.STATE_BYTES])
        queue = state.at(c[ContextWord.BULK])
        with b.loop(WarpState(state)[State.BULK_COPIES].resized("i64")) as (i, entries):
            copy = StructView(queue.at(i * _COPY_BYTES), BulkCopy)
            with b.when(copy["told"] != address):
                entries.go_on()
            left.store(left.load("i64") - copy["size"].resized("i64") & TO_COPY.mask)
            with b.when(left.load("i64") == 0):
                b.ret(1)
    b.ret(0)


@runtime_function("void", context="ptr", address="i64")
def bring(b: Builder, context: IrValue, address: IrValue) -> None:
    """Do queued copies of an mbarrier until its phase is complete."""
    c = Context(context)
    phase = PARITY.of(address.as_pointer().load("i64"))
    kept = b.memory("i64")
    with b.loop(c[ContextWord.WARP_COUNT]) as (warp, _):
        state = c[ContextWord.WARPS].as_pointer().at(warp * c[ContextWord.STATE_BYTES])
        s, queue = WarpState(state), state.at(c[ContextWord.BULK])
        kept.store(0, "i64")
        with b.loop(s[State.BULK_COPIES].resized("i64")) as (i, entries):
            entry = queue.at(i * _COPY_BYTES)
            in_phase = PARITY.of(address.as_pointer().load("i64")) == phase
            with b.when((StructView(entry, BulkCopy)["told"] == address) & in_phase):
                complete_bulk_copy(b, context, state, entry)
                entries.go_on()
            b.copy(queue.at(kept.load("i64") * _COPY_BYTES), entry, _COPY_BYTES)
            kept.store(kept.load("i64") + 1)
        s[State.BULK_COPIES] = kept.load("i64").resized("i32")


@runtime_function("i32", context="ptr", state="ptr", addresses="<32 x i64>", lanes="i32", parities="<32 x i32>", line="i32")
def try_wait(
    b: Builder, context: IrValue, state: IrValue, addresses: IrValue, lanes: IrValue, parities: IrValue, line: IrValue
) -> None:
    """The lanes of a mask whose phase is complete. In a sanitised kernel that of what is no mbarrier is, so that it goes on."""
    c = Context(context)
    sanitised = c[ContextWord.FINDINGS] != 0
    odd = ((parities & 1) != 0).mask()
    table = b.table(addresses)
    left, complete_lanes = b.memory("i32"), b.memory("i32")
    left.store(lanes)
    complete_lanes.store(0)
    hurry(b, context, state)
    with b.loop() as (_, groups):  # of lanes that wait at one mbarrier
        rest = left.load("i32")
        with b.when(rest == 0):
            groups.stop()
        lane = b.first_lane(rest)
        address = b.entry(table, lane, "i64")
        members = (addresses == address.splat()).mask() & rest
        left.store(rest ^ members)
        with b.when(~is_mbarrier(b, context, state, line, lane, address)):
            complete_lanes.store(complete_lanes.load("i32") | sanitised.select(members, 0))
            groups.go_on()

        def waiting() -> IrValue:
            """Those for whose phase the mbarrier still waits."""
            at_hand = PARITY.of(address.as_pointer().load("i64")) != 0
            return at_hand.select(odd, ~odd) & members

        with b.when(waiting() != 0), b.when(covered(b, context, address)):
            bring(b, context, address)
        done = members & ~waiting()
        complete_lanes.store(complete_lanes.load("i32") | done)
        with b.when(sanitised & (done != 0)):
            number = number_of(b, context, address).resized("i64")
            known = state.at(c[ContextWord.WAITS] + number * LANES_BYTES)
            now = c[ContextWord.SERIAL].resized("i32").splat()
            known.store(done.truths().select(now, known.load(f"<{WARP_SIZE} x i32>", 64)), align=64)
    b.ret(complete_lanes.load("i32"))


@runtime_function(
    "void",
    context="ptr",
    state="ptr",
    lanes="i32",
    to="<32 x i64>",
    start="<32 x i64>",
    size="<32 x i32>",
    barriers="<32 x i64>",
    line="i32",
)
def queue_bulk_copies(
    b: Builder,
    context: IrValue,
    state: IrValue,
    lanes: IrValue,
    to: IrValue,
    start: IrValue,
    size: IrValue,
    barriers: IrValue,
    line: IrValue,
) -> None:
    """Each lane of a mask queues a copy."""
    c, s = Context(context), WarpState(state)
    targets, starts, sizes, mbarriers = (b.table(v) for v in (to, start, size, barriers))
    queue = state.at(c[ContextWord.BULK])
    hurry(b, context, state)
    with b.each_lane(lanes) as (lane, every):
        target, source = b.entry(targets, lane, "i64"), b.entry(starts, lane, "i64")
        bytes, barrier = b.entry(sizes, lane, "i32"), b.entry(mbarriers, lane, "i64")
        with b.when(bytes == 0):
            every.go_on()
        with (
            b.when(c[ContextWord.FINDINGS] != 0),
            b.when(~may_copy(b, context, state, lane, target, source, bytes, barrier, line)),
        ):
            every.go_on()
        with b.when(~is_mbarrier(b, context, state, line, lane, barrier)):
            every.go_on()
        with b.when(s[State.BULK_COPIES] >= CAPACITY):
            complete_bulk_copy(b, context, state, queue)
            b.copy(queue, queue.at(_COPY_BYTES), QUEUE_BYTES - _COPY_BYTES)
            s[State.BULK_COPIES] = s[State.BULK_COPIES] - 1
        count = s[State.BULK_COPIES]
        copy = StructView(queue.at(count.resized("i64") * _COPY_BYTES), BulkCopy)
        copy["to"], copy["start"], copy["told"], copy["size"] = target, source, barrier, bytes
        copy["lane"], copy["line"], copy["moved"] = lane, line, 0
        s[State.BULK_COPIES] = count + 1
    hurry(b, context, state)


@runtime_function("i1", context="ptr", state="ptr", lane="i32", to="i64", start="i64", size="i32", barrier="i64", line="i32")
def may_copy(
    b: Builder,
    context: IrValue,
    state: IrValue,
    lane: IrValue,
    to: IrValue,
    start: IrValue,
    size: IrValue,
    barrier: IrValue,
    line: IrValue,
) -> None:
    """What the sanitiser asks of a copy where it begins; what is wrong with one side hides nothing of the other."""

    def say(condition: IrValue, kind: FindingKind, address: IrValue, what: IrValue | int) -> None:
        with b.when(condition):
            report(b, context, state, kind, line, lane, address, 0, what)

    uneven, lost, far = (((number & UNIT - 1) != 0) for number in (size, to, start))
    say(uneven, FindingKind.COPY_SIZE, to, size.resized("i64"))
    say(lost, FindingKind.MISALIGNED, to, extra(UNIT, "shared", writes=True))
    say(far, FindingKind.MISALIGNED, start, extra(UNIT, "", writes=False))
    with b.when(uneven | lost | far):
        b.ret(0)
    bit, bytes, shared = b.number(1) << lane, size.resized("i64"), SPACE_CODES["shared"]
    look_at_ordinary(b, context, state, lane, to, bytes, line)
    filled = check(b, context, state, to.splat(), bit, bytes, shared, access_word(AccessKind.COPY, 0, 0) | ALIGNED, line)
    taken = check(b, context, state, start.splat(), bit, bytes, 0, access_word(AccessKind.LOAD, 0, 0) | ALIGNED, line)
    told = check(b, context, state, barrier.splat(), bit, BYTES, shared, MBARRIER_READ, line)
    b.ret((filled & taken & told) != 0)


MBARRIER_READ = access_word(AccessKind.LOAD, MemoryScope.BLOCK, MemoryScope.BLOCK)
"""What `check` is told of whoever asks an mbarrier or tells a copy of it: as of an atomic, these do not race."""


@runtime_function("void", part=f"{__name__}.end", context="ptr")  # every kernel is linked with it, and not with the rest
def report_unwaited(b: Builder, context: IrValue) -> None:
    """At the end of a block: report the copies that nothing waited for."""
    c = Context(context)
    with b.loop(c[ContextWord.WARP_COUNT]) as (warp, _):
        state = c[ContextWord.WARPS].as_pointer().at(warp * c[ContextWord.STATE_BYTES])
        with b.loop(WarpState(state)[State.BULK_COPIES].resized("i64")) as (i, _):
            copy = StructView(state.at(c[ContextWord.BULK]).at(i * _COPY_BYTES), BulkCopy)
            size = copy["size"].resized("i64")
            report(b, context, state, FindingKind.UNWAITED, copy["line"], copy["lane"], copy["to"], -1, size)
