"""The sanitiser's checks as LLVM functions, compiled into a kernel when it is asked for. What they find, sanitizer.py words.

A byte of shared memory has a shadow of 12 words: state (0 nothing wrote it, 1 written, 2 a copy is on its way), then thread,
epoch, warp epoch, serial and kind of its last writer, and thread, epoch and warp epoch of two readers. A block barrier starts
an epoch, so an access conflicts with another thread's of the same epoch unless bar.warp.sync came between two of one warp."""

from __future__ import annotations

from enum import IntEnum

from ptxgen.emulator.emitter import Emitter
from ptxgen.emulator.layout import Slot, State
from ptxgen.emulator.sanitizer import CAPACITY, FindingKind

SHADOW_BYTES = 48
"""Bytes of shadow for a byte of shared memory."""
MAP_ENTRY = 32
"""Bytes of a memory map entry: i64 base, i64 size, i64 flags (1 read-only), i64 shadow address or 0."""


class Access(IntEnum):
    LOAD = 0
    STORE = 1
    ATOMIC = 2
    COPY = 3


def _slot(name: str, slot: Slot) -> list[str]:
    return [f"  %{name}.p = getelementptr i64, ptr %c, i64 {int(slot)}", f"  %{name} = load i64, ptr %{name}.p, align 8"]


