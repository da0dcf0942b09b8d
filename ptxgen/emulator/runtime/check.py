"""The check of one memory access: bounds, alignment, unwritten memory, races. What it finds, sanitizer.py words; who touched
memory before, shadow.py knows."""

from __future__ import annotations

import ctypes

from ptxgen.emulator.layout import ContextWord, State
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.reports import report, report_lanes
from ptxgen.emulator.runtime.shadow import (
    ASYNCHRONOUS,
    EVERY_THREAD,
    EVERY_WARP,
    LATE,
    LINE_BITS,
    MAX_LINE,
    OLDEST_EPOCH,
    RECORD_BYTES,
    STATE_BYTES,
    THREAD_BITS,
    AccessKind,
    Me,
    Record,
    Slots,
    Verdict,
    touches,
)
from ptxgen.emulator.runtime.views import Context, StructView, WarpState
from ptxgen.emulator.sanitizer import EXTRA_SPACE, EXTRA_STORE, OTHER_EPOCH, SPACE_CODES, FindingKind
from ptxgen.target import WARP_SIZE

READ_ONLY, WATCHED, CONSTANT, SETTLED = 1, 2, 4, 8
"""Flags of a map entry: nobody may write it; it has a shadow; no launch before writes it; nor does this one before its wait."""
ACCESS_BITS, SCOPE_BITS = 8, 8
"""Of what a check is told of an access: an `AccessKind`, its scope in shared memory, its scope in global memory."""
ALIGNED = 1 << ACCESS_BITS + 2 * SCOPE_BITS
"""Set in it where the alignment was checked."""
ASYNCHRONOUSLY = ALIGNED << 1
"""Set in it where the asynchronous proxy reads."""
READ_ONLY_PATH = ALIGNED << 2
"""Set in it for a load that promises that nobody writes there while the kernel runs."""
LATE_LOAD = ALIGNED << 3
"""Set in it for a load that may not have its value when its thread arrives at an mbarrier."""
_VERDICTS = {
    Verdict.UNWRITTEN: FindingKind.UNINITIALISED,
    Verdict.ON_THE_WAY: FindingKind.EARLY,
    Verdict.WRITER: FindingKind.RACE_READ,
    Verdict.READER: FindingKind.RACE_WRITE,
}


