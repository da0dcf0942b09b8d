"""The shadow of shared memory as LLVM functions: who touched a byte last, and whether that conflicts with who touches it now.

A byte of shared memory has a shadow of 12 words: state (0 nothing wrote it, 1 written, 2 a copy is on its way), then thread,
epoch, warp epoch, serial and kind of its last writer, and thread, epoch and warp epoch of two readers. A block barrier starts
an epoch, so an access conflicts with another thread's of the same epoch unless bar.warp.sync came between two of one warp."""

from __future__ import annotations

from enum import IntEnum

from ptxgen.emulator.emitter import Emitter

SHADOW_BYTES = 48
"""Bytes of shadow for a byte of shared memory."""


class Access(IntEnum):
    LOAD = 0
    STORE = 1
    ATOMIC = 2
    COPY = 3


def _conflict(e: Emitter) -> None:
    """i1 conflict(thread, epoch, warp epoch, other thread, its epoch, its warp epoch)."""
    e.functions.setdefault(
        "conflict",
        """define internal i1 @conflict(i32 %t, i32 %e, i32 %y, i32 %o, i32 %oe, i32 %oy) {
  %different = icmp ne i32 %t, %o
  %now = icmp eq i32 %e, %oe
  %w = lshr i32 %t, 5
  %ow = lshr i32 %o, 5
  %same = icmp eq i32 %w, %ow
  %later = icmp ne i32 %y, %oy
  %ordered = and i1 %same, %later
  %unordered = xor i1 %ordered, true
  %a = and i1 %different, %now
  %r = and i1 %a, %unordered
  ret i1 %r
}""",
    )


def touch(e: Emitter) -> None:
    """i32 touch(shadow of a byte, thread, epoch, warp epoch, serial, access): 1 unwritten, 2 on its way, 4 conflicts with
    the writer, 8 with a reader; bits 8.. the other thread. Records the access."""
    if "touch" in e.functions:
        return
    _conflict(e)
    fields = ["state", "wt", "we", "wy", "ws", "wk", "rt", "re", "ry", "qt", "qe", "qy"]
    lines = [
        "define internal i32 @touch(ptr %b, i32 %t, i32 %e, i32 %y, i32 %serial, i32 %access) noinline {",
        "entry:",
        *(f"  %{f}.p = getelementptr i32, ptr %b, i32 {i}" for i, f in enumerate(fields)),
        *(f"  %{f} = load i32, ptr %{f}.p, align 4" for f in fields),
        "  %cw0 = call i1 @conflict(i32 %t, i32 %e, i32 %y, i32 %wt, i32 %we, i32 %wy)",
        "  %cr = call i1 @conflict(i32 %t, i32 %e, i32 %y, i32 %rt, i32 %re, i32 %ry)",
        "  %cq = call i1 @conflict(i32 %t, i32 %e, i32 %y, i32 %qt, i32 %qe, i32 %qy)",
        "  %sameinstr = icmp eq i32 %ws, %serial",
        f"  %wasatomic = icmp eq i32 %wk, {int(Access.ATOMIC)}",
        f"  %isatomic = icmp eq i32 %access, {int(Access.ATOMIC)}",
        "  %atomics = and i1 %wasatomic, %isatomic",
        "  %fine = or i1 %sameinstr, %atomics",
        "  %notfine = xor i1 %fine, true",
        "  %cw = and i1 %cw0, %notfine",
        "  %unwritten = icmp eq i32 %state, 0",
        "  %onway = icmp eq i32 %state, 2",
        f"  %isload = icmp eq i32 %access, {int(Access.LOAD)}",
        "  %wbit = select i1 %cw, i32 4, i32 0",
        "  %wother = shl i32 %wt, 8",
        "  %wcode0 = or i32 %wbit, %wother",
        "  %wcode = select i1 %cw, i32 %wcode0, i32 0",
        "  %ubit = select i1 %unwritten, i32 1, i32 0",
        "  %obit = select i1 %onway, i32 2, i32 0",
        "  %ibits = or i32 %ubit, %obit",
        "  br i1 %isload, label %load, label %write",
        "load:",
        "  %free = icmp ne i32 %re, %e",
        "  %mine = icmp eq i32 %rt, %t",
        "  %first = or i1 %free, %mine",
        "  %base = select i1 %first, i32 6, i32 9",
        "  %np = getelementptr i32, ptr %b, i32 %base",
        "  store i32 %t, ptr %np",
        "  %np1 = getelementptr i32, ptr %np, i32 1",
        "  store i32 %e, ptr %np1",
        "  %np2 = getelementptr i32, ptr %np, i32 2",
        "  store i32 %y, ptr %np2",
        "  %quiet = icmp eq i32 %ibits, 2",
        "  %lcode = select i1 %quiet, i32 0, i32 %wcode",
        "  %lr = or i32 %lcode, %ibits",
        "  ret i32 %lr",
        "write:",
        "  %rbit0 = or i1 %cr, %cq",
        "  %notw = xor i1 %cw, true",
        "  %rbit1 = and i1 %rbit0, %notw",
        "  %rother0 = select i1 %cr, i32 %rt, i32 %qt",
        "  %rother = shl i32 %rother0, 8",
        "  %rcode0 = or i32 %rother, 8",
        "  %rcode = select i1 %rbit1, i32 %rcode0, i32 0",
        "  %code0 = or i32 %wcode, %rcode",
        "  %abits = select i1 %isatomic, i32 %ibits, i32 0",
        "  %code = or i32 %code0, %abits",
        f"  %iscopy = icmp eq i32 %access, {int(Access.COPY)}",
        "  %newstate = select i1 %iscopy, i32 2, i32 1",
        "  store i32 %newstate, ptr %state.p",
        "  store i32 %t, ptr %wt.p",
        "  store i32 %e, ptr %we.p",
        "  store i32 %y, ptr %wy.p",
        "  store i32 %serial, ptr %ws.p",
        "  store i32 %access, ptr %wk.p",
        "  ret i32 %code",
        "}",
    ]
    e.functions["touch"] = "\n".join(lines)
