"""cp.async as LLVM functions: each lane queues its copies, which are done at the wait that covers them and not before."""

from __future__ import annotations

from ptxgen.emulator.emitter import Emitter
from ptxgen.emulator.layout import ASYNC_CAPACITY, ASYNC_ENTRY, Slot, State
from ptxgen.emulator.reports import each_set_bit
from ptxgen.emulator.shadow import RECORD_BYTES, STATE_BYTES, Slots, field

QUEUE_BYTES = ASYNC_CAPACITY * ASYNC_ENTRY
"""Bytes of one lane's queue."""


def async_functions(e: Emitter, sanitize: bool) -> None:
    """Define @async.push, @async.commit and @async.wait. %q is the warp's queues, 32 times `QUEUE_BYTES`."""
    if "async.push" in e.functions:
        return
    e.declare("llvm.cttz.i32", "i32", "i32", "i1")
    e.declare("llvm.memcpy.p0.p0.i64", "void", "ptr", "ptr", "i64", "i1")
    e.declare("llvm.memset.p0.i64", "void", "ptr", "i8", "i64", "i1")
    e.declare("llvm.memmove.p0.p0.i64", "void", "ptr", "ptr", "i64", "i1")
    e.functions["async.one"] = _complete(sanitize)
    e.functions["async.push"] = _push()
    e.functions["async.commit"] = _commit()
    e.functions["async.wait"] = _wait()


def _complete(sanitize: bool) -> str:
    """async.one(context, state, lane, entry): do the copy."""
    marks = [
        "  %shp = getelementptr i64, ptr %c, i64 " + str(int(Slot.SHARED)),
        "  %shared = load i64, ptr %shp",
        "  %sdp = getelementptr i64, ptr %c, i64 " + str(int(Slot.SHADOW)),
        "  %shadow = load i64, ptr %sdp",
        "  %epp = getelementptr i64, ptr %c, i64 " + str(int(Slot.EPOCH)),
        "  %epoch64 = load i64, ptr %epp",
        "  %epoch = trunc i64 %epoch64 to i32",
        f"  %syp = getelementptr i8, ptr %s, i64 {State.SYNC_EPOCH}",
        "  %sync = load i32, ptr %syp",
        "  %shiftp = getelementptr i64, ptr %c, i64 " + str(int(Slot.SHARED_SHIFT)),
        "  %shift = load i64, ptr %shiftp",
        "  %stridep = getelementptr i64, ptr %c, i64 " + str(int(Slot.SHARED_STRIDE)),
        "  %stride = load i64, ptr %stridep",
        f"  %statesoff = mul i64 %stride, {int(Slots.END)}",
        "  %states = add i64 %shadow, %statesoff",
        "  %off = sub i64 %to, %shared",
        "  %first = lshr i64 %off, %shift",
        "  %many = lshr i64 %size, %shift",
        "  br label %mark",
        "mark:",
        "  %k = phi i64 [ 0, %entry ], [ %k1, %mark ]",
        "  %g = add i64 %first, %k",
        f"  %so = mul i64 %g, {STATE_BYTES}",
        "  %sa = add i64 %states, %so",
        "  %sp = inttoptr i64 %sa to ptr",
        "  store i32 %epoch, ptr %sp",
        "  %wayp = getelementptr i32, ptr %sp, i32 1",
        "  store i32 0, ptr %wayp",
        f"  %ro = mul i64 %g, {RECORD_BYTES}",
        "  %ra = add i64 %shadow, %ro",
        "  %ep = inttoptr i64 %ra to ptr",
        "  store i32 %epoch, ptr %ep",
        f"  %yp = getelementptr i8, ptr %ep, i64 {field('sync')}",
        "  store i32 %sync, ptr %yp",
        "  %k1 = add i64 %k, 1",
        "  %more = icmp ult i64 %k1, %many",
        "  br i1 %more, label %mark, label %end",
        "end:",
    ]
    return "\n".join(
        [
            "define internal void @async.one(ptr %c, ptr %s, ptr %e) noinline {",
            "entry:",
            "  %to = load i64, ptr %e",
            "  %fp = getelementptr i8, ptr %e, i64 8",
            "  %from = load i64, ptr %fp",
            "  %zp = getelementptr i8, ptr %e, i64 16",
            "  %size32 = load i32, ptr %zp",
            "  %size = zext i32 %size32 to i64",
            "  %np = getelementptr i8, ptr %e, i64 20",
            "  %kept32 = load i32, ptr %np",
            "  %kept0 = zext i32 %kept32 to i64",
            "  %over = icmp ugt i64 %kept0, %size",
            "  %kept = select i1 %over, i64 %size, i64 %kept0",
            "  %top = inttoptr i64 %to to ptr",
            "  %fromp = inttoptr i64 %from to ptr",
            "  call void @llvm.memset.p0.i64(ptr %top, i8 0, i64 %size, i1 false)",
            "  call void @llvm.memcpy.p0.p0.i64(ptr %top, ptr %fromp, i64 %kept, i1 false)",
            *(marks if sanitize else []),
            "  ret void",
            "}",
        ]
    )


