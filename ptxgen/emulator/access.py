"""Out-of-line LLVM functions that load or store for 32 lanes at once, with quick ways for the patterns that kernels have."""

from __future__ import annotations

from ptxgen.emulator.emitter import LANES, Emitter

_V64 = "<32 x i64>"


def _vector(numbers: range, element: str = "i64") -> str:
    return "<" + ", ".join(f"{element} {n}" for n in numbers) + ">"


def _pattern_checks(step: int) -> list[str]:
    """%full, %runs (lane addresses are `step` apart) and %same (all are equal) of the addresses %a under the mask %m."""
    return [
        f"  %a0 = extractelement {_V64} %a, i32 0",
        f"  %i0 = insertelement {_V64} poison, i64 %a0, i32 0",
        f"  %s0 = shufflevector {_V64} %i0, {_V64} poison, <32 x i32> zeroinitializer",
        f"  %delta = sub {_V64} %a, %s0",
        f"  %isrun = icmp eq {_V64} %delta, {_vector(range(0, LANES * step, step))}",
        "  %runbits = bitcast <32 x i1> %isrun to i32",
        "  %full = icmp eq i32 %m, -1",
        "  %allrun = icmp eq i32 %runbits, -1",
        "  %runs = and i1 %full, %allrun",
    ]


def _lane_loop(body: list[str], after: str) -> list[str]:
    """`body` for each set bit of %m in turn, lane number %lane (i32); then the block `after`."""
    return [
        "loop:",
        "  %left = phi i32 [ %m, %{entry} ], [ %rest, %step ]".replace("{entry}", "slow"),
        "  %none = icmp eq i32 %left, 0",
        f"  br i1 %none, label %{after}, label %step",
        "step:",
        "  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)",
        "  %less = sub i32 %left, 1",
        "  %rest = and i32 %left, %less",
        *body,
        "  br label %loop",
    ]


def _half_warps(bits: int) -> list[str]:
    """Half-warps that each read consecutive elements, or one element: what a 16-byte column layout gives (Q4_0, Q4_1, ...)."""
    one, half = f"<32 x i{bits}>", f"<16 x i{bits}>"
    first = ", ".join(f"i32 {lane // 16 * 16}" for lane in range(LANES))
    whole = ", ".join(f"i32 {lane}" for lane in range(LANES))
    steps = ", ".join(f"i64 {lane % 16 * bits // 8}" for lane in range(LANES))
    lines = [
        "halves:",
        f"  %hb = shufflevector {_V64} %safe, {_V64} poison, <32 x i32> <{first}>",
        f"  %hd = sub {_V64} %safe, %hb",
        f"  %hlow = extractelement {_V64} %safe, i32 0",
        f"  %hhigh = extractelement {_V64} %safe, i32 16",
        "  %hp0 = inttoptr i64 %hlow to ptr",
        "  %hp1 = inttoptr i64 %hhigh to ptr",
    ]
    for way, pattern, otherwise in (("hrun", f"<{steps}>", "hsames"), ("hsame", "zeroinitializer", "gather")):
        if way == "hsame":
            lines.append("hsames:")
        lines += [
            f"  %{way}match = icmp eq {_V64} %hd, {pattern}",
            f"  %{way}bits = bitcast <32 x i1> %{way}match to i32",
            f"  %{way}all = icmp eq i32 %{way}bits, -1",
            f"  br i1 %{way}all, label %{way}, label %{otherwise}",
        ]
    lines.append("hrun:")
    lines += [f"  %hr{n} = load {half}, ptr %hp{n}, align 1" for n in range(2)]
    lines += [f"  %hr = shufflevector {half} %hr0, {half} %hr1, <32 x i32> <{whole}>", f"  ret {one} %hr", "hsame:"]
    for n in range(2):
        lines += [
            f"  %hx{n} = load i{bits}, ptr %hp{n}, align 1",
            f"  %hy{n} = insertelement {half} poison, i{bits} %hx{n}, i32 0",
            f"  %hz{n} = shufflevector {half} %hy{n}, {half} poison, <16 x i32> zeroinitializer",
        ]
    return [*lines, f"  %hs = shufflevector {half} %hz0, {half} %hz1, <32 x i32> <{whole}>", f"  ret {one} %hs"]


def result_type(bits: int, count: int) -> str:
    one = f"<32 x i{bits}>"
    return one if count == 1 else "{ " + ", ".join([one] * count) + " }"


