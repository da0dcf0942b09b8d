"""cp.async.bulk and mbarriers: a warp queues its copies, which are done at the wait that covers them and not before.

An mbarrier is a word of fields (`_Part`). A phase waits for arrivals and for bytes of copies. Once it waits for nothing but
bytes that queued copies have, a `try_wait` for it does those copies, and the next phase begins: with the other parity, and as
many arrivals as the mbarrier was made for.

What a copy wrote may be read by lanes that waited for it, whichever lane began it. So the sanitiser keeps for each mbarrier
when (`Slot.SERIAL`) each lane last found a phase complete, and marks the record of a copy that is done with its mbarrier and
that moment (`shadow.BROUGHT`). At `bar.warp.sync` lanes learn of each other's waits; a barrier of the block orders all."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.emulator.layout import Slot, State
from ptxgen.emulator.runtime.check import ALIGNED, access_word, check
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.reports import report
from ptxgen.emulator.runtime.shadow import (
    BROUGHT,
    KNOWN_BYTES,
    RECORD_BYTES,
    STATE_BYTES,
    THREAD_MASK,
    Access,
    GranuleState,
    Record,
    Slots,
)
from ptxgen.emulator.sanitizer import SPACE_CODES, FindingKind, extra
from ptxgen.isa.effects import MemoryScope
from ptxgen.target import WARP_SIZE

if TYPE_CHECKING:
    from ptxgen.emulator.runtime.builder import Builder, Value

CAPACITY = 256
"""Copies in flight a warp; one more completes the oldest early, which a program cannot tell from a fast memory."""
MOST = 512
"""Mbarriers of a block that the sanitiser tells apart; the later ones count as one."""
UNIT = 16
"""Bytes. Addresses and sizes of bulk copies are multiples of it."""
BYTES = 8
"""Of an mbarrier."""


class BulkCopy(ctypes.Structure):
    """A queued copy: addresses, that of the mbarrier which is `told` of it, bytes, the lane that began it, the PTX line."""

    _fields_ = (
        ("to", ctypes.c_int64),
        ("start", ctypes.c_int64),
        ("told", ctypes.c_int64),
        ("size", ctypes.c_int32),
        ("lane", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("spare", ctypes.c_int32),
    )


_COPY_BYTES = ctypes.sizeof(BulkCopy)
_QUEUE_BYTES = CAPACITY * _COPY_BYTES
_ADDRESSES = _QUEUE_BYTES
"""From `Slot.BULK` on a warp has its queue; then, in the first warp and for the sanitiser, are the addresses of the block's
mbarriers, `State.MBARRIERS` of them; then what each warp's lanes know of each."""
KNOWN = _ADDRESSES + BYTES * MOST


def bulk_bytes(*, sanitize: bool) -> int:
    """Bytes that a warp has for its copies, and for the sanitiser for its mbarriers."""
    return KNOWN + MOST * KNOWN_BYTES if sanitize else _QUEUE_BYTES


class _Part(NamedTuple):
    """Bits of an mbarrier's word."""

    shift: int
    bits: int

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    @property
    def places(self) -> int:
        return self.mask << self.shift

    def of(self, word: Value) -> Value:
        return word >> self.shift & self.mask

    def put(self, word: Value, number: Value) -> Value:
        return word & ~self.places | (number & self.mask) << self.shift


_PENDING, _EXPECTED, _BYTES, _PARITY, _MARK = (_Part(*p) for p in ((0, 20), (20, 20), (40, 21), (61, 1), (62, 2)))
"""Arrivals that the phase waits for, those of each phase, bytes that it waits for, its parity, and what memory that nobody
wrote (all ones), or that holds zeros, has not."""


def _is_mbarrier(word: Value) -> Value:
    return _MARK.of(word) == 1


@runtime_function("void", place="ptr", word="i64")
def settle(b: Builder, place: Value, word: Value) -> None:
    """Store an mbarrier; if its phase waits for nothing more, the next begins."""
    expected = _EXPECTED.of(word)
    following = _PENDING.put(word ^ _PARITY.places, expected)
    is_open = (word & (_PENDING.places | _BYTES.places)) != 0
    place.store(is_open.select(word, following))