def _push() -> str:
    body = [
        f"  %qo = mul i32 %lane, {QUEUE_BYTES}",
        "  %qp = getelementptr i8, ptr %q, i32 %qo",
        "  %np = getelementptr i32, ptr %counts, i32 %lane",
        "  %n0 = load i32, ptr %np",
        f"  %isfull = icmp uge i32 %n0, {ASYNC_CAPACITY}",
        "  br i1 %isfull, label %full, label %room",
        "full:",
        "  call void @async.one(ptr %c, ptr %s, ptr %qp)",
        f"  %second = getelementptr i8, ptr %qp, i64 {ASYNC_ENTRY}",
        f"  call void @llvm.memmove.p0.p0.i64(ptr %qp, ptr %second, i64 {QUEUE_BYTES - ASYNC_ENTRY}, i1 false)",
        "  %fewer = sub i32 %n0, 1",
        "  br label %room",
        "room:",
        "  %n = phi i32 [ %n0, %each ], [ %fewer, %full ]",
        f"  %eo = mul i32 %n, {ASYNC_ENTRY}",
        "  %ep = getelementptr i8, ptr %qp, i32 %eo",
        "  %tl = getelementptr i64, ptr %tom, i32 %lane",
        "  %t = load i64, ptr %tl",
        "  store i64 %t, ptr %ep",
        "  %fl = getelementptr i64, ptr %fromm, i32 %lane",
        "  %f = load i64, ptr %fl",
        "  %e8 = getelementptr i8, ptr %ep, i64 8",
        "  store i64 %f, ptr %e8",
        "  %e16 = getelementptr i8, ptr %ep, i64 16",
        "  store i32 %size, ptr %e16",
        "  %kl = getelementptr i32, ptr %keptm, i32 %lane",
        "  %k = load i32, ptr %kl",
        "  %e20 = getelementptr i8, ptr %ep, i64 20",
        "  store i32 %k, ptr %e20",
        "  %gl = getelementptr i32, ptr %groups, i32 %lane",
        "  %g = load i32, ptr %gl",
        "  %e24 = getelementptr i8, ptr %ep, i64 24",
        "  store i32 %g, ptr %e24",
        "  %e28 = getelementptr i8, ptr %ep, i64 28",
        "  store i32 %line, ptr %e28",
        "  %n1 = add i32 %n, 1",
        "  store i32 %n1, ptr %np",
        "  br label %next",
    ]
    return "\n".join(
        [
            "define internal void @async.push(ptr %c, ptr %s, ptr %q, i32 %mask, <32 x i64> %to, <32 x i64> %from, "
            "<32 x i32> %kept, i32 %size, i32 %line) noinline {",
            "entry:",
            "  %tom = alloca <32 x i64>, align 64",
            "  %fromm = alloca <32 x i64>, align 64",
            "  %keptm = alloca <32 x i32>, align 64",
            "  store <32 x i64> %to, ptr %tom, align 64",
            "  store <32 x i64> %from, ptr %fromm, align 64",
            "  store <32 x i32> %kept, ptr %keptm, align 64",
            f"  %groups = getelementptr i8, ptr %s, i64 {State.ASYNC_GROUP}",
            f"  %counts = getelementptr i8, ptr %s, i64 {State.ASYNC_COUNT}",
            *each_set_bit("%mask", "entry", body),
            "  br label %head",
            "end:",
            "  ret void",
            "}",
        ]
    )


def _commit() -> str:
    return f"""define internal void @async.commit(ptr %s, i32 %mask) noinline {{
  %p = getelementptr i8, ptr %s, i64 {State.ASYNC_GROUP}
  %g = load <32 x i32>, ptr %p, align 64
  %m = bitcast i32 %mask to <32 x i1>
  %one = zext <32 x i1> %m to <32 x i32>
  %g1 = add <32 x i32> %g, %one
  store <32 x i32> %g1, ptr %p, align 64
  ret void
}}"""


def _wait() -> str:
    body = [
        f"  %qo = mul i32 %lane, {QUEUE_BYTES}",
        "  %qp = getelementptr i8, ptr %q, i32 %qo",
        "  %np = getelementptr i32, ptr %counts, i32 %lane",
        "  %n = load i32, ptr %np",
        "  %gl = getelementptr i32, ptr %groups, i32 %lane",
        "  %g = load i32, ptr %gl",
        "  %limit = sub i32 %g, %pending",
        "  br label %entries",
        "entries:",
        "  %i = phi i32 [ 0, %each ], [ %i1, %moved ]",
        "  %kept = phi i32 [ 0, %each ], [ %kept1, %moved ]",
        "  %done = icmp uge i32 %i, %n",
        "  br i1 %done, label %finish, label %look",
        "look:",
        f"  %eo = mul i32 %i, {ASYNC_ENTRY}",
        "  %ep = getelementptr i8, ptr %qp, i32 %eo",
        "  %e24 = getelementptr i8, ptr %ep, i64 24",
        "  %eg = load i32, ptr %e24",
        "  %due = icmp slt i32 %eg, %limit",
        "  br i1 %due, label %copy, label %keep",
        "copy:",
        "  call void @async.one(ptr %c, ptr %s, ptr %ep)",
        "  br label %moved",
        "keep:",
        f"  %ko = mul i32 %kept, {ASYNC_ENTRY}",
        "  %kp = getelementptr i8, ptr %qp, i32 %ko",
        f"  call void @llvm.memmove.p0.p0.i64(ptr %kp, ptr %ep, i64 {ASYNC_ENTRY}, i1 false)",
        "  %keptplus = add i32 %kept, 1",
        "  br label %moved",
        "moved:",
        "  %kept1 = phi i32 [ %kept, %copy ], [ %keptplus, %keep ]",
        "  %i1 = add i32 %i, 1",
        "  br label %entries",
        "finish:",
        "  store i32 %kept, ptr %np",
        "  br label %next",
    ]
    return "\n".join(
        [
            "define internal void @async.wait(ptr %c, ptr %s, ptr %q, i32 %mask, i32 %pending) noinline {",
            "entry:",
            f"  %groups = getelementptr i8, ptr %s, i64 {State.ASYNC_GROUP}",
            f"  %counts = getelementptr i8, ptr %s, i64 {State.ASYNC_COUNT}",
            *each_set_bit("%mask", "entry", body),
            "  br label %head",
            "end:",
            "  ret void",
            "}",
        ]
    )