def loader(e: Emitter, bits: int, count: int) -> str:
    """The name of a function (<32 x i64> addresses, i32 mask) -> `count` vectors; lanes outside the mask are undefined."""
    name = f"load.{bits}x{count}"
    if name in e.functions:
        return name
    e.declare("llvm.cttz.i32", "i32", "i32", "i1")
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

    text = [
        f"define internal {result} @{name}({_V64} %a, i32 %m) noinline {{",
        "entry:",
        f"  %out = alloca {wide}, align 64",
        *_pattern_checks(size * count),
        "  br i1 %runs, label %run, label %other",
        "run:",
        "  %p0 = inttoptr i64 %a0 to ptr",
        f"  %w = load {wide}, ptr %p0, align 1",
        *unweave("%w", "g"),
        # Lanes that are off read where the first lane that is on reads, so that one way serves every mask.
        "other:",
        "  %nobody = icmp eq i32 %m, 0",
        "  br i1 %nobody, label %nothing, label %some",
        "nothing:",
        f"  ret {result} poison",
        "some:",
        "  %f = call i32 @llvm.cttz.i32(i32 %m, i1 true)",
        f"  %af = extractelement {_V64} %a, i32 %f",
        f"  %if = insertelement {_V64} poison, i64 %af, i32 0",
        f"  %sf = shufflevector {_V64} %if, {_V64} poison, <32 x i32> zeroinitializer",
        "  %on = bitcast i32 %m to <32 x i1>",
        f"  %safe = select <32 x i1> %on, {_V64} %a, {_V64} %sf",
        f"  %issame = icmp eq {_V64} %safe, %sf",
        "  %samebits = bitcast <32 x i1> %issame to i32",
        "  %same = icmp eq i32 %samebits, -1",
        f"  br i1 %same, label %one, label %{'halves' if count == 1 else 'gather'}",
        "one:",
        "  %p1 = inttoptr i64 %af to ptr",
    ]
    for k in range(count):
        text += [
            f"  %q{k} = getelementptr i8, ptr %p1, i64 {k * size}",
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
    if count == 1:
        last = "poison"
        for lane in range(LANES):
            text += [
                f"  %al{lane} = extractelement {_V64} %safe, i32 {lane}",
                f"  %pl{lane} = inttoptr i64 %al{lane} to ptr",
                f"  %gl{lane} = load i{bits}, ptr %pl{lane}, align 1",
                f"  %in{lane} = insertelement {one} {last}, i{bits} %gl{lane}, i32 {lane}",
            ]
            last = f"%in{lane}"
        text += [f"  ret {one} {last}", "}"]
    else:
        element = f"<{count} x i{bits}>"
        for lane in range(LANES):
            text += [
                f"  %al{lane} = extractelement {_V64} %safe, i32 {lane}",
                f"  %pl{lane} = inttoptr i64 %al{lane} to ptr",
                f"  %gl{lane} = load {element}, ptr %pl{lane}, align 1",
                f"  %op{lane} = getelementptr i8, ptr %out, i32 {lane * count * size}",
                f"  store {element} %gl{lane}, ptr %op{lane}, align 1",
            ]
        text += [f"  %ow = load volatile {wide}, ptr %out, align 64", *unweave("%ow", "k"), "}"]
    e.functions[name] = "\n".join(text)
    return name


def storer(e: Emitter, bits: int, count: int) -> str:
    """The name of a function (<32 x i64> addresses, i32 mask, `count` vectors) -> void; lanes store in ascending order."""
    name = f"store.{bits}x{count}"
    if name in e.functions:
        return name
    e.declare("llvm.cttz.i32", "i32", "i32", "i1")
    one, size = f"<32 x i{bits}>", bits // 8
    arguments = ", ".join(f"{one} %v{k}" for k in range(count))
    text = [
        f"define internal void @{name}({_V64} %a, i32 %m, {arguments}) noinline {{",
        "entry:",
        f"  %addresses = alloca {_V64}, align 64",
        *(f"  %in{k} = alloca {one}, align 64" for k in range(count)),
        *_pattern_checks(size * count),
        "  br i1 %runs, label %run, label %slow",
        "run:",
        "  %p0 = inttoptr i64 %a0 to ptr",
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
    text += ["slow:", f"  store {_V64} %a, ptr %addresses, align 64"]
    text += [f"  store {one} %v{k}, ptr %in{k}, align 64" for k in range(count)]
    text.append("  br label %loop")
    body = [
        "  %ap = getelementptr i64, ptr %addresses, i32 %lane",
        "  %al = load i64, ptr %ap, align 8",
        "  %pl = inttoptr i64 %al to ptr",
    ]
    for k in range(count):
        body += [
            f"  %u{k} = getelementptr i{bits}, ptr %in{k}, i32 %lane",
            f"  %t{k} = load i{bits}, ptr %u{k}, align {max(min(size, 16), 1)}",
            f"  %r{k} = getelementptr i8, ptr %pl, i64 {k * size}",
            f"  store i{bits} %t{k}, ptr %r{k}, align 1",
        ]
    text += [*_lane_loop(body, "end"), "end:", "  ret void", "}"]
    e.functions[name] = "\n".join(text)
    return name
