"""cp.async: each lane queues its copies, which are done at the wait that covers them and not before. With a seed the bytes of
some are moved earlier (haste.py)."""

from __future__ import annotations

import ctypes

from ptxgen.emulator.layout import ContextWord, State
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.haste import chosen
from ptxgen.emulator.runtime.shadow import RECORD_BYTES, STATE_BYTES, GranuleState, Record, Slots
from ptxgen.emulator.runtime.views import Context, StructView, WarpState

CAPACITY = 64
"""Copies in flight a lane; one more completes the oldest early, which a program cannot tell from a fast memory."""


class Copy(ctypes.Structure):
    """A queued copy: addresses, bytes to fill and of them to read (the rest are zeros), the lane's group, the PTX line,
    and 1 if its bytes were `moved` already."""

    _fields_ = (
        ("to", ctypes.c_int64),
        ("start", ctypes.c_int64),
        ("size", ctypes.c_int32),
        ("bytes_read", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("moved", ctypes.c_int32),
        ("spare", ctypes.c_int32),
    )


_COPY_BYTES = ctypes.sizeof(Copy)
QUEUE_BYTES = CAPACITY * _COPY_BYTES
"""Bytes of one lane's queue. `queues`, below, is the address of those of a warp."""


def _queue(queues: IrValue, lane: IrValue) -> IrValue:
    return queues.at(lane.resized("i64") * QUEUE_BYTES)


@runtime_function("void", entry="ptr")
def move(b: Builder, entry: IrValue) -> None:
    """Move the bytes of a queued copy, if they were not before."""
    copy = StructView(entry, Copy)
    with b.when(copy["moved"] != 0):
        b.ret()
    copy["moved"] = 1
    to, size, bytes_read = copy["to"].as_pointer(), copy["size"].resized("i64"), copy["bytes_read"].resized("i64")
    b.fill(to, 0, size)
    b.copy(to, copy["start"].as_pointer(), (bytes_read > size).select(size, bytes_read))


@runtime_function("void", context="ptr", state="ptr", entry="ptr")
def complete_copy(b: Builder, context: IrValue, state: IrValue, entry: IrValue) -> None:
    """Do a queued copy; for the sanitiser it is a write of this moment (shadow.py), and no longer on its way."""
    c, copy = Context(context), StructView(entry, Copy)
    to, size = copy["to"], copy["size"].resized("i64")
    move(b, entry)
    with b.when(c[ContextWord.FINDINGS] == 0):
        b.ret()
    shadow, shift = c[ContextWord.SHADOW].as_pointer(), c[ContextWord.SHARED_SHIFT]
    states = shadow.at(c[ContextWord.SHARED_STRIDE] * Slots.END)
    epoch = c[ContextWord.EPOCH].resized("i32")
    first = (to - c[ContextWord.SHARED]) >> shift
    with b.loop(size >> shift) as (i, _):
        granule_state = StructView(states.at((first + i) * STATE_BYTES), GranuleState)
        granule_state["written"], granule_state["on_the_way"] = epoch, 0
        write = StructView(shadow.at((first + i) * RECORD_BYTES), Record)
        write["epoch"], write["sync"] = epoch, WarpState(state)[State.SYNC_EPOCH]
        write["serial"] = c[ContextWord.SERIAL].resized("i32")


@runtime_function(
    "void",
    context="ptr",
    state="ptr",
    queues="ptr",
    lanes="i32",
    to="<32 x i64>",
    start="<32 x i64>",
    bytes_read="<32 x i32>",
    size="i32",
    line="i32",
)
def queue_copies(
    b: Builder,
    context: IrValue,
    state: IrValue,
    queues: IrValue,
    lanes: IrValue,
    to: IrValue,
    start: IrValue,
    bytes_read: IrValue,
    size: IrValue,
    line: IrValue,
) -> None:
    """Each lane of the mask queues a copy."""
    s = WarpState(state)
    targets, starts, read = b.table(to), b.table(start), b.table(bytes_read)
    with b.each_lane(lanes) as (lane, _):
        queue, length = _queue(queues, lane), s.of_lane(State.ASYNC_COUNT, lane)
        with b.when(length.load("i32") >= CAPACITY):
            complete_copy(b, context, state, queue)
            b.copy(queue, queue.at(_COPY_BYTES), QUEUE_BYTES - _COPY_BYTES)
            length.store(length.load("i32") - 1)
        count = length.load("i32")
        copy = StructView(queue.at(count.resized("i64") * _COPY_BYTES), Copy)
        copy["to"], copy["start"] = b.entry(targets, lane, "i64"), b.entry(starts, lane, "i64")
        copy["size"], copy["bytes_read"] = size, b.entry(read, lane, "i32")
        copy["group"], copy["line"] = s.of_lane(State.ASYNC_GROUP, lane).load("i32"), line
        copy["moved"] = 0
        length.store(count + 1)
        which = chosen(b, context, count + 1)
        with b.when(which <= count.resized("i64")):
            move(b, queue.at(which * _COPY_BYTES))


@runtime_function("void", state="ptr", lanes="i32")
def commit_copies(b: Builder, state: IrValue, lanes: IrValue) -> None:
    """Each lane of the mask begins a new group."""
    s = WarpState(state)
    s[State.ASYNC_GROUP] = s[State.ASYNC_GROUP] + lanes.truths().resized("<32 x i32>")


@runtime_function("void", context="ptr", state="ptr", queues="ptr", lanes="i32", pending="i32")
def wait_copies(b: Builder, context: IrValue, state: IrValue, queues: IrValue, lanes: IrValue, pending: IrValue) -> None:
    """Each lane of the mask completes its copies, but for those of its last `pending` groups."""
    c, s = Context(context), WarpState(state)
    c[ContextWord.SERIAL] = c[ContextWord.SERIAL] + 1  # what completes here is later than fences before
    kept = b.memory("i64")
    with b.each_lane(lanes) as (lane, _):
        queue, length = _queue(queues, lane), s.of_lane(State.ASYNC_COUNT, lane)
        limit = s.of_lane(State.ASYNC_GROUP, lane).load("i32") - pending
        kept.store(0, "i64")
        with b.loop(length.load("i32").resized("i64")) as (i, entries):
            entry = queue.at(i * _COPY_BYTES)
            with b.when(StructView(entry, Copy)["group"].signed_below(limit)):
                complete_copy(b, context, state, entry)
                entries.go_on()
            b.copy(queue.at(kept.load("i64") * _COPY_BYTES), entry, _COPY_BYTES)
            kept.store(kept.load("i64") + 1)
        length.store(kept.load("i64").resized("i32"))
