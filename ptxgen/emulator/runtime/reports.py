"""What reports a finding: one record for each kind and PTX line, which sanitizer.py words."""

from __future__ import annotations

import ctypes

from ptxgen.emulator.layout import ContextWord, State
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.views import Context, StructView, WarpState
from ptxgen.target import WARP_SIZE

CAPACITY = 512
"""Different findings of one launch; later ones are dropped."""


class FindingRecord(ctypes.Structure):
    """A finding: `thread` and `block` are linear numbers; what `other` and `extra` are depends on the kind (sanitizer.py)."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("count", ctypes.c_int64),
        ("thread", ctypes.c_int64),
        ("block", ctypes.c_int64),
        ("address", ctypes.c_int64),
        ("other", ctypes.c_int64),
        ("extra", ctypes.c_int64),
        ("spare", ctypes.c_int64),
    )


class FindingRecords(ctypes.Structure):
    """The findings of a launch."""

    _fields_ = (("count", ctypes.c_int64), ("spare", ctypes.c_int64 * 7), ("records", FindingRecord * CAPACITY))


@runtime_function(
    "void", context="ptr", state="ptr", kind="i32", line="i32", lane="i32", address="i64", other="i64", extra="i64"
)
def report(
    b: Builder,
    context: IrValue,
    state: IrValue,
    kind: IrValue,
    line: IrValue,
    lane: IrValue,
    address: IrValue,
    other: IrValue,
    extra: IrValue,
) -> None:
    """Record what a thread did, or count it if its kind and line are known. Nothing in a kernel that is not sanitised."""
    c = Context(context)
    findings = c[ContextWord.FINDINGS]
    with b.when(findings == 0):
        b.ret()
    heading = StructView(findings.as_pointer(), FindingRecords)
    first = findings.as_pointer().at(FindingRecords.records.offset)
    count = heading["count"]
    with b.loop(count) as (i, loop):
        earlier = StructView(first.at(i * ctypes.sizeof(FindingRecord)), FindingRecord)
        with b.when((earlier["kind"] != kind) | (earlier["line"] != line)):
            loop.go_on()
        earlier["count"] = earlier["count"] + 1
        b.ret()
    with b.when(count >= CAPACITY):
        b.ret()
    record = StructView(first.at(count * ctypes.sizeof(FindingRecord)), FindingRecord)
    record["kind"], record["line"], record["count"] = kind, line, 1
    record["thread"] = (WarpState(state)[State.WARP] * WARP_SIZE + lane).resized("i64")
    record["block"] = (c[ContextWord.CTAID_Z] * c[ContextWord.NCTAID_Y] + c[ContextWord.CTAID_Y]) * c[ContextWord.NCTAID_X] + c[
        ContextWord.CTAID_X
    ]
    record["address"], record["other"], record["extra"] = address, other, extra
    heading["count"] = count + 1


@runtime_function("void", context="ptr", state="ptr", kind="i32", line="i32", lanes="i32", addresses="<32 x i64>", extra="i64")
def report_lanes(
    b: Builder,
    context: IrValue,
    state: IrValue,
    kind: IrValue,
    line: IrValue,
    lanes: IrValue,
    addresses: IrValue,
    extra: IrValue,
) -> None:
    """Report each lane of a mask, with its address."""
    table = b.table(addresses)
    with b.each_lane(lanes) as (lane, _):
        report(b, context, state, kind, line, lane, b.entry(table, lane, "i64"), b.number(-1, "i64"), extra)
