"""The dispatcher of a warp: it picks the lanes that run next, those with the lowest program counter, and ends the warp's turn
when its time is spent or no lane can go on."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.emulator.emitter import Emitter
from ptxgen.emulator.layout import BLOCKED, FINISHED, PAUSED, YIELDED, ContextWord, State
from ptxgen.emulator.runtime import barriers


def dispatcher(e: Emitter, blocks: Sequence[int], queue: int, products: int, *, has_bulk: bool) -> list[str]:
    """The lines with which a warp's function begins. `blocks`: the numbers that program counters name; `queue`, `products`:
    byte offsets in the warp's state of its asynchronous copies and products; `has_bulk`: whether a turn may end because a warp
    waits for a bulk copy."""
    cases = " ".join(f"i32 {block}, label %b{block}" for block in blocks)
    e.declare("llvm.vector.reduce.umin.v32i32", "i32", "<32 x i32>")
    woken = e.call_runtime(barriers.wake, "%s")
    return [
        "  %mask.m = alloca i32",
        "  %live.m = alloca i32",
        "  %ticks.m = alloca i64",
        f"  %kept.p = getelementptr i8, ptr %s, i64 {State.TICKS}",
        "  %kept = load i32, ptr %kept.p",
        "  store i32 0, ptr %kept.p",
        "  %kept.w = zext i32 %kept to i64",
        "  store i64 %kept.w, ptr %ticks.m",
        f"  %limit.p = getelementptr i64, ptr %c, i64 {int(ContextWord.LIMIT)}",
        *(["  %tired.m = alloca i32", f"  store i32 {YIELDED}, ptr %tired.m"] if has_bulk else []),
        f"  %quantum.p = getelementptr i64, ptr %c, i64 {int(ContextWord.QUANTUM)}",
        "  %quantum = load i64, ptr %quantum.p",
        f"  %pcs.p = getelementptr i8, ptr %s, i64 {State.PCS}",
        f"  %q = getelementptr i8, ptr %s, i64 {queue}",
        f"  %products = getelementptr i8, ptr %s, i64 {products}",
        "  br label %dispatch",
        "dispatch:",
        "  %pcs = load <32 x i32>, ptr %pcs.p, align 64",
        "  %least = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %pcs)",
        "  %blocked = icmp slt i32 %least, 0",
        "  br i1 %blocked, label %waiting, label %run",
        "waiting:",
        *e.body,
        f"  br i1 {woken}, label %dispatch, label %rest",
        "rest:",
        "  %gone = icmp eq i32 %least, -1",
        f"  %status = select i1 %gone, i32 {FINISHED}, i32 {BLOCKED}",
        "  ret i32 %status",
        "yield:",
        "  %used = load i64, ptr %ticks.m",
        "  %spent = icmp ugt i64 %used, %quantum",
        "  br i1 %spent, label %tired, label %pause",
        "pause:",  # it goes on at the dispatcher, which counts, too
        "  %used.w = trunc i64 %used to i32",
        "  %used.k = sub i32 %used.w, 1",
        "  store i32 %used.k, ptr %kept.p",
        f"  ret i32 {PAUSED}",
        "tired:",
        *(["  %tired.s = load i32, ptr %tired.m", "  ret i32 %tired.s"] if has_bulk else [f"  ret i32 {YIELDED}"]),
        "run:",
        "  %ticks = load i64, ptr %ticks.m",
        "  %ticks1 = add i64 %ticks, 1",
        "  store i64 %ticks1, ptr %ticks.m",
        "  %limit = load volatile i64, ptr %limit.p",
        "  %stops = icmp ugt i64 %ticks1, %limit",
        "  br i1 %stops, label %yield, label %choose",
        "choose:",
        "  %least1 = insertelement <32 x i32> poison, i32 %least, i32 0",
        "  %leastv = shufflevector <32 x i32> %least1, <32 x i32> poison, <32 x i32> zeroinitializer",
        "  %chosen = icmp eq <32 x i32> %pcs, %leastv",
        "  %chosenbits = bitcast <32 x i1> %chosen to i32",
        "  store i32 %chosenbits, ptr %mask.m",
        "  %alive = icmp ne <32 x i32> %pcs, splat (i32 -1)",
        "  %alivebits = bitcast <32 x i1> %alive to i32",
        "  store i32 %alivebits, ptr %live.m",
        f"  switch i32 %least, label %lost [ {cases} ]",
        "lost:",
        "  unreachable",
    ]
