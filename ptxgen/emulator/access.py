"""Out-of-line LLVM functions that load or store for 32 lanes at once, with quick ways for the patterns that kernels have.

The pattern of a vector of addresses is found once (`sorter`) and serves every access through it at constant offsets."""

from __future__ import annotations

from ptxgen.emulator.emitter import LANES, Emitter

_V64 = "<32 x i64>"
_RUN, _SAME, _HALF_RUNS, _HALF_SAME, _SCATTERED, _NOBODY = range(6)
"""Patterns: every lane on and consecutive; one address; each half-warp consecutive, or one address (what a 16-byte column
layout gives: Q4_0, Q4_1, ...); anything else; no lane on. Lanes that are off count as the first that is on."""


def sorter(e: Emitter, step: int) -> str:
    """The name of a function (memory for 32 addresses, <32 x i64> addresses, i32 mask) -> pattern, where consecutive lanes are
    `step` bytes apart. Fills the memory with the addresses, those of lanes that are off replaced."""
    name = f"sort.{step}"
    if name in e.functions:
        return name
    e.declare("llvm.cttz.i32", "i32", "i32", "i1")
    runs = ", ".join(f"i64 {lane * step}" for lane in range(LANES))
    halves = ", ".join(f"i64 {lane % 16 * step}" for lane in range(LANES))
    first = ", ".join(f"i32 {lane // 16 * 16}" for lane in range(LANES))
    e.functions[name] = f"""define internal i32 @{name}(ptr %memory, {_V64} %a, i32 %m) noinline {{
entry:
  %nobody = icmp eq i32 %m, 0
  br i1 %nobody, label %none, label %some
none:
  ret i32 {_NOBODY}
some:
  %f = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %af = extractelement {_V64} %a, i32 %f
  %if = insertelement {_V64} poison, i64 %af, i32 0
  %sf = shufflevector {_V64} %if, {_V64} poison, <32 x i32> zeroinitializer
  %on = bitcast i32 %m to <32 x i1>
  %safe = select <32 x i1> %on, {_V64} %a, {_V64} %sf
  store {_V64} %safe, ptr %memory, align 64
  %delta = sub {_V64} %safe, %sf
  %isrun = icmp eq {_V64} %delta, <{runs}>
  %runbits = bitcast <32 x i1> %isrun to i32
  %full = icmp eq i32 %m, -1
  %allrun = icmp eq i32 %runbits, -1
  %run = and i1 %full, %allrun
  br i1 %run, label %isrunning, label %notrun
isrunning:
  ret i32 {_RUN}
notrun:
  %issame = icmp eq {_V64} %delta, zeroinitializer
  %samebits = bitcast <32 x i1> %issame to i32
  %same = icmp eq i32 %samebits, -1
  br i1 %same, label %isone, label %halves
isone:
  ret i32 {_SAME}
halves:
  %starts = shufflevector {_V64} %safe, {_V64} poison, <32 x i32> <{first}>
  %hdelta = sub {_V64} %safe, %starts
  %ishrun = icmp eq {_V64} %hdelta, <{halves}>
  %hrunbits = bitcast <32 x i1> %ishrun to i32
  %hrun = icmp eq i32 %hrunbits, -1
  %ishsame = icmp eq {_V64} %hdelta, zeroinitializer
  %hsamebits = bitcast <32 x i1> %ishsame to i32
  %hsame = icmp eq i32 %hsamebits, -1
  %rest = select i1 %hsame, i32 {_HALF_SAME}, i32 {_SCATTERED}
  %pattern = select i1 %hrun, i32 {_HALF_RUNS}, i32 %rest
  ret i32 %pattern
}}"""
    return name


def result_type(bits: int, count: int) -> str:
    one = f"<32 x i{bits}>"
    return one if count == 1 else "{ " + ", ".join([one] * count) + " }"