class MapEntry(ctypes.Structure):
    """An allocation of global memory, as launch_map.py lists them by address, with one behind them that starts beyond every
    address. `written` is the address of a byte for each byte that says whether it was written, or 0. Where WATCHED, `records`
    is where the first record of address 0 would lie, and `stride` the distance of a granule's records (shadow.py)."""

    _fields_ = (
        ("base", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("flags", ctypes.c_int64),
        ("written", ctypes.c_int64),
        ("records", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


def access_word(access: AccessKind, shared_scope: int, global_scope: int) -> int:
    """What `check` is told of an access."""
    return access | shared_scope << ACCESS_BITS | global_scope << ACCESS_BITS + SCOPE_BITS


def _inside(offset: IrValue, size: IrValue, limit: IrValue) -> IrValue:
    """Whether `size` bytes from an offset on, which wraps where it is before the start, are within `limit` bytes."""
    return (offset + size <= limit) & (offset < limit)


def who(record: StructView) -> IrValue:
    """Who made an access, as the `other` of a finding names it."""
    place = record["what"] & (1 << THREAD_BITS + LINE_BITS) - 1
    return place.resized("i64") | record["epoch"].resized("i64") << OTHER_EPOCH


def ask_mbarriers(b: Builder, context: IrValue, state: IrValue, mine: StructView) -> None:
    """Tell the shadow where to ask what the warp's lanes have waited for, and were handed, if there is any mbarrier."""
    waits = Context(context)[ContextWord.WAITS]
    mine["waits"] = state.at(waits)
    for name, pointer in (("context", context), ("state", state)):
        mine[name] = (waits != 0).select(b.emit("i64", f"ptrtoint {pointer} to i64"), 0)


@runtime_function("ptr", context="ptr", address="i64", size="i64")
def allocation_of(b: Builder, context: IrValue, address: IrValue, size: IrValue) -> None:
    """The map entry of an allocation that holds all these bytes, or null. Asked first is the last that starts at or before the
    address; then, as some may overlap, each in turn."""
    c = Context(context)
    entries, count = c[ContextWord.MAP].as_pointer(), c[ContextWord.MAP_COUNT]
    bytes = ctypes.sizeof(MapEntry)
    low, high = b.memory("i64"), b.memory("i64")
    low.store(0, "i64")
    high.store(count)
    with b.loop() as (_, halving):
        start, end = low.load("i64"), high.load("i64")
        with b.when(start >= end):
            halving.stop()
        middle = (start + end) >> 1
        before = StructView(entries.at(middle * bytes), MapEntry)["base"] <= address
        low.store(before.select(middle + 1, start))
        high.store(before.select(end, middle))
    with b.when(low.load("i64") != 0):
        nearest = entries.at((low.load("i64") - 1) * bytes)
        entry = StructView(nearest, MapEntry)
        with b.when(_inside(address - entry["base"], size, entry["size"])):
            b.ret(nearest)
    with b.loop(count) as (i, _):
        place = entries.at(i * bytes)
        entry = StructView(place, MapEntry)
        with b.when(_inside(address - entry["base"], size, entry["size"])):
            b.ret(place)
    b.ret(b.null())


@runtime_function("i1", me="ptr", records="ptr", granules="i64", other="ptr")
def written_in_launch(b: Builder, me: IrValue, records: IrValue, granules: IrValue, other: IrValue) -> None:
    """Whether a thread of this launch has written one of the granules, in whatever order with me; who goes to `other`."""
    mine = StructView(me, Me)
    with b.loop(granules) as (i, _), b.loop(b.number(Slots.READS, "i64")) as (slot, writes):
        record = records.at(i * RECORD_BYTES + slot * mine["stride"])
        written = StructView(record, Record)
        of_earlier_launch = written["what"] >> THREAD_BITS == 0  # which have no line
        with b.when((written["epoch"] < mine["floor"]) | of_earlier_launch):
            writes.go_on()
        b.copy_structure(Record, other, record)
        b.ret(1)
    b.ret(0)


@runtime_function(
    "i32", context="ptr", state="ptr", addresses="<32 x i64>", lanes="i32", size="i64", space="i32", access="i32", line="i32"
)
def check(
    b: Builder,
    context: IrValue,
    state: IrValue,
    addresses: IrValue,
    lanes: IrValue,
    size: IrValue,
    space: IrValue,
    access: IrValue,
    line: IrValue,
) -> None:
    """The lanes of a mask that may access `size` bytes at their addresses; reports why others may not, and what is wrong with
    those that may. `space` is a code of SPACE_CODES; `access` an `access_word`. A size that is no power of two, which only a
    copy's share has, is aligned to the largest that divides it."""
    c, s = Context(context), WarpState(state)
    kind = access & (1 << ACCESS_BITS) - 1
    is_load = kind == AccessKind.LOAD
    shared_scope = access >> ACCESS_BITS & (1 << SCOPE_BITS) - 1
    global_scope = access >> ACCESS_BITS + SCOPE_BITS
    what = (line > MAX_LINE).select(b.number(MAX_LINE), line) << THREAD_BITS
    extra = space.resized("i64") << EXTRA_SPACE | size | is_load.select(b.number(0, "i64"), 1 << EXTRA_STORE)
    shared, shared_bytes = c[ContextWord.SHARED], c[ContextWord.SHARED_BYTES]
    local, local_bytes = c[ContextWord.LOCAL], c[ContextWord.LOCAL_BYTES]
    c[ContextWord.SERIAL] = c[ContextWord.SERIAL] + 1
    first_epoch = c[ContextWord.FIRST_EPOCH].resized("i32")
    me, other = b.memory("i8", ctypes.sizeof(Me)), b.memory("i8", ctypes.sizeof(Record))
    mine = StructView(me, Me)
    through = ((access & ASYNCHRONOUSLY) != 0).select(b.number(ASYNCHRONOUS), 0)
    late = ((access & LATE_LOAD) != 0).select(b.number(LATE), 0)
    mine["epoch"], mine["sync"] = c[ContextWord.EPOCH].resized("i32"), s[State.SYNC_EPOCH] | through | late
    mine["serial"], mine["first"], mine["ordered"] = c[ContextWord.SERIAL].resized("i32"), first_epoch, c[ContextWord.ORDERED]
    mine["known"] = c[ContextWord.KNOWN]
    ask_mbarriers(b, context, state, mine)
    mine["device"], mine["device_span"] = c[ContextWord.DEVICE].resized("i32"), c[ContextWord.DEVICE_SPAN].resized("i32")
    widest = c[ContextWord.WIDEST].resized("i32")
    shared_scope, global_scope = ((scope > widest).select(widest, scope) for scope in (shared_scope, global_scope))
    first_thread, waited = s[State.WARP] * WARP_SIZE, s[State.WAITED]
    shadow, shared_stride, shared_shift = (
        c[ContextWord.SHADOW].as_pointer(),
        c[ContextWord.SHARED_STRIDE],
        c[ContextWord.SHARED_SHIFT],
    )
    shared_states = shadow.at(shared_stride * Slots.END)
    table = b.table(addresses)
    last, allowed = b.memory("ptr"), b.memory("i32")
    last.store(c[ContextWord.MAP].as_pointer())
    allowed.store(0)
    with b.each_lane(lanes) as (lane, every):
        address = b.entry(table, lane, "i64")
        thread = first_thread + lane
        bit = b.number(1) << lane

        def say(finding: FindingKind, who: IrValue | int = -1) -> None:
            report(b, context, state, finding, line, lane, address, who, extra)

        def say_touched(records: IrValue, states: IrValue, granules: IrValue) -> IrValue:
            """Touch the shadow, and say what is wrong with that; the verdict."""
            verdict = touches(b, records, states, granules, me, kind, other)
            earlier = StructView(other, Record)
            named = who(earlier)
            for flag, finding in _VERDICTS.items():
                with b.when((verdict & flag) != 0):
                    say(finding, named if flag in (Verdict.WRITER, Verdict.READER) else -1)
            return verdict

        def byte_by_byte(written: IrValue) -> None:
            """Check or mark that each byte of the access was written; `written` has a byte for each."""
            with b.when(~is_load):
                b.fill(written, 1, size)
            with b.when(is_load), b.loop(size) as (i, bytes), b.when(written.at(i).load("i8") == 0):
                say(FindingKind.UNINITIALISED)
                bytes.stop()

        def accept() -> None:
            allowed.store(allowed.load("i32") | bit)
            every.go_on()

        def refuse_when(condition: IrValue, finding: FindingKind) -> None:
            with b.when(condition):
                say(finding)
                every.go_on()

        refuse_when(((access & ALIGNED) == 0) & ((address & (size - 1) & ~size) != 0), FindingKind.MISALIGNED)
        shared_offset, local_offset = address - shared, address - local - thread.resized("i64") * local_bytes
        in_shared = _inside(shared_offset, size, shared_bytes)
        in_local = _inside(local_offset, size, local_bytes)
        is_generic = space == SPACE_CODES["generic"]
        with b.when((space == SPACE_CODES["shared"]) | is_generic & in_shared):
            refuse_when(~in_shared, FindingKind.BOUNDS)
            mine["floor"], mine["apart"], mine["stride"] = first_epoch, EVERY_THREAD, shared_stride
            mine["what"] = what | thread | shared_scope << THREAD_BITS + LINE_BITS
            granule = shared_offset >> shared_shift
            states = shared_states.at(granule * STATE_BYTES)
            say_touched(shadow.at(granule * RECORD_BYTES), states, size >> shared_shift)
            accept()
        with b.when((space == SPACE_CODES["local"]) | is_generic & in_local):
            refuse_when(~in_local, FindingKind.BOUNDS)
            byte_by_byte(c[ContextWord.LOCAL_SHADOW].as_pointer().at(address - local))
            accept()
        with b.when(space == SPACE_CODES["param"]):
            refuse_when(~_inside(address - c[ContextWord.PARAMETERS], size, c[ContextWord.PARAMETER_BYTES]), FindingKind.BOUNDS)
            refuse_when(~is_load, FindingKind.READ_ONLY)
            accept()
        # Most lanes are where the lane before them was, which needs no search if nothing else starts in between
        nearest = last.load("ptr")
        entry, next_entry = StructView(nearest, MapEntry), StructView(nearest.at(ctypes.sizeof(MapEntry)), MapEntry)
        with b.when(~(_inside(address - entry["base"], size, entry["size"]) & (address < next_entry["base"]))):
            place = allocation_of(b, context, address, size)
            refuse_when(b.is_null(place), FindingKind.BOUNDS)
            last.store(place)
        place = last.load("ptr")
        entry = StructView(place, MapEntry)
        flags = entry["flags"]
        refuse_when(((flags & (READ_ONLY | CONSTANT)) != 0) & ~is_load, FindingKind.READ_ONLY)
        has_waited = (waited & bit) != 0
        settled_load = is_load & ((flags & SETTLED) != 0)
        with b.when((c[ContextWord.EARLY] != 0) & ~has_waited & ((flags & CONSTANT) == 0) & ~settled_load):
            say(FindingKind.UNORDERED)
        through_read_only_path = (access & READ_ONLY_PATH) != 0
        with b.when(
            (c[ContextWord.EARLY] != 0) & ((flags & CONSTANT) == 0) & through_read_only_path & (has_waited | settled_load)
        ):
            say(FindingKind.READ_ONLY_PATH)
        with b.when((flags & WATCHED) != 0):
            mine["floor"], mine["apart"], mine["stride"] = OLDEST_EPOCH, EVERY_WARP, entry["stride"]
            mine["what"] = what | thread | global_scope << THREAD_BITS + LINE_BITS
            shift = c[ContextWord.GLOBAL_SHIFT]
            granule = address >> shift
            records = entry["records"] + granule * RECORD_BYTES
            # Nobody else touches less of a granule than all of it, so a share of one counts as one
            granules = ((size - 1) >> shift) + 1
            races = (say_touched(records.as_pointer(), b.null(), granules) & Verdict.WRITER) != 0
            promised = through_read_only_path & ~races
            with b.when(promised):
                floor = c[ContextWord.LAUNCH_EPOCH].resized("i32")  # what launches before wrote was over when this one started
                mine["floor"] = (floor == 0).select(mine["floor"], floor)
                with b.when(written_in_launch(b, me, records.as_pointer(), granules, other)):
                    say(FindingKind.STALE, who(StructView(other, Record)))
        with b.when(entry["written"] != 0):
            byte_by_byte((entry["written"] + address - entry["base"]).as_pointer())
        accept()
    b.ret(allowed.load("i32"))


@runtime_function(
    "i32", context="ptr", state="ptr", addresses="<32 x i64>", lanes="i32", taken="<32 x i32>", size="i64", line="i32"
)
def check_taken(
    b: Builder,
    context: IrValue,
    state: IrValue,
    addresses: IrValue,
    lanes: IrValue,
    taken: IrValue,
    size: IrValue,
    line: IrValue,
) -> None:
    """As `check`, of loads from global memory of which each lane takes its own bytes, at most `size`, which all are aligned to.
    A lane that takes none may have any address."""
    most = size.resized("i32").splat()
    share = (taken < most).select(taken, most)
    taking = (share != 0).mask() & lanes
    off = ((addresses & (size - 1).splat()) != 0).mask() & taking
    report_lanes(b, context, state, FindingKind.MISALIGNED, line, off, addresses, size)
    left, allowed = b.memory("i32"), b.memory("i32")
    left.store(taking & ~off)
    allowed.store(lanes & ~taking)
    table = b.table(share)
    with b.loop() as (_, shares):
        rest = left.load("i32")
        with b.when(rest == 0):
            shares.stop()
        bytes = b.entry(table, b.first_lane(rest), "i32")
        alike = (share == bytes.splat()).mask() & rest
        left.store(rest & ~alike)
        access = b.number(access_word(AccessKind.LOAD, 0, 0))
        one = check(b, context, state, addresses, alike, bytes.resized("i64"), 0, access, line)
        allowed.store(allowed.load("i32") | one)
    b.ret(allowed.load("i32"))