@runtime_function("i32", context="ptr", address="i64")
def number_of(b: Builder, context: Value, address: Value) -> None:
    """The number of an mbarrier among those of the block. A new one gets the next, and no lane has waited for it."""
    c = b.context(context)
    warps = c[Slot.WARPS].as_pointer()
    s, addresses = b.state(warps), warps.at(c[Slot.BULK] + _ADDRESSES)
    count = s[State.MBARRIERS].resized("i64")
    with b.loop(count) as (i, _), b.when(addresses.at(i, "i64").load("i64") == address):
        b.ret(i.resized("i32"))
    with b.when(count == MOST):
        b.ret(MOST - 1)
    addresses.at(count, "i64").store(address)
    s[State.MBARRIERS] = (count + 1).resized("i32")
    with b.loop(c[Slot.WARP_COUNT]) as (warp, _):
        b.fill(warps.at(warp * c[Slot.STATE_BYTES] + c[Slot.WAITS] + count * KNOWN_BYTES), 0, KNOWN_BYTES)
    b.ret(count.resized("i32"))


@runtime_function("void", context="ptr", state="ptr", entry="ptr")
def complete_bulk_copy(b: Builder, context: Value, state: Value, entry: Value) -> None:
    """Do a queued copy and tell its mbarrier; for the sanitiser it is a write of this moment, and no longer on its way."""
    c, copy = b.context(context), b.fields(entry, BulkCopy)
    to, size, place = copy["to"], copy["size"].resized("i64"), copy["told"].as_pointer()
    b.copy(to.as_pointer(), copy["start"].as_pointer(), size)
    word = place.load("i64")
    settle(b, place, _BYTES.put(word, _BYTES.of(word) - size))
    with b.when(c[Slot.FINDINGS] == 0):
        b.ret()
    c[Slot.SERIAL] = c[Slot.SERIAL] + 1  # later than the waits before
    number = number_of(b, context, copy["told"])
    shadow, shift = c[Slot.SHADOW].as_pointer(), c[Slot.SHARED_SHIFT]
    states = shadow.at(c[Slot.SHARED_STRIDE] * Slots.END)
    epoch = c[Slot.EPOCH].resized("i32")
    first = (to - c[Slot.SHARED]) >> shift
    with b.loop(size >> shift) as (i, _):
        granule = b.fields(states.at((first + i) * STATE_BYTES), GranuleState)
        write = b.fields(shadow.at((first + i) * RECORD_BYTES), Record)
        with b.when(granule["on_the_way"] == 0):
            who, where = (write["what"] & THREAD_MASK).resized("i64"), to + (i << shift)
            report(b, context, state, FindingKind.UNDER_WAY, copy["line"], copy["lane"], where, who, 0)
        granule["written"], granule["on_the_way"] = epoch, 0
        write["epoch"], write["sync"], write["serial"] = epoch, number | BROUGHT, c[Slot.SERIAL].resized("i32")


@runtime_function("i1", context="ptr", address="i64")
def covered(b: Builder, context: Value, address: Value) -> None:
    """Whether the phase waits for nothing but bytes that the first of its queued copies have."""
    c = b.context(context)
    word = address.as_pointer().load("i64")
    with b.when(_PENDING.of(word) != 0):
        b.ret(0)
    left = b.memory("i64")
    left.store(_BYTES.of(word))
    with b.loop(c[Slot.WARP_COUNT]) as (warp, _):
        state = c[Slot.WARPS].as_pointer().at(warp * c[Slot.STATE_BYTES])
        queue = state.at(c[Slot.BULK])
        with b.loop(b.state(state)[State.BULK_COPIES].resized("i64")) as (i, entries):
            copy = b.fields(queue.at(i * _COPY_BYTES), BulkCopy)
            with b.when(copy["told"] != address):
                entries.go_on()
            left.store(left.load("i64") - copy["size"].resized("i64") & _BYTES.mask)
            with b.when(left.load("i64") == 0):
                b.ret(1)
    b.ret(0)


@runtime_function("void", context="ptr", address="i64")
def bring(b: Builder, context: Value, address: Value) -> None:
    """Do queued copies of an mbarrier until its phase is complete."""
    c = b.context(context)
    phase = _PARITY.of(address.as_pointer().load("i64"))
    kept = b.memory("i64")
    with b.loop(c[Slot.WARP_COUNT]) as (warp, _):
        state = c[Slot.WARPS].as_pointer().at(warp * c[Slot.STATE_BYTES])
        s, queue = b.state(state), state.at(c[Slot.BULK])
        kept.store(0, "i64")
        with b.loop(s[State.BULK_COPIES].resized("i64")) as (i, entries):
            entry = queue.at(i * _COPY_BYTES)
            in_phase = _PARITY.of(address.as_pointer().load("i64")) == phase
            with b.when((b.fields(entry, BulkCopy)["told"] == address) & in_phase):
                complete_bulk_copy(b, context, state, entry)
                entries.go_on()
            b.copy(queue.at(kept.load("i64") * _COPY_BYTES), entry, _COPY_BYTES)
            kept.store(kept.load("i64") + 1)
        s[State.BULK_COPIES] = kept.load("i64").resized("i32")