def _half_warps(bits: int) -> list[str]:
    one, half = f"<32 x i{bits}>", f"<16 x i{bits}>"
    whole = ", ".join(f"i32 {lane}" for lane in range(LANES))
    lines = []
    for way in ("hrun", "hsame"):
        lines.append(f"{way}:")
        for n in range(2):
            lines += [
                f"  %{way}m{n} = getelementptr i64, ptr %memory, i32 {16 * n}",
                f"  %{way}a{n} = load i64, ptr %{way}m{n}, align 64",
                f"  %{way}o{n} = add i64 %{way}a{n}, %offset",
                f"  %{way}p{n} = inttoptr i64 %{way}o{n} to ptr",
            ]
            if way == "hrun":
                lines.append(f"  %{way}{n} = load {half}, ptr %{way}p{n}, align 1")
                continue
            lines += [
                f"  %hx{n} = load i{bits}, ptr %{way}p{n}, align 1",
                f"  %hy{n} = insertelement {half} poison, i{bits} %hx{n}, i32 0",
                f"  %{way}{n} = shufflevector {half} %hy{n}, {half} poison, <16 x i32> zeroinitializer",
            ]
        lines += [f"  %{way}r = shufflevector {half} %{way}0, {half} %{way}1, <32 x i32> <{whole}>", f"  ret {one} %{way}r"]
    return lines


def loader(e: Emitter, bits: int, count: int) -> str:
    """The name of a function (sorted addresses, i64 offset, i32 pattern) -> `count` vectors, undefined where a lane is off."""
    name = f"load.{bits}x{count}"
    if name in e.functions:
        return name
    one, size, result = f"<32 x i{bits}>", bits // 8, result_type(bits, count)
    wide = f"<{LANES * count} x i{bits}>"

    def give(values: list[str], label: str) -> list[str]:
        if count == 1:
            return [f"  ret {one} {values[0]}"]
        lines, last = [], "poison"
        for k, value in enumerate(values):
            lines.append(f"  %{label}{k} = insertvalue {result} {last}, {one} {value}, {k}")
            last = f"%{label}{k}"
        return [*lines, f"  ret {result} {last}"]

    def unweave(source: str, label: str) -> list[str]:
        if count == 1:
            return give([source], label)
        lines = []
        for k in range(count):
            order = ", ".join(f"i32 {lane * count + k}" for lane in range(LANES))
            lines.append(f"  %{label}d{k} = shufflevector {wide} {source}, {wide} poison, <32 x i32> <{order}>")
        return [*lines, *give([f"%{label}d{k}" for k in range(count)], label)]

    ways = [f"i32 {_RUN}, label %run", f"i32 {_SAME}, label %one", f"i32 {_NOBODY}, label %nothing"]
    if count == 1:
        ways += [f"i32 {_HALF_RUNS}, label %hrun", f"i32 {_HALF_SAME}, label %hsame"]
    text = [
        f"define internal {result} @{name}(ptr %memory, i64 %offset, i32 %pattern) noinline {{",
        "entry:",
        f"  %out = alloca {wide}, align 64",
        "  %a0 = load i64, ptr %memory, align 64",
        "  %at = add i64 %a0, %offset",
        "  %p0 = inttoptr i64 %at to ptr",
        f"  switch i32 %pattern, label %gather [ {' '.join(ways)} ]",
        "nothing:",
        f"  ret {result} poison",
        "run:",
        f"  %w = load {wide}, ptr %p0, align 1",
        *unweave("%w", "g"),
        "one:",
    ]
    for k in range(count):
        text += [
            f"  %q{k} = getelementptr i8, ptr %p0, i64 {k * size}",
            f"  %x{k} = load i{bits}, ptr %q{k}, align 1",
            f"  %y{k} = insertelement {one} poison, i{bits} %x{k}, i32 0",
            f"  %z{k} = shufflevector {one} %y{k}, {one} poison, <32 x i32> zeroinitializer",
        ]
    text += give([f"%z{k}" for k in range(count)], "h")
    if count == 1:
        text += _half_warps(bits)
    # Straight-line scalar loads beat the gather instructions of every x86 tried. Narrow stores do not forward to a wide
    # load, so single elements are put together in registers; wider pieces go through the stack, which takes them apart.
    text.append("gather:")
    last = "poison"
    element = f"<{count} x i{bits}>" if count > 1 else f"i{bits}"
    for lane in range(LANES):
        text += [
            f"  %ap{lane} = getelementptr i64, ptr %memory, i32 {lane}",
            f"  %al{lane} = load i64, ptr %ap{lane}, align 8",
            f"  %ao{lane} = add i64 %al{lane}, %offset",
            f"  %pl{lane} = inttoptr i64 %ao{lane} to ptr",
            f"  %gl{lane} = load {element}, ptr %pl{lane}, align 1",
        ]
        if count == 1:
            text.append(f"  %in{lane} = insertelement {one} {last}, i{bits} %gl{lane}, i32 {lane}")
            last = f"%in{lane}"
        else:
            text.append(f"  %op{lane} = getelementptr i8, ptr %out, i32 {lane * count * size}")
            text.append(f"  store {element} %gl{lane}, ptr %op{lane}, align 1")
    if count == 1:
        text += [f"  ret {one} {last}", "}"]
    else:
        text += [f"  %ow = load volatile {wide}, ptr %out, align 64", *unweave("%ow", "k"), "}"]
    e.functions[name] = "\n".join(text)
    return name


