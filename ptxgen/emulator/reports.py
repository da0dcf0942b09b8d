"""How compiled code reports a finding: LLVM functions that write records for sanitizer.py to word."""

from __future__ import annotations

from ptxgen.emulator.emitter import Emitter
from ptxgen.emulator.layout import Slot, State
from ptxgen.emulator.sanitizer import CAPACITY


def slot_lines(name: str, slot: Slot) -> list[str]:
    return [f"  %{name}.p = getelementptr i64, ptr %c, i64 {int(slot)}", f"  %{name} = load i64, ptr %{name}.p, align 8"]


def each_set_bit(mask: str, before: str, body: list[str]) -> list[str]:
    """A loop over the set bits of `mask`: `body` ends at label next."""
    return [
        "  br label %head",
        "head:",
        f"  %left = phi i32 [ {mask}, %{before} ], [ %rest, %next ]",
        "  %none = icmp eq i32 %left, 0",
        "  br i1 %none, label %end, label %each",
        "each:",
        "  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)",
        "  %less = sub i32 %left, 1",
        "  %rest = and i32 %left, %less",
        *body,
        "next:",
    ]


def reporter(e: Emitter) -> str:
    """void (context, state, kind, line, lanes, addresses, extra): reports each lane of the mask, the first in full."""
    if "report.lanes" not in e.functions:
        e.declare("llvm.cttz.i32", "i32", "i32", "i1")
        _report(e)
        lines = [
            "define internal void @report.lanes(ptr %c, ptr %s, i32 %kind, i32 %line, i32 %lanes, "
            "<32 x i64> %a, i64 %extra) noinline {",
            "entry:",
            "  %at = alloca <32 x i64>, align 64",
            "  store <32 x i64> %a, ptr %at, align 64",
            *each_set_bit(
                "%lanes",
                "entry",
                [
                    "  %ap = getelementptr i64, ptr %at, i32 %lane",
                    "  %al = load i64, ptr %ap",
                    "  call void @report(ptr %c, ptr %s, i32 %kind, i32 %line, i32 %lane, i64 %al, i64 -1, i64 %extra)",
                    "  br label %next",
                ],
            ),
            "  br label %head",
            "end:",
            "  ret void",
            "}",
        ]
        e.functions["report.lanes"] = "\n".join(lines)
    return "report.lanes"


def _report(e: Emitter) -> None:
    """void report(context, state, kind, line, lane, address, other thread, extra): one record a kind and line."""
    if "report" in e.functions:
        return
    lines = [
        "define internal void @report(ptr %c, ptr %s, i32 %kind, i32 %line, i32 %lane, "
        "i64 %address, i64 %other, i64 %extra) noinline {",
        "entry:",
        *slot_lines("f", Slot.FINDINGS),
        "  %none = icmp eq i64 %f, 0",
        "  br i1 %none, label %end, label %go",
        "go:",
        "  %fp = inttoptr i64 %f to ptr",
        "  %n = load i64, ptr %fp",
        "  br label %head",
        "head:",
        "  %i = phi i64 [ 0, %go ], [ %i1, %miss ]",
        "  %past = icmp uge i64 %i, %n",
        "  %off = mul i64 %i, 64",
        "  %off1 = add i64 %off, 64",
        "  %r = getelementptr i8, ptr %fp, i64 %off1",
        "  br i1 %past, label %new, label %look",
        "look:",
        "  %k = load i32, ptr %r",
        "  %lp = getelementptr i8, ptr %r, i64 4",
        "  %l = load i32, ptr %lp",
        "  %ek = icmp eq i32 %k, %kind",
        "  %el = icmp eq i32 %l, %line",
        "  %e = and i1 %ek, %el",
        "  br i1 %e, label %again, label %miss",
        "miss:",
        "  %i1 = add i64 %i, 1",
        "  br label %head",
        "again:",
        "  %cp = getelementptr i8, ptr %r, i64 8",
        "  %cn = load i64, ptr %cp",
        "  %cn1 = add i64 %cn, 1",
        "  store i64 %cn1, ptr %cp",
        "  br label %end",
        "new:",
        f"  %room = icmp ult i64 %n, {CAPACITY}",
        "  br i1 %room, label %write, label %end",
        "write:",
        "  store i32 %kind, ptr %r",
        "  %p4 = getelementptr i8, ptr %r, i64 4",
        "  store i32 %line, ptr %p4",
        "  %p8 = getelementptr i8, ptr %r, i64 8",
        "  store i64 1, ptr %p8",
        f"  %wp = getelementptr i8, ptr %s, i64 {State.WARP}",
        "  %w = load i32, ptr %wp",
        "  %w32 = mul i32 %w, 32",
        "  %t = add i32 %w32, %lane",
        "  %t64 = zext i32 %t to i64",
        "  %p16 = getelementptr i8, ptr %r, i64 16",
        "  store i64 %t64, ptr %p16",
        *slot_lines("bx", Slot.CTAID_X),
        *slot_lines("by", Slot.CTAID_Y),
        *slot_lines("bz", Slot.CTAID_Z),
        *slot_lines("nx", Slot.NCTAID_X),
        *slot_lines("ny", Slot.NCTAID_Y),
        "  %b1 = mul i64 %bz, %ny",
        "  %b2 = add i64 %b1, %by",
        "  %b3 = mul i64 %b2, %nx",
        "  %b4 = add i64 %b3, %bx",
        "  %p24 = getelementptr i8, ptr %r, i64 24",
        "  store i64 %b4, ptr %p24",
        "  %p32 = getelementptr i8, ptr %r, i64 32",
        "  store i64 %address, ptr %p32",
        "  %p40 = getelementptr i8, ptr %r, i64 40",
        "  store i64 %other, ptr %p40",
        "  %p48 = getelementptr i8, ptr %r, i64 48",
        "  store i64 %extra, ptr %p48",
        "  %n1 = add i64 %n, 1",
        "  store i64 %n1, ptr %fp",
        "  br label %end",
        "end:",
        "  ret void",
        "}",
    ]
    e.functions["report"] = "\n".join(lines)