@runtime_function("i1", context="ptr", state="ptr", line="i32", lane="i32", address="i64")
def is_mbarrier(b: Builder, context: Value, state: Value, line: Value, lane: Value, address: Value) -> None:
    """Whether there is an mbarrier; reports it if there is none. Of memory that nothing wrote, `check` has told."""
    word = address.as_pointer().load("i64")
    with b.when(_is_mbarrier(word)):
        b.ret(1)
    with b.when(word != -1):
        report(b, context, state, FindingKind.MBARRIER, line, lane, address, -1, BYTES)
    b.ret(0)


@runtime_function("void", addresses="<32 x i64>", lanes="i32", counts="<32 x i32>")
def make_mbarriers(b: Builder, addresses: Value, lanes: Value, counts: Value) -> None:
    """Each lane of a mask makes an mbarrier."""
    table, numbers = b.table(addresses), b.table(counts)
    with b.each_lane(lanes) as (lane, _):
        count = b.entry(numbers, lane, "i32").resized("i64") & _PENDING.mask
        b.entry(table, lane, "i64").as_pointer().store(count | count << _EXPECTED.shift | 1 << _MARK.shift)


@runtime_function("<32 x i64>", context="ptr", state="ptr", addresses="<32 x i64>", lanes="i32", bytes="<32 x i32>", line="i32")
def arrive_expecting(
    b: Builder, context: Value, state: Value, addresses: Value, lanes: Value, bytes: Value, line: Value
) -> None:
    """Each lane of a mask has a phase wait for its bytes, and arrives. Gives the words before."""
    table, more = b.table(addresses), b.table(bytes)
    before = b.table(b.number(-1, "i64").splat())
    with b.each_lane(lanes) as (lane, every):
        address = b.entry(table, lane, "i64")
        with b.when(~is_mbarrier(b, context, state, line, lane, address)):
            every.go_on()
        place = address.as_pointer()
        word = place.load("i64")
        before.at(lane.resized("i64"), "i64").store(word)
        with b.when(_PENDING.of(word) == 0):
            report(b, context, state, FindingKind.ARRIVED, line, lane, address, -1, BYTES)
            every.go_on()
        expecting = _BYTES.put(word, _BYTES.of(word) + b.entry(more, lane, "i32").resized("i64"))
        settle(b, place, expecting - 1)
    b.ret(before.load(f"<{WARP_SIZE} x i64>", 64))


@runtime_function("i32", context="ptr", state="ptr", addresses="<32 x i64>", lanes="i32", parities="<32 x i32>", line="i32")
def try_wait(b: Builder, context: Value, state: Value, addresses: Value, lanes: Value, parities: Value, line: Value) -> None:
    """The lanes of a mask whose phase is complete. In a sanitised kernel that of what is no mbarrier is, so that it goes on."""
    c = b.context(context)
    sanitised = c[Slot.FINDINGS] != 0
    odd = ((parities & 1) != 0).mask()
    table = b.table(addresses)
    left, complete_lanes = b.memory("i32"), b.memory("i32")
    left.store(lanes)
    complete_lanes.store(0)
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

        def waiting() -> Value:
            """Those for whose phase the mbarrier still waits."""
            at_hand = _PARITY.of(address.as_pointer().load("i64")) != 0
            return at_hand.select(odd, ~odd) & members

        with b.when(waiting() != 0), b.when(covered(b, context, address)):
            bring(b, context, address)
        done = members & ~waiting()
        complete_lanes.store(complete_lanes.load("i32") | done)
        with b.when(sanitised & (done != 0)):
            number = number_of(b, context, address).resized("i64")
            known = state.at(c[Slot.WAITS] + number * KNOWN_BYTES)
            now = c[Slot.SERIAL].resized("i32").splat()
            known.store(done.truths().select(now, known.load(f"<{WARP_SIZE} x i32>", 64)), align=64)
    b.ret(complete_lanes.load("i32"))


