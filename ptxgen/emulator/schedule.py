"""What runs the warps of a block and the blocks of a launch, as LLVM functions: turns, and what ends them."""

from __future__ import annotations

import platform

from ptxgen.emulator.barriers import BARRIERS, release_function
from ptxgen.emulator.emitter import Emitter
from ptxgen.emulator.layout import BLOCKED, DEADLOCKED, ENDLESS, FINISHED, PAUSED, TRAPPED, YIELDED, Slot, State
from ptxgen.emulator.reports import reporter, slot_lines

_I32 = "<32 x i32>"
_DEFAULT_MXCSR = 0x1F80  # every exception masked, to nearest, subnormals kept
BLOCKED_COST = 1
YIELD_COST = 1024
"""What a turn takes from the budget: one in which warps only meet at barriers, one in which some warp used its quantum up. A
block pauses when it has taken as much as the latter, so that whoever called can throw the launch away."""


def scheduler(e: Emitter, sanitize: bool) -> None:
    """i32 @run(context, first, last): blocks first..last-1 of the launch, one after the other, until they end or pause."""
    e.declare("llvm.memset.p0.i64", "void", "ptr", "i8", "i64", "i1")
    e.declare("llvm.ctpop.i32", "i32", "i32")
    e.declare("llvm.cttz.i32", "i32", "i32", "i1")
    if sanitize:
        reporter(e)
    e.functions["release"] = release_function(sanitize)
    e.functions["cta"] = _block()
    e.functions["blocks"] = _blocks(sanitize)
    e.functions["run"] = _run(e)


def _slot(name: str, slot: Slot) -> str:
    return "\n".join(slot_lines(name, slot))


def _ordered(index: str, order: str, out: str, after: str) -> str:
    """%out = order ? order[index] : index; ends at label `after`."""
    return f"""  %{out}.has = icmp ne i64 %{order}, 0
  br i1 %{out}.has, label %{out}.look, label %{out}.plain
{out}.look:
  %{out}.t = inttoptr i64 %{order} to ptr
  %{out}.q = getelementptr i64, ptr %{out}.t, i64 {index}
  %{out}.v = load i64, ptr %{out}.q, align 8
  br label %{after}
{out}.plain:
  br label %{after}
{after}:
  %{out} = phi i64 [ %{out}.v, %{out}.look ], [ {index}, %{out}.plain ]"""


def _block() -> str:
    return f"""define internal i32 @cta(ptr %c) noinline {{
entry:
{_slot("warps", Slot.WARPS)}
{_slot("n", Slot.WARP_COUNT)}
{_slot("size", Slot.STATE_BYTES)}
{_slot("budget", Slot.BUDGET)}
{_slot("order", Slot.WARP_ORDER)}
{_slot("begun", Slot.TURNS)}
  %enough = add i64 %begun, {YIELD_COST}
  %base = inttoptr i64 %warps to ptr
  br label %round
round:
  %turns = phi i64 [ %begun, %entry ], [ %more, %again ]
  br label %next
next:
  %i = phi i64 [ 0, %round ], [ %i1, %done ]
  %waits = phi i1 [ false, %round ], [ %waits1, %done ]
  %yields = phi i1 [ false, %round ], [ %yields1, %done ]
  %over = icmp uge i64 %i, %n
  br i1 %over, label %turn, label %pick
pick:
{_ordered("%i", "order", "w", "go")}
  %off = mul i64 %w, %size
  %s = getelementptr i8, ptr %base, i64 %off
  %status = call i32 @warp(ptr %s, ptr %c)
  %trapped = icmp eq i32 %status, {TRAPPED}
  br i1 %trapped, label %trap, label %done
trap:
  ret i32 {TRAPPED}
done:
  %isb = icmp eq i32 %status, {BLOCKED}
  %isy = icmp eq i32 %status, {YIELDED}
  %waits1 = or i1 %waits, %isb
  %yields1 = or i1 %yields, %isy
  %i1 = add i64 %i, 1
  br label %next
turn:
  br i1 %yields, label %spend, label %quiet
quiet:
  br i1 %waits, label %release, label %finished
finished:
  ret i32 {FINISHED}
release:
  %stuck = call i1 @release(ptr %c)
  br i1 %stuck, label %dead, label %spend
dead:
  ret i32 {DEADLOCKED}
spend:
  %cost = select i1 %yields, i64 {YIELD_COST}, i64 {BLOCKED_COST}
  %more = add i64 %turns, %cost
  %broke = icmp ugt i64 %more, %budget
  br i1 %broke, label %endless, label %again
endless:
  ret i32 {ENDLESS}
again:
  %pause = icmp uge i64 %more, %enough
  br i1 %pause, label %paused, label %round
paused:
  store i64 %more, ptr %begun.p
  ret i32 {PAUSED}
}}"""


