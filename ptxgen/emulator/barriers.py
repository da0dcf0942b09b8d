"""Barriers as LLVM functions: lanes parked, woken and released. When that happens, schedule.py and a warp's own code decide."""

from __future__ import annotations

from ptxgen.emulator.emitter import Emitter
from ptxgen.emulator.layout import WAITING, Slot, State
from ptxgen.emulator.reports import slot_lines
from ptxgen.emulator.sanitizer import FindingKind

_I32 = "<32 x i32>"
_WAIT = WAITING - (1 << 32)  # as LLVM spells it
BARRIERS = 16
"""Barriers of a block."""


def warp_functions(e: Emitter) -> None:
    """@leave, @park and @wake, which a warp's own code calls."""
    e.functions["leave"] = f"""define internal void @leave(ptr %s, i32 %mask, i32 %taken, i32 %t, i32 %f) noinline {{
  %p = getelementptr i8, ptr %s, i64 {State.PCS}
  %old = load {_I32}, ptr %p, align 64
  %m = bitcast i32 %mask to <32 x i1>
  %k = bitcast i32 %taken to <32 x i1>
  %t1 = insertelement {_I32} poison, i32 %t, i32 0
  %tv = shufflevector {_I32} %t1, {_I32} poison, {_I32} zeroinitializer
  %f1 = insertelement {_I32} poison, i32 %f, i32 0
  %fv = shufflevector {_I32} %f1, {_I32} poison, {_I32} zeroinitializer
  %go = select <32 x i1> %k, {_I32} %tv, {_I32} %fv
  %new = select <32 x i1> %m, {_I32} %go, {_I32} %old
  store {_I32} %new, ptr %p, align 64
  ret void
}}"""
    e.functions[
        "park"
    ] = f"""define internal void @park(ptr %s, i32 %mask, i32 %pc, {_I32} %kind, {_I32} %need, i32 %line) noinline {{
  %m = bitcast i32 %mask to <32 x i1>
  %waiting = or i32 %pc, {_WAIT}
  call void @leave(ptr %s, i32 %mask, i32 %mask, i32 %waiting, i32 %waiting)
  %kp = getelementptr i8, ptr %s, i64 {State.KIND}
  %ko = load {_I32}, ptr %kp, align 64
  %kn = select <32 x i1> %m, {_I32} %kind, {_I32} %ko
  store {_I32} %kn, ptr %kp, align 64
  %np = getelementptr i8, ptr %s, i64 {State.NEED}
  %no = load {_I32}, ptr %np, align 64
  %nn = select <32 x i1> %m, {_I32} %need, {_I32} %no
  store {_I32} %nn, ptr %np, align 64
  %lp = getelementptr i8, ptr %s, i64 {State.LINE}
  %lo = load {_I32}, ptr %lp, align 64
  %l1 = insertelement {_I32} poison, i32 %line, i32 0
  %lv = shufflevector {_I32} %l1, {_I32} poison, {_I32} zeroinitializer
  %ln = select <32 x i1> %m, {_I32} %lv, {_I32} %lo
  store {_I32} %ln, ptr %lp, align 64
  ret void
}}"""
    # Lanes that wait for their warp go on once no lane of it can run: those that are to come are here by then.
    e.functions["wake"] = f"""define internal i1 @wake(ptr %s) noinline {{
  %p = getelementptr i8, ptr %s, i64 {State.PCS}
  %pcs = load {_I32}, ptr %p, align 64
  %kp = getelementptr i8, ptr %s, i64 {State.KIND}
  %kinds = load {_I32}, ptr %kp, align 64
  %high = icmp slt {_I32} %pcs, zeroinitializer
  %here = icmp ne {_I32} %pcs, splat (i32 -1)
  %warp = icmp eq {_I32} %kinds, zeroinitializer
  %w0 = and <32 x i1> %high, %here
  %w = and <32 x i1> %w0, %warp
  %bits = bitcast <32 x i1> %w to i32
  %any = icmp ne i32 %bits, 0
  %low = and {_I32} %pcs, splat (i32 {WAITING - 1})
  %new = select <32 x i1> %w, {_I32} %low, {_I32} %pcs
  store {_I32} %new, ptr %p, align 64
  ret i1 %any
}}"""


def _slot_text(name: str, slot: Slot) -> str:
    return "\n".join(slot_lines(name, slot))