@runtime_function(
    "void", context="ptr", state="ptr", lanes="i32", to="<32 x i64>", start="<32 x i64>", size="<32 x i32>",
    barriers="<32 x i64>", line="i32",
)  # fmt: skip
def queue_bulk_copies(
    b: Builder, context: Value, state: Value, lanes: Value, to: Value, start: Value, size: Value, barriers: Value, line: Value
) -> None:
    """Each lane of a mask queues a copy."""
    c, s = b.context(context), b.state(state)
    targets, starts, sizes, mbarriers = (b.table(v) for v in (to, start, size, barriers))
    queue = state.at(c[Slot.BULK])
    with b.each_lane(lanes) as (lane, every):
        target, source = b.entry(targets, lane, "i64"), b.entry(starts, lane, "i64")
        bytes, barrier = b.entry(sizes, lane, "i32"), b.entry(mbarriers, lane, "i64")
        with b.when(bytes == 0):
            every.go_on()
        with b.when(c[Slot.FINDINGS] != 0), b.when(~may_copy(b, context, state, lane, target, source, bytes, barrier, line)):
            every.go_on()
        with b.when(~is_mbarrier(b, context, state, line, lane, barrier)):
            every.go_on()
        with b.when(s[State.BULK_COPIES] >= CAPACITY):
            complete_bulk_copy(b, context, state, queue)
            b.copy(queue, queue.at(_COPY_BYTES), _QUEUE_BYTES - _COPY_BYTES)
            s[State.BULK_COPIES] = s[State.BULK_COPIES] - 1
        count = s[State.BULK_COPIES]
        copy = b.fields(queue.at(count.resized("i64") * _COPY_BYTES), BulkCopy)
        copy["to"], copy["start"], copy["told"], copy["size"] = target, source, barrier, bytes
        copy["lane"], copy["line"] = lane, line
        s[State.BULK_COPIES] = count + 1


@runtime_function("i1", context="ptr", state="ptr", lane="i32", to="i64", start="i64", size="i32", barrier="i64", line="i32")
def may_copy(
    b: Builder, context: Value, state: Value, lane: Value, to: Value, start: Value, size: Value, barrier: Value, line: Value
) -> None:
    """What the sanitiser asks of a copy where it begins; what is wrong with one side hides nothing of the other."""

    def say(condition: Value, kind: FindingKind, address: Value, what: Value | int) -> None:
        with b.when(condition):
            report(b, context, state, kind, line, lane, address, 0, what)

    uneven, lost, far = (((number & UNIT - 1) != 0) for number in (size, to, start))
    say(uneven, FindingKind.COPY_SIZE, to, size.resized("i64"))
    say(lost, FindingKind.MISALIGNED, to, extra(UNIT, "shared", writes=True))
    say(far, FindingKind.MISALIGNED, start, extra(UNIT, "", writes=False))
    with b.when(uneven | lost | far):
        b.ret(0)
    bit, bytes, shared = b.number(1) << lane, size.resized("i64"), SPACE_CODES["shared"]
    filled = check(b, context, state, to.splat(), bit, bytes, shared, access_word(Access.COPY, 0, 0) | ALIGNED, line)
    taken = check(b, context, state, start.splat(), bit, bytes, 0, access_word(Access.LOAD, 0, 0) | ALIGNED, line)
    told = check(b, context, state, barrier.splat(), bit, BYTES, shared, MBARRIER_READ, line)
    b.ret((filled & taken & told) != 0)


MBARRIER_READ = access_word(Access.LOAD, MemoryScope.BLOCK, MemoryScope.BLOCK)
"""What `check` is told of whoever asks an mbarrier or tells a copy of it: as of an atomic, these do not race."""


@runtime_function("void", context="ptr", state="ptr", lanes="i32")
def share_waits(b: Builder, context: Value, state: Value, lanes: Value) -> None:
    """The lanes of a mask meet: what one has waited for, all have."""
    c = b.context(context)
    known = state.at(c[Slot.WAITS])
    vector = f"<{WARP_SIZE} x i32>"
    with b.loop(b.state(c[Slot.WARPS].as_pointer())[State.MBARRIERS].resized("i64")) as (number, _):
        place = known.at(number * KNOWN_BYTES)
        before = place.load(vector, 64)
        theirs = lanes.truths().select(before, 0)
        latest = b.intrinsic("llvm.vector.reduce.umax.v32i32", "i32", theirs)
        place.store(lanes.truths().select(latest.splat(), before), align=64)


@runtime_function("void", part=f"{__name__}.end", context="ptr")  # every kernel is linked with it, and not with the rest
def report_unwaited(b: Builder, context: Value) -> None:
    """At the end of a block: report the copies that nothing waited for."""
    c = b.context(context)
    with b.loop(c[Slot.WARP_COUNT]) as (warp, _):
        state = c[Slot.WARPS].as_pointer().at(warp * c[Slot.STATE_BYTES])
        with b.loop(b.state(state)[State.BULK_COPIES].resized("i64")) as (i, _):
            copy = b.fields(state.at(c[Slot.BULK]).at(i * _COPY_BYTES), BulkCopy)
            size = copy["size"].resized("i64")
            report(b, context, state, FindingKind.UNWAITED, copy["line"], copy["lane"], copy["to"], -1, size)