def _set_bits(mask: str, before: str, body: list[str]) -> list[str]:
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
        _report_one(e)
        lines = [
            "define internal void @report.lanes(ptr %c, ptr %s, i32 %kind, i32 %line, i32 %lanes, "
            "<32 x i64> %a, i64 %extra) noinline {",
            "entry:",
            "  %at = alloca <32 x i64>, align 64",
            "  store <32 x i64> %a, ptr %at, align 64",
            *_set_bits(
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


def _report_one(e: Emitter) -> None:
    """void report(context, state, kind, line, lane, address, other thread, extra): one record a kind and line."""
    if "report" in e.functions:
        return
    lines = [
        "define internal void @report(ptr %c, ptr %s, i32 %kind, i32 %line, i32 %lane, "
        "i64 %address, i64 %other, i64 %extra) noinline {",
        "entry:",
        *_slot("f", Slot.FINDINGS),
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
        *_slot("bx", Slot.CTAID_X),
        *_slot("by", Slot.CTAID_Y),
        *_slot("bz", Slot.CTAID_Z),
        *_slot("nx", Slot.NCTAID_X),
        *_slot("ny", Slot.NCTAID_Y),
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


def _touch(e: Emitter) -> None:
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


def checker(e: Emitter) -> str:
    """i32 (context, state, addresses, mask, size, space, access, line) -> the lanes that may go on. Spaces: 0 global, 1 shared,
    2 local, 3 generic. Reports what it refuses and what it dislikes."""
    if "check" in e.functions:
        return "check"
    reporter(e)
    _touch(e)
    e.declare("llvm.cttz.i32", "i32", "i32", "i1")

    def say(kind: FindingKind, other: str = "-1") -> str:
        return f"  call void @report(ptr %c, ptr %s, i32 {int(kind)}, i32 %line, i32 %lane, i64 %al, i64 {other}, i64 %extra)"

    body = [
        "  %ap = getelementptr i64, ptr %at, i32 %lane",
        "  %al = load i64, ptr %ap",
        "  %t0 = mul i32 %warp, 32",
        "  %t = add i32 %t0, %lane",
        "  %bit = shl i32 1, %lane",
        "  %size1 = sub i64 %size, 1",
        "  %lowbits = and i64 %al, %size1",
        "  %odd = icmp ne i64 %lowbits, 0",
        "  %soff = sub i64 %al, %shared",
        "  %send = add i64 %soff, %size",
        "  %sin0 = icmp ule i64 %send, %sharedn",
        "  %sin1 = icmp ult i64 %soff, %sharedn",
        "  %sin = and i1 %sin0, %sin1",
        "  %t64 = zext i32 %t to i64",
        "  %tl = mul i64 %t64, %localn",
        "  %lbase = add i64 %local, %tl",
        "  %loff = sub i64 %al, %lbase",
        "  %lend = add i64 %loff, %size",
        "  %lin0 = icmp ule i64 %lend, %localn",
        "  %lin1 = icmp ult i64 %loff, %localn",
        "  %lin = and i1 %lin0, %lin1",
        "  br i1 %odd, label %misaligned, label %aligned",
        "misaligned:",
        say(FindingKind.MISALIGNED),
        "  br label %refuse",
        "aligned:",
        "  switch i32 %space, label %global [ i32 1, label %sharedspace i32 2, label %localspace i32 3, label %generic ]",
        "generic:",
        "  br i1 %sin, label %sharedok, label %generic2",
        "generic2:",
        "  br i1 %lin, label %localok, label %global",
        "sharedspace:",
        "  br i1 %sin, label %sharedok, label %outside",
        "localspace:",
        "  br i1 %lin, label %localok, label %outside",
        "outside:",
        say(FindingKind.BOUNDS),
        "  br label %refuse",
        # Shared memory
        "sharedok:",
        "  br label %byte",
        "byte:",
        "  %k = phi i64 [ 0, %sharedok ], [ %k1, %byte ]",
        "  %codes = phi i32 [ 0, %sharedok ], [ %codes1, %byte ]",
        "  %bo = add i64 %soff, %k",
        f"  %bo2 = mul i64 %bo, {SHADOW_BYTES}",
        "  %bp = getelementptr i8, ptr %shadowp, i64 %bo2",
        "  %code = call i32 @touch(ptr %bp, i32 %t, i32 %epoch, i32 %sync, i32 %serial, i32 %access)",
        "  %codeany = and i32 %codes, 255",
        "  %fresh = icmp eq i32 %codeany, 0",
        "  %codes1 = select i1 %fresh, i32 %code, i32 %codes",
        "  %k1 = add i64 %k, 1",
        "  %bytesleft = icmp ult i64 %k1, %size",
        "  br i1 %bytesleft, label %byte, label %codesdone",
        "codesdone:",
        "  %other0 = lshr i32 %codes1, 8",
        "  %other = zext i32 %other0 to i64",
        "  %c1 = and i32 %codes1, 1",
        "  %is1 = icmp ne i32 %c1, 0",
        "  br i1 %is1, label %say1, label %not1",
        "say1:",
        say(FindingKind.UNINITIALISED),
        "  br label %not1",
        "not1:",
        "  %c2 = and i32 %codes1, 2",
        "  %is2 = icmp ne i32 %c2, 0",
        "  br i1 %is2, label %say2, label %not2",
        "say2:",
        say(FindingKind.EARLY),
        "  br label %not2",
        "not2:",
        "  %c4 = and i32 %codes1, 4",
        "  %is4 = icmp ne i32 %c4, 0",
        "  br i1 %is4, label %say4, label %not4",
        "say4:",
        say(FindingKind.RACE_READ, "%other"),
        "  br label %not4",
        "not4:",
        "  %c8 = and i32 %codes1, 8",
        "  %is8 = icmp ne i32 %c8, 0",
        "  br i1 %is8, label %say8, label %accept",
        "say8:",
        say(FindingKind.RACE_WRITE, "%other"),
        "  br label %accept",
        # Local memory
        "localok:",
        "  %lsh0 = sub i64 %al, %local",
        "  %lshp = getelementptr i8, ptr %localshadowp, i64 %lsh0",
        "  br i1 %isload, label %readbytes, label %writebytes",
        # Global memory
        "global:",
        "  %i = phi i64 [ 0, %aligned ], [ 0, %generic2 ], [ %i1, %another ]",
        "  %past = icmp uge i64 %i, %mapn",
        "  br i1 %past, label %outside, label %look",
        "look:",
        f"  %mo = mul i64 %i, {MAP_ENTRY}",
        "  %m = getelementptr i8, ptr %mapp, i64 %mo",
        "  %mbase = load i64, ptr %m",
        "  %mp8 = getelementptr i8, ptr %m, i64 8",
        "  %msize = load i64, ptr %mp8",
        "  %goff = sub i64 %al, %mbase",
        "  %gend = add i64 %goff, %size",
        "  %gin0 = icmp ule i64 %gend, %msize",
        "  %gin1 = icmp ult i64 %goff, %msize",
        "  %gin = and i1 %gin0, %gin1",
        "  br i1 %gin, label %found, label %another",
        "another:",
        "  %i1 = add i64 %i, 1",
        "  br label %global",
        "found:",
        "  %mp16 = getelementptr i8, ptr %m, i64 16",
        "  %flags = load i64, ptr %mp16",
        "  %mp24 = getelementptr i8, ptr %m, i64 24",
        "  %gshadow = load i64, ptr %mp24",
        "  %gtracked = icmp ne i64 %gshadow, 0",
        "  %ro0 = and i64 %flags, 1",
        "  %ro = icmp ne i64 %ro0, 0",
        "  %notload = xor i1 %isload, true",
        "  %forbidden = and i1 %ro, %notload",
        "  br i1 %forbidden, label %readonly, label %allowed",
        "readonly:",
        say(FindingKind.READ_ONLY),
        "  br label %refuse",
        "allowed:",
        "  %gshadowp = inttoptr i64 %gshadow to ptr",
        "  %gsp = getelementptr i8, ptr %gshadowp, i64 %goff",
        "  br i1 %gtracked, label %tracked, label %accept",
        "tracked:",
        "  br i1 %isload, label %readbytes, label %writebytes",
        # Bytes with a shadow of one byte each
        "readbytes:",
        "  %rp = phi ptr [ %lshp, %localok ], [ %gsp, %tracked ]",
        "  br label %rb",
        "rb:",
        "  %ri = phi i64 [ 0, %readbytes ], [ %ri1, %rbnext ]",
        "  %rbp = getelementptr i8, ptr %rp, i64 %ri",
        "  %rv = load i8, ptr %rbp",
        "  %rz = icmp eq i8 %rv, 0",
        "  br i1 %rz, label %unwritten, label %rbnext",
        "rbnext:",
        "  %ri1 = add i64 %ri, 1",
        "  %rmore = icmp ult i64 %ri1, %size",
        "  br i1 %rmore, label %rb, label %accept",
        "unwritten:",
        say(FindingKind.UNINITIALISED),
        "  br label %accept",
        "writebytes:",
        "  %wp = phi ptr [ %lshp, %localok ], [ %gsp, %tracked ]",
        "  call void @llvm.memset.p0.i64(ptr %wp, i8 1, i64 %size, i1 false)",
        "  br label %accept",
        "accept:",
        "  br label %next",
        "refuse:",
        "  br label %next",
    ]
    e.declare("llvm.memset.p0.i64", "void", "ptr", "i8", "i64", "i1")
    loop = _set_bits("%mask", "entry", body)
    loop[2] = loop[2]  # the phi of the lanes left
    loop.insert(3, "  %ok = phi i32 [ 0, %entry ], [ %ok1, %next ]")
    lines = [
        "define internal i32 @check(ptr %c, ptr %s, <32 x i64> %a, i32 %mask, i64 %size, "
        "i32 %space, i32 %access, i32 %line) noinline {",
        "entry:",
        "  %at = alloca <32 x i64>, align 64",
        "  store <32 x i64> %a, ptr %at, align 64",
        *_slot("shared", Slot.SHARED),
        *_slot("sharedn", Slot.SHARED_BYTES),
        *_slot("local", Slot.LOCAL),
        *_slot("localn", Slot.LOCAL_BYTES),
        *_slot("map", Slot.MAP),
        *_slot("mapn", Slot.MAP_COUNT),
        *_slot("shadow", Slot.SHADOW),
        *_slot("localshadow", Slot.LOCAL_SHADOW),
        *_slot("epoch64", Slot.EPOCH),
        *_slot("serial64", Slot.SERIAL),
        "  %serial1 = add i64 %serial64, 1",
        "  store i64 %serial1, ptr %serial64.p",
        "  %serial = trunc i64 %serial1 to i32",
        "  %epoch = trunc i64 %epoch64 to i32",
        "  %mapp = inttoptr i64 %map to ptr",
        "  %shadowp = inttoptr i64 %shadow to ptr",
        "  %localshadowp = inttoptr i64 %localshadow to ptr",
        f"  %warpp = getelementptr i8, ptr %s, i64 {State.WARP}",
        "  %warp = load i32, ptr %warpp",
        f"  %syncp = getelementptr i8, ptr %s, i64 {State.SYNC_EPOCH}",
        "  %sync = load i32, ptr %syncp",
        f"  %isload = icmp eq i32 %access, {int(Access.LOAD)}",
        "  %space64 = zext i32 %space to i64",
        "  %extra1 = shl i64 %space64, 16",
        "  %extra2 = or i64 %extra1, %size",
        f"  %extra3 = select i1 %isload, i64 0, i64 {1 << 24}",
        "  %extra = or i64 %extra2, %extra3",
        *loop,
        "  %yes = phi i32 [ %bit, %accept ], [ 0, %refuse ]",
        "  %ok1 = or i32 %ok, %yes",
        "  br label %head",
        "end:",
        "  ret i32 %ok",
        "}",
    ]
    e.functions["check"] = "\n".join(lines)
    return "check"
