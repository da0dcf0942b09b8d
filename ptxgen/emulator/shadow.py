"""The shadow of memory as LLVM functions: who touched a granule before, and whether that conflicts with who touches it now.

A granule is as many bytes as the kernel's smallest access. Its shadow has eleven records of accesses (`Slots`) and, in shared
memory, a state. The records of one kind lie together, so that memory which is only written takes one record a granule.

Epochs count block barriers and starts of blocks, so they tell a block's intervals apart, and blocks from each other. Accesses
are concurrent if they are of two blocks, or in one epoch of one block by two threads (in global memory: of two warps) that no
bar.warp.sync has ordered. Concurrent ones conflict if one of them writes, unless both are strong towards each other or a fence
and a flag order them (ordering.py).

A kind keeps the last weak write (two that are concurrent conflict anyway), and of the others, which may be many without any
conflict, two accesses that every thread conflicts with at least one of, if it conflicts with any: see `remember`."""

from __future__ import annotations

import ctypes
from enum import IntEnum

from ptxgen.emulator.emitter import Emitter

MAX_LINE = (1 << 20) - 1
EVERY_THREAD, EVERY_WARP = 1023, 1023 & ~31
"""Values of `Me.apart`: what tells threads apart, what tells warps apart."""
RECORD_BYTES = 16
STATE_BYTES = 8
"""Bytes of a granule's state in shared memory: the epoch of the last write, and whether a copy is still on its way."""


class Access(IntEnum):
    LOAD = 0
    STORE = 1
    ATOMIC = 2
    COPY = 3


class Slots(IntEnum):
    """Where the records of a kind are: a weak write; two strong writes, and two reads, of each scope."""

    WEAK_WRITE = 0
    STRONG_WRITES = 1
    READS = 5
    END = 11


class Record(ctypes.Structure):
    """An access: its epoch, `what` it is (thread | line << 10 | scope << 30), its warp's bar.warp.sync count, its serial."""

    _fields_ = (
        ("epoch", ctypes.c_uint32),
        ("what", ctypes.c_uint32),
        ("sync", ctypes.c_uint32),
        ("serial", ctypes.c_uint32),
    )