def _blocks(sanitize: bool) -> str:
    shadows = f"""{_slot("localshadow", Slot.LOCAL_SHADOW)}
  %localshadowp = inttoptr i64 %localshadow to ptr
  call void @llvm.memset.p0.i64(ptr %localshadowp, i8 0, i64 %localall, i1 false)
{_slot("epoch", Slot.EPOCH)}
  %epoch1 = add i64 %epoch, 1
  store i64 %epoch1, ptr %epoch.p
  %firstp = getelementptr i64, ptr %c, i64 {int(Slot.FIRST_EPOCH)}
  store i64 %epoch1, ptr %firstp
{_slot("epochs", Slot.BLOCK_EPOCHS)}
{_slot("epochsn", Slot.BLOCK_EPOCHS_COUNT)}
  %kept = icmp ult i64 %i, %epochsn
  br i1 %kept, label %keep, label %reset
keep:
  %epochsp = inttoptr i64 %epochs to ptr
  %epochp = getelementptr i32, ptr %epochsp, i64 %i
  %epoch32 = trunc i64 %epoch1 to i32
  store i32 %epoch32, ptr %epochp"""
    return f"""define internal i32 @blocks(ptr %c, i64 %first, i64 %last) noinline {{
entry:
{_slot("order", Slot.CTA_ORDER)}
{_slot("nx", Slot.NCTAID_X)}
{_slot("ny", Slot.NCTAID_Y)}
{_slot("shared", Slot.SHARED)}
{_slot("sharedn", Slot.SHARED_BYTES)}
{_slot("local", Slot.LOCAL)}
{_slot("localn", Slot.LOCAL_BYTES)}
{_slot("threads", Slot.THREADS)}
{_slot("warps", Slot.WARPS)}
{_slot("n", Slot.WARP_COUNT)}
{_slot("size", Slot.STATE_BYTES)}
{_slot("arrived", Slot.ARRIVED)}
  %localall = mul i64 %localn, %threads
  %sharedp = inttoptr i64 %shared to ptr
  %localp = inttoptr i64 %local to ptr
  %base = inttoptr i64 %warps to ptr
  %arrivedp = inttoptr i64 %arrived to ptr
  br label %blocks
blocks:
  %i = phi i64 [ %first, %entry ], [ %i1, %blockdone ]
  %over = icmp uge i64 %i, %last
  br i1 %over, label %end, label %pick
end:
  ret i32 {FINISHED}
pick:
{_ordered("%i", "order", "b", "go")}
  %bx = urem i64 %b, %nx
  %byz = udiv i64 %b, %nx
  %by = urem i64 %byz, %ny
  %bz = udiv i64 %byz, %ny
  %bxp = getelementptr i64, ptr %c, i64 {int(Slot.CTAID_X)}
  store i64 %bx, ptr %bxp
  %byp = getelementptr i64, ptr %c, i64 {int(Slot.CTAID_Y)}
  store i64 %by, ptr %byp
  %bzp = getelementptr i64, ptr %c, i64 {int(Slot.CTAID_Z)}
  store i64 %bz, ptr %bzp
{_slot("turns", Slot.TURNS)}
  %begun = icmp ne i64 %turns, 0
  br i1 %begun, label %start, label %fresh
fresh:
  call void @llvm.memset.p0.i64(ptr %sharedp, i8 -1, i64 %sharedn, i1 false)
  call void @llvm.memset.p0.i64(ptr %localp, i8 -1, i64 %localall, i1 false)
  call void @llvm.memset.p0.i64(ptr %arrivedp, i8 0, i64 {4 * BARRIERS}, i1 false)
{shadows if sanitize else ""}
  br label %reset
reset:
  %w = phi i64 [ 0, %fresh ], {"[ 0, %keep ], " if sanitize else ""}[ %w1, %resetone ]
  %wover = icmp uge i64 %w, %n
  br i1 %wover, label %start, label %resetone
resetone:
  %off = mul i64 %w, %size
  %s = getelementptr i8, ptr %base, i64 %off
  %fp = getelementptr i8, ptr %s, i64 {State.FIRST_PCS}
  %f = load {_I32}, ptr %fp, align 64
  %pp = getelementptr i8, ptr %s, i64 {State.PCS}
  store {_I32} %f, ptr %pp, align 64
  %cp = getelementptr i8, ptr %s, i64 {State.ASYNC_COUNT}
  store {_I32} zeroinitializer, ptr %cp, align 64
  %yp = getelementptr i8, ptr %s, i64 {State.WAITED}
  store i32 0, ptr %yp, align 4
  %w1 = add i64 %w, 1
  br label %reset
start:
  %status = call i32 @cta(ptr %c)
  %fine = icmp eq i32 %status, {FINISHED}
  br i1 %fine, label %blockdone, label %stopped
stopped:
  %pausing = icmp eq i32 %status, {PAUSED}
  br i1 %pausing, label %pause, label %fault
fault:
  ret i32 %status
pause:
{_slot("next", Slot.NEXT)}
  store i64 %i, ptr %next.p
  ret i32 {PAUSED}
blockdone:
  store i64 0, ptr %turns.p
  %i1 = add i64 %i, 1
  br label %blocks
}}"""


def _run(e: Emitter) -> str:
    """@run: @blocks with subnormals kept and rounding to nearest, whatever some library left in this thread's control word."""
    before: list[str] = []
    after: list[str] = []
    if platform.machine().lower() in ("x86_64", "amd64"):
        for name in ("stmxcsr", "ldmxcsr"):
            e.declare(f"llvm.x86.sse.{name}", "void", "ptr")
        before = [
            "  %saved = alloca i32, align 4",
            "  %plain = alloca i32, align 4",
            f"  store i32 {_DEFAULT_MXCSR}, ptr %plain",
            "  call void @llvm.x86.sse.stmxcsr(ptr %saved)",
            "  call void @llvm.x86.sse.ldmxcsr(ptr %plain)",
        ]
        after = ["  call void @llvm.x86.sse.ldmxcsr(ptr %saved)"]
    call = "  %r = call i32 @blocks(ptr %c, i64 %first, i64 %last)"
    return "\n".join(["define i32 @run(ptr %c, i64 %first, i64 %last) {", *before, call, *after, "  ret i32 %r", "}"])