def storer(e: Emitter, bits: int, count: int) -> str:
    """The name of a function (sorted addresses, i64 offset, i32 pattern, i32 mask, `count` vectors) -> void; lanes store in
    ascending order."""
    name = f"store.{bits}x{count}"
    if name in e.functions:
        return name
    e.declare("llvm.cttz.i32", "i32", "i32", "i1")
    one, size = f"<32 x i{bits}>", bits // 8
    arguments = ", ".join(f"{one} %v{k}" for k in range(count))
    text = [
        f"define internal void @{name}(ptr %memory, i64 %offset, i32 %pattern, i32 %m, {arguments}) noinline {{",
        "entry:",
        *(f"  %in{k} = alloca {one}, align 64" for k in range(count)),
        f"  %runs = icmp eq i32 %pattern, {_RUN}",
        "  br i1 %runs, label %run, label %slow",
        "run:",
        "  %a0 = load i64, ptr %memory, align 64",
        "  %at = add i64 %a0, %offset",
        "  %p0 = inttoptr i64 %at to ptr",
    ]
    values, width = [f"%v{k}" for k in range(count)], LANES
    while len(values) > 1:  # interleave: concatenate pairs, order once at the end
        joined = []
        for i in range(0, len(values), 2):
            order = ", ".join(f"i32 {n}" for n in range(2 * width))
            kind = f"<{width} x i{bits}>"
            text.append(
                f"  %c{width}.{i} = shufflevector {kind} {values[i]}, {kind} {values[i + 1]}, <{2 * width} x i32> <{order}>"
            )
            joined.append(f"%c{width}.{i}")
        values, width = joined, 2 * width
    if count > 1:
        order = ", ".join(f"i32 {k * LANES + lane}" for lane in range(LANES) for k in range(count))
        kind = f"<{width} x i{bits}>"
        text.append(f"  %woven = shufflevector {kind} {values[0]}, {kind} poison, <{width} x i32> <{order}>")
        values = ["%woven"]
    text += [f"  store <{width} x i{bits}> {values[0]}, ptr %p0, align 1", "  ret void"]
    text.append("slow:")
    text += [f"  store {one} %v{k}, ptr %in{k}, align 64" for k in range(count)]
    text.append("  br label %loop")
    body = [
        "  %ap = getelementptr i64, ptr %memory, i32 %lane",
        "  %al = load i64, ptr %ap, align 8",
        "  %ao = add i64 %al, %offset",
        "  %pl = inttoptr i64 %ao to ptr",
    ]
    for k in range(count):
        body += [
            f"  %u{k} = getelementptr i{bits}, ptr %in{k}, i32 %lane",
            f"  %t{k} = load i{bits}, ptr %u{k}, align {max(min(size, 16), 1)}",
            f"  %r{k} = getelementptr i8, ptr %pl, i64 {k * size}",
            f"  store i{bits} %t{k}, ptr %r{k}, align 1",
        ]
    text += [
        "loop:",
        "  %left = phi i32 [ %m, %slow ], [ %rest, %step ]",
        "  %none = icmp eq i32 %left, 0",
        "  br i1 %none, label %end, label %step",
        "step:",
        "  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)",
        "  %less = sub i32 %left, 1",
        "  %rest = and i32 %left, %less",
        *body,
        "  br label %loop",
        "end:",
        "  ret void",
        "}",
    ]
    e.functions[name] = "\n".join(text)
    return name