def _waiting(prefix: str) -> str:
    """%{prefix}bits: the waiting lanes of the state %{prefix}s; their %{prefix}pcs and %{prefix}kinds."""
    x = prefix
    return f"""  %{x}pp = getelementptr i8, ptr %{x}s, i64 {State.PCS}
  %{x}pcs = load {_I32}, ptr %{x}pp, align 64
  %{x}kp = getelementptr i8, ptr %{x}s, i64 {State.KIND}
  %{x}kinds = load {_I32}, ptr %{x}kp, align 64
  %{x}high = icmp slt {_I32} %{x}pcs, zeroinitializer
  %{x}here = icmp ne {_I32} %{x}pcs, splat (i32 -1)
  %{x}wait = and <32 x i1> %{x}high, %{x}here
  %{x}bits = bitcast <32 x i1> %{x}wait to i32"""


def release_function(sanitize: bool) -> str:
    say_missing = f"""  %complete = icmp eq i32 %got, %threads
  %partial = xor i1 %complete, true
  %all = icmp eq i32 %asked, 0
  %missing = and i1 %partial, %all
  br i1 %missing, label %say, label %said
say:
  %linep = getelementptr i32, ptr %lines, i32 %k
  %line = load i32, ptr %linep
  %got64 = zext i32 %got to i64
  %k64 = zext i32 %k to i64
  call void @report(ptr %c, ptr %base, i32 {int(FindingKind.BARRIER)}, i32 %line, i32 0, i64 %got64, i64 %k64, i64 %threads64)
  br label %said
said:"""
    say_diverged = f"""  %zfirst = call i32 @llvm.cttz.i32(i32 %chosen, i1 true)
  %zlane = and i32 %zfirst, 31
  %zpc = extractelement {_I32} %zpcs, i32 %zlane
  %zpc1 = insertelement {_I32} poison, i32 %zpc, i32 0
  %zpcv = shufflevector {_I32} %zpc1, {_I32} poison, {_I32} zeroinitializer
  %zdiff = icmp ne {_I32} %zpcs, %zpcv
  %zdiffbits = bitcast <32 x i1> %zdiff to i32
  %apart = and i32 %zdiffbits, %chosen
  %isapart = icmp ne i32 %apart, 0
  br i1 %isapart, label %sayapart, label %saidapart
sayapart:
  %zlane2 = call i32 @llvm.cttz.i32(i32 %apart, i1 true)
  %zlp = getelementptr i8, ptr %zs, i64 {State.LINE}
  %zlines = load {_I32}, ptr %zlp, align 64
  %zline = extractelement {_I32} %zlines, i32 %zlane2
  call void @report(ptr %c, ptr %zs, i32 {int(FindingKind.BARRIER_DIVERGED)}, i32 %zline, i32 %zlane2, i64 0, i64 -1, i64 0)
  br label %saidapart
saidapart:"""
    return f"""define internal i1 @release(ptr %c) noinline {{
entry:
  %counts = alloca i32, i32 {BARRIERS + 1}, align 16
  %needs = alloca i32, i32 {BARRIERS + 1}, align 16
  %lines = alloca i32, i32 {BARRIERS + 1}, align 16
  call void @llvm.memset.p0.i64(ptr %counts, i8 0, i64 {4 * BARRIERS + 4}, i1 false)
{_slot_text("warps", Slot.WARPS)}
{_slot_text("n", Slot.WARP_COUNT)}
{_slot_text("size", Slot.STATE_BYTES)}
{_slot_text("arrived64", Slot.ARRIVED)}
{_slot_text("threads64", Slot.THREADS)}
  %threads = trunc i64 %threads64 to i32
  %base = inttoptr i64 %warps to ptr
  %arrived = inttoptr i64 %arrived64 to ptr
  br label %count
count:
  %i = phi i64 [ 0, %entry ], [ %i1, %counted ]
  %live = phi i32 [ 0, %entry ], [ %live1, %counted ]
  %over = icmp uge i64 %i, %n
  br i1 %over, label %judge, label %one
one:
  %off = mul i64 %i, %size
  %xs = getelementptr i8, ptr %base, i64 %off
{_waiting("x")}
  %here = call i32 @llvm.ctpop.i32(i32 %xbits)
  %live1 = add i32 %live, %here
  br label %groups
groups:
  %left = phi i32 [ %xbits, %one ], [ %left1, %group ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %counted, label %group
group:
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %kind = extractelement {_I32} %xkinds, i32 %lane
  %kind1 = insertelement {_I32} poison, i32 %kind, i32 0
  %kindv = shufflevector {_I32} %kind1, {_I32} poison, {_I32} zeroinitializer
  %same = icmp eq {_I32} %xkinds, %kindv
  %samebits = bitcast <32 x i1> %same to i32
  %members = and i32 %samebits, %left
  %others = xor i32 %samebits, -1
  %left1 = and i32 %left, %others
  %many = call i32 @llvm.ctpop.i32(i32 %members)
  %b0 = sub i32 %kind, 1
  %big = icmp ugt i32 %b0, {BARRIERS}
  %b = select i1 %big, i32 {BARRIERS}, i32 %b0
  %cp = getelementptr i32, ptr %counts, i32 %b
  %c0 = load i32, ptr %cp
  %c1 = add i32 %c0, %many
  store i32 %c1, ptr %cp
  %np = getelementptr i8, ptr %xs, i64 {State.NEED}
  %nl = getelementptr i32, ptr %np, i32 %lane
  %need = load i32, ptr %nl
  %needp = getelementptr i32, ptr %needs, i32 %b
  store i32 %need, ptr %needp
  %lp = getelementptr i8, ptr %xs, i64 {State.LINE}
  %ll = getelementptr i32, ptr %lp, i32 %lane
  %l = load i32, ptr %ll
  %lstore = getelementptr i32, ptr %lines, i32 %b
  store i32 %l, ptr %lstore
  br label %groups
counted:
  %i1 = add i64 %i, 1
  br label %count
judge:
  %k = phi i32 [ 0, %count ], [ %k1, %judged ]
  %open = phi i32 [ 0, %count ], [ %open1, %judged ]
  %kover = icmp uge i32 %k, {BARRIERS}
  br i1 %kover, label %opened, label %barrier
barrier:
  %gp = getelementptr i32, ptr %counts, i32 %k
  %g0 = load i32, ptr %gp
  %used = icmp ne i32 %g0, 0
  br i1 %used, label %weigh, label %closed
weigh:
  %ap = getelementptr i32, ptr %arrived, i32 %k
  %a = load i32, ptr %ap
  %got = add i32 %g0, %a
  %wp = getelementptr i32, ptr %needs, i32 %k
  %asked = load i32, ptr %wp
  %whole = icmp eq i32 %asked, 0
  %want = select i1 %whole, i32 %live, i32 %asked
  %enough = icmp uge i32 %got, %want
  br i1 %enough, label %opening, label %closed
opening:
  store i32 0, ptr %ap
{say_missing if sanitize else ""}
  %kbit = shl i32 1, %k
  %openk = or i32 %open, %kbit
  br label %judged
closed:
  br label %judged
judged:
  %open1 = phi i32 [ %openk, %{"said" if sanitize else "opening"} ], [ %open, %closed ]
  %k1 = add i32 %k, 1
  br label %judge
opened:
  %stuck = icmp eq i32 %open, 0
  br i1 %stuck, label %end, label %release
release:
  %epp = getelementptr i64, ptr %c, i64 {int(Slot.EPOCH)}
  %ep = load i64, ptr %epp
  %ep1 = add i64 %ep, 1
  store i64 %ep1, ptr %epp
  %open1v = insertelement {_I32} poison, i32 %open, i32 0
  %openv = shufflevector {_I32} %open1v, {_I32} poison, {_I32} zeroinitializer
  br label %free
free:
  %j = phi i64 [ 0, %release ], [ %j1, %freed ]
  %jover = icmp uge i64 %j, %n
  br i1 %jover, label %end, label %freeone
freeone:
  %joff = mul i64 %j, %size
  %zs = getelementptr i8, ptr %base, i64 %joff
{_waiting("z")}
  %zb = sub {_I32} %zkinds, splat (i32 1)
  %zshift = and {_I32} %zb, splat (i32 15)
  %zopen = lshr {_I32} %openv, %zshift
  %zbit = trunc {_I32} %zopen to <32 x i1>
  %zchosen = and <32 x i1> %zbit, %zwait
  %chosen = bitcast <32 x i1> %zchosen to i32
  %zlow = and {_I32} %zpcs, splat (i32 {WAITING - 1})
  %znew = select <32 x i1> %zchosen, {_I32} %zlow, {_I32} %zpcs
  store {_I32} %znew, ptr %zpp, align 64
  %zany = icmp ne i32 %chosen, 0
  br i1 %zany, label %checkapart, label %freed
checkapart:
{say_diverged if sanitize else ""}
  br label %freed
freed:
  %j1 = add i64 %j, 1
  br label %free
end:
  ret i1 %stuck
}}"""