class Me(ctypes.Structure):
    """The access that is being checked. Records of epochs before `floor` count as none, those before `first` as another
    block's. `apart`: bits of a thread's number; threads that agree in them are in order anyway. `stride` is the distance of two
    records of one granule; `ordered`, if not 0, is a function (Me *, Record *) -> i32."""

    _fields_ = (
        ("record", Record),
        ("floor", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("apart", ctypes.c_uint32),
        ("stride", ctypes.c_int64),
        ("ordered", ctypes.c_int64),
    )


def field(name: str) -> int:
    """The byte offset of a field of `Me` or of its record."""
    return int(getattr(Me if hasattr(Me, name) else Record, name).offset)


def shadow_bytes(granules: int, *, states: bool) -> int:
    return granules * (RECORD_BYTES * Slots.END + (STATE_BYTES if states else 0))


def touches(e: Emitter) -> None:
    """i32 touches(first granule's first record, its state or null, granules, me, access, where to put a record): 1 unwritten,
    2 on its way, 4 conflicts with a writer, 8 with a reader, whose record it then puts there. Records the access. What it says
    is what it finds at the first granule at which it finds anything."""
    for name, text in _FUNCTIONS.items():
        e.functions[name] = text


_CONCURRENT = f"""define internal i1 @concurrent(ptr %m, ptr %o) noinline {{
entry:
  %oe = load i32, ptr %o
  %floor.p = getelementptr i8, ptr %m, i64 {field("floor")}
  %floor = load i32, ptr %floor.p
  %recorded = icmp uge i32 %oe, %floor
  br i1 %recorded, label %some, label %no
some:
  %first.p = getelementptr i8, ptr %m, i64 {field("first")}
  %first = load i32, ptr %first.p
  %here = icmp uge i32 %oe, %first
  br i1 %here, label %within, label %yes
within:
  %e = load i32, ptr %m
  %now = icmp eq i32 %e, %oe
  br i1 %now, label %threads, label %no
threads:
  %what.p = getelementptr i8, ptr %m, i64 {field("what")}
  %what = load i32, ptr %what.p
  %owhat.p = getelementptr i8, ptr %o, i64 {field("what")}
  %owhat = load i32, ptr %owhat.p
  %t = and i32 %what, {EVERY_THREAD}
  %ot = and i32 %owhat, {EVERY_THREAD}
  %differ = xor i32 %t, %ot
  %apart.p = getelementptr i8, ptr %m, i64 {field("apart")}
  %apart = load i32, ptr %apart.p
  %differing = and i32 %differ, %apart
  %another = icmp ne i32 %differing, 0
  br i1 %another, label %warps, label %no
warps:
  %w = lshr i32 %t, 5
  %ow = lshr i32 %ot, 5
  %others = icmp ne i32 %w, %ow
  %sync.p = getelementptr i8, ptr %m, i64 {field("sync")}
  %sync = load i32, ptr %sync.p
  %osync.p = getelementptr i8, ptr %o, i64 {field("sync")}
  %osync = load i32, ptr %osync.p
  %unmet = icmp eq i32 %sync, %osync
  %r = or i1 %others, %unmet
  ret i1 %r
yes:
  ret i1 true
no:
  ret i1 false
}}"""

# The lanes of one store have one serial: whether they overwrite each other is asked after it, by value.
_CONFLICT = f"""define internal i1 @conflict(ptr %m, ptr %o) noinline {{
entry:
  %concurrent = call i1 @concurrent(ptr %m, ptr %o)
  br i1 %concurrent, label %serials, label %no
serials:
  %serial.p = getelementptr i8, ptr %m, i64 {field("serial")}
  %serial = load i32, ptr %serial.p
  %oserial.p = getelementptr i8, ptr %o, i64 {field("serial")}
  %oserial = load i32, ptr %oserial.p
  %another = icmp ne i32 %serial, %oserial
  br i1 %another, label %scopes, label %no
scopes:
  %oe = load i32, ptr %o
  %first.p = getelementptr i8, ptr %m, i64 {field("first")}
  %first = load i32, ptr %first.p
  %here = icmp uge i32 %oe, %first
  %need = select i1 %here, i32 1, i32 2
  %what.p = getelementptr i8, ptr %m, i64 {field("what")}
  %what = load i32, ptr %what.p
  %owhat.p = getelementptr i8, ptr %o, i64 {field("what")}
  %owhat = load i32, ptr %owhat.p
  %scope = lshr i32 %what, 30
  %oscope = lshr i32 %owhat, 30
  %enough = icmp uge i32 %scope, %need
  %oenough = icmp uge i32 %oscope, %need
  %strong = and i1 %enough, %oenough
  br i1 %strong, label %no, label %weak
weak:
  %ordered.p = getelementptr i8, ptr %m, i64 {field("ordered")}
  %ordered = load i64, ptr %ordered.p
  %flags = icmp ne i64 %ordered, 0
  br i1 %flags, label %ask, label %yes
ask:
  %f = inttoptr i64 %ordered to ptr
  %r = call i32 %f(ptr %m, ptr %o)
  %unordered = icmp eq i32 %r, 0
  ret i1 %unordered
yes:
  ret i1 true
no:
  ret i1 false
}}"""

# An a that is not concurrent with me is blank, mine or ordered before me, so whoever conflicts with it now conflicts with me,
# too. Of concurrent ones, a is the first. Who does not conflict with a is of a's warp, so b shall be of another warp or block
# if any is, and else of another thread than a.
_REMEMBER = f"""define internal void @remember(ptr %a, ptr %m) noinline {{
entry:
  %stride.p = getelementptr i8, ptr %m, i64 {field("stride")}
  %stride = load i64, ptr %stride.p
  %b = getelementptr i8, ptr %a, i64 %stride
  %ca = call i1 @concurrent(ptr %m, ptr %a)
  br i1 %ca, label %second, label %keep
second:
  %cb = call i1 @concurrent(ptr %m, ptr %b)
  br i1 %cb, label %warps, label %keep
warps:
  %what.p = getelementptr i8, ptr %m, i64 {field("what")}
  %what = load i32, ptr %what.p
  %awhat.p = getelementptr i8, ptr %a, i64 {field("what")}
  %awhat = load i32, ptr %awhat.p
  %differ = xor i32 %what, %awhat
  %differing = and i32 %differ, {EVERY_WARP}
  %comrades = icmp eq i32 %differing, 0
  br i1 %comrades, label %done, label %keep
keep:
  %to = phi ptr [ %a, %entry ], [ %b, %second ], [ %b, %warps ]
  %r = load i128, ptr %m, align 4
  store i128 %r, ptr %to, align 4
  br label %done
done:
  ret void
}}"""

_TOUCH = f"""define internal i32 @touch(ptr %g, ptr %state, ptr %m, i32 %access, ptr %out) noinline {{
entry:
  %stride.p = getelementptr i8, ptr %m, i64 {field("stride")}
  %stride = load i64, ptr %stride.p
  %what.p = getelementptr i8, ptr %m, i64 {field("what")}
  %what = load i32, ptr %what.p
  %floor.p = getelementptr i8, ptr %m, i64 {field("floor")}
  %floor = load i32, ptr %floor.p
  %isload = icmp eq i32 %access, {int(Access.LOAD)}
  %end = select i1 %isload, i64 {int(Slots.READS)}, i64 {int(Slots.END)}
  br label %each
each:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %offset = mul i64 %i, %stride
  %o = getelementptr i8, ptr %g, i64 %offset
  %oe = load i32, ptr %o
  %blank = icmp ult i32 %oe, %floor ; as @concurrent finds, too, but most are
  br i1 %blank, label %next, label %some
some:
  %bad = call i1 @conflict(ptr %m, ptr %o)
  br i1 %bad, label %found, label %next
next:
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %end
  br i1 %more, label %each, label %looked
found:
  %or = load i128, ptr %o, align 4
  store i128 %or, ptr %out, align 4
  %reader = icmp uge i64 %i, {int(Slots.READS)}
  %which = select i1 %reader, i32 8, i32 4
  br label %looked
looked:
  %race = phi i32 [ 0, %next ], [ %which, %found ]
  %scope32 = lshr i32 %what, 30
  %scope = zext i32 %scope32 to i64
  %kinds = mul i64 %scope, 2
  %strongs = add i64 %kinds, {Slots.STRONG_WRITES - 2}
  %reads = add i64 %kinds, {int(Slots.READS)}
  %kind = select i1 %isload, i64 %reads, i64 %strongs
  %weakwrite = icmp eq i64 %kind, -1
  br i1 %weakwrite, label %last, label %many
last:
  %r = load i128, ptr %m, align 4
  store i128 %r, ptr %g, align 4
  br label %recorded
many:
  %koffset = mul i64 %kind, %stride
  %a = getelementptr i8, ptr %g, i64 %koffset
  call void @remember(ptr %a, ptr %m)
  br label %recorded
recorded:
  %stateless = icmp eq ptr %state, null
  br i1 %stateless, label %give, label %states
give:
  ret i32 %race
states:
  %written = load i32, ptr %state
  %isunwritten = icmp ult i32 %written, %floor
  %way.p = getelementptr i8, ptr %state, i64 4
  %way = load i32, ptr %way.p
  %onway = select i1 %isunwritten, i32 1, i32 %way
  br i1 %isload, label %loads, label %writes
loads:
  %early = icmp eq i32 %onway, 2
  %shown = select i1 %early, i32 0, i32 %race
  %lcode = or i32 %shown, %onway
  ret i32 %lcode
writes:
  %epoch = load i32, ptr %m
  store i32 %epoch, ptr %state
  %iscopy = icmp eq i32 %access, {int(Access.COPY)}
  %newway = select i1 %iscopy, i32 2, i32 0
  store i32 %newway, ptr %way.p
  %isatomic = icmp eq i32 %access, {int(Access.ATOMIC)}
  %reading = select i1 %isatomic, i32 %onway, i32 0
  %code = or i32 %race, %reading
  ret i32 %code
}}"""

_TOUCHES = f"""define internal i32 @touches(ptr %g, ptr %state, i64 %many, ptr %m, i32 %access, ptr %out) noinline {{
entry:
  %ignored = alloca i128, align 16
  %stateless = icmp eq ptr %state, null
  %step = select i1 %stateless, i64 0, i64 {STATE_BYTES}
  br label %each
each:
  %k = phi i64 [ 0, %entry ], [ %k1, %each ]
  %code = phi i32 [ 0, %entry ], [ %code1, %each ]
  %go = mul i64 %k, {RECORD_BYTES}
  %gk = getelementptr i8, ptr %g, i64 %go
  %so = mul i64 %k, %step
  %sk = getelementptr i8, ptr %state, i64 %so
  %fresh = icmp eq i32 %code, 0
  %place = select i1 %fresh, ptr %out, ptr %ignored
  %one = call i32 @touch(ptr %gk, ptr %sk, ptr %m, i32 %access, ptr %place)
  %code1 = select i1 %fresh, i32 %one, i32 %code
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %many
  br i1 %more, label %each, label %end
end:
  ret i32 %code1
}}"""

_FUNCTIONS = {
    "concurrent": _CONCURRENT,
    "conflict": _CONFLICT,
    "remember": _REMEMBER,
    "touch": _TOUCH,
    "touches": _TOUCHES,
}
