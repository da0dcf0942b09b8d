"""What runs the warps of a block and the blocks of a launch, as LLVM functions: turns, barriers, lanes parked and woken."""

from __future__ import annotations

from ptxgen.emulator.checks import SHADOW_BYTES, reporter
from ptxgen.emulator.emitter import Emitter
from ptxgen.emulator.layout import BLOCKED, DEADLOCKED, ENDLESS, FINISHED, TRAPPED, WAITING, YIELDED, Slot, State
from ptxgen.emulator.sanitizer import FindingKind

_I32 = "<32 x i32>"
_WAIT = WAITING - (1 << 32)  # as LLVM spells it
BARRIERS = 16
_BLOCKED_COST = 1
_YIELD_COST = 1024


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


def scheduler(e: Emitter, sanitize: bool) -> None:
    """i32 @run(context, first, last): blocks first..last-1 of the launch, one after the other."""
    e.declare("llvm.memset.p0.i64", "void", "ptr", "i8", "i64", "i1")
    e.declare("llvm.ctpop.i32", "i32", "i32")
    e.declare("llvm.cttz.i32", "i32", "i32", "i1")
    if sanitize:
        reporter(e)
    e.functions["release"] = _release(sanitize)
    e.functions["cta"] = _block()
    e.functions["run"] = _run(sanitize)


def _slot(name: str, slot: Slot) -> str:
    return f"  %{name}.p = getelementptr i64, ptr %c, i64 {int(slot)}\n  %{name} = load i64, ptr %{name}.p, align 8"


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
  %base = inttoptr i64 %warps to ptr
  br label %round
round:
  %turns = phi i64 [ 0, %entry ], [ %more, %again ]
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
  %cost = select i1 %yields, i64 {_YIELD_COST}, i64 {_BLOCKED_COST}
  %more = add i64 %turns, %cost
  %broke = icmp ugt i64 %more, %budget
  br i1 %broke, label %endless, label %again
endless:
  ret i32 {ENDLESS}
again:
  br label %round
}}"""


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


def _release(sanitize: bool) -> str:
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
{_slot("warps", Slot.WARPS)}
{_slot("n", Slot.WARP_COUNT)}
{_slot("size", Slot.STATE_BYTES)}
{_slot("arrived64", Slot.ARRIVED)}
{_slot("threads64", Slot.THREADS)}
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


def _run(sanitize: bool) -> str:
    shadows = f"""{_slot("shadow", Slot.SHADOW)}
  %shadowp = inttoptr i64 %shadow to ptr
  %shadown = mul i64 %sharedn, {SHADOW_BYTES}
  call void @llvm.memset.p0.i64(ptr %shadowp, i8 0, i64 %shadown, i1 false)
{_slot("localshadow", Slot.LOCAL_SHADOW)}
  %localshadowp = inttoptr i64 %localshadow to ptr
  call void @llvm.memset.p0.i64(ptr %localshadowp, i8 0, i64 %localall, i1 false)
{_slot("epoch", Slot.EPOCH)}
  %epoch1 = add i64 %epoch, 1
  store i64 %epoch1, ptr %epoch.p"""
    return f"""define i32 @run(ptr %c, i64 %first, i64 %last) {{
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
  call void @llvm.memset.p0.i64(ptr %sharedp, i8 -1, i64 %sharedn, i1 false)
  call void @llvm.memset.p0.i64(ptr %localp, i8 -1, i64 %localall, i1 false)
  call void @llvm.memset.p0.i64(ptr %arrivedp, i8 0, i64 {4 * BARRIERS}, i1 false)
{shadows if sanitize else ""}
  br label %reset
reset:
  %w = phi i64 [ 0, %go ], [ %w1, %resetone ]
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
  %w1 = add i64 %w, 1
  br label %reset
start:
  %status = call i32 @cta(ptr %c)
  %fine = icmp eq i32 %status, {FINISHED}
  br i1 %fine, label %blockdone, label %fault
fault:
  %bfp = getelementptr i64, ptr %c, i64 {int(Slot.FAULT_BLOCK)}
  store i64 %b, ptr %bfp
  ret i32 %status
blockdone:
  %i1 = add i64 %i, 1
  br label %blocks
}}"""
