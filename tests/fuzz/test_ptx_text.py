"""PTX text that is anything: an error of the package or a launch under the sanitiser that ends with findings or without, soon,
in little memory, and with no byte changed that is not the kernel's."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import numpy as np

from ptxgen.emulator import Finding, compile_module, run
from ptxgen.emulator.parse import parse
from ptxgen.errors import ArgumentError, ParseError
from ptxgen.isa.instructions import ROWS
from tests.fuzz.cases import Cases
from tests.fuzz.children import survives
from tests.fuzz.limits import bounded
from tests.ptxgen.emulator.ptx import kernel
from tests.ptxgen.isa.combinations import sensible

SECONDS = 60
MEMORY = 1 << 30
NUMBERS = (
    "0", "1", "2", "3", "4", "7", "16", "31", "32", "33", "64", "255", "65535", "2147483648", "4294967295", "99999999999",
    "1.5", "9" * 5000,
)  # fmt: skip
ODD = (
    "0", "1", "-1", "31", "32", "255", "65536", "4294967295", "18446744073709551615", "0x" + "F" * 17, "9" * 5000,
    "1e999", "0f7F800000",
    "%r0", "%r39", "%r40", "%rd3", "%f1", "%p1", "%h1", "%tid.x", "%laneid", "%clock", "WARP_SZ", "_", "x", "buffer", "L1",
    "k", "double",
    "{", "}", "[", "]", "(", ")", ",", ";", ":", "@", "!", "|", "+", "-", "<", ">", "=", "\x1b[2J", "`", '"', "/*", "//",
    ".reg", ".b32", ".pred", ".shared", ".global", ".const", ".local", ".param", ".align", ".entry", ".func", ".v4", ".loc",
    ".file",
    ".extern", ".maxntid", ".reqntid", ".branchtargets", ".version", ".section", "call", "ret", "trap", "bra", "bar.sync",
    "exit",
)  # fmt: skip
SAMPLE = """.loc 1 7 0
    .reg .b32 %q<8>;
    .local .align 8 .b8 frame[64];
    ld.param.u64 %rd1, [p0];
    ld.param.u32 %r9, [p1];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    mov.u64 %rd4, buffer;
    add.u64 %rd5, %rd4, %rd2;
    setp.lt.u32 %p1, %r1, 40;
    @%p1 ld.global.u32 %r2, [%rd3];
    @!%p1 mov.u32 %r2, 3;
    st.shared.u32 [%rd5], %r2;
    bar.sync 0;
    xor.b32 %r3, %r1, 1;
    shl.b32 %r3, %r3, 2;
    cvt.u64.u32 %rd6, %r3;
    add.u64 %rd6, %rd4, %rd6;
    ld.shared.u32 %q1, [%rd6];
    shfl.sync.bfly.b32 %r4|%p2, %r2, 1, 31, -1;
    selp.b32 %r5, %q1, %r4, %p2;
    call (%r6), double, (%r5);
    mov.u32 %r7, 0;
    L1:
    add.u32 %r7, %r7, 1;
    mad.lo.u32 %r6, %r6, %r7, 5;
    setp.lt.u32 %p3, %r7, 9;
    @%p3 bra L1;
    { .reg .f32 %q1; cvt.rn.f32.u32 %q1, %r6; fma.rn.f32 %q1, %q1, 0f3F800000, 0f3F000000; cvt.rzi.u32.f32 %r6, %q1; }
    mov.u64 %rd7, frame;
    cvta.local.u64 %rd7, %rd7;
    st.v2.u32 [%rd7+8], {%r6, %r7};
    ld.v2.u32 {%r10, _}, [%rd7+8];
    ld.const.u32 %r11, [numbers+4];
    add.u32 %r10, %r10, %r11;
    and.b32 %r12, %r1, 3;
    T: .branchtargets A, B, A, B;
    brx.idx %r12, T;
    A: add.u32 %r10, %r10, 1;
    B:
    atom.global.add.u32 %r13, [%rd1], 1;
    @%p1 st.global.u32 [%rd3], %r10;"""
BODY = SAMPLE.splitlines()
MODULE = """.file 1 "author.py"
.const .align 4 .b32 numbers[4] = {1, 2, 3, 4};
.shared .align 16 .b8 buffer[256];
.func (.reg .b32 %out) double(.reg .b32 %in) { add.u32 %out, %in, %in; ret; }"""
TOKEN = re.compile(r"[%.]?[\w.]+|\S|\s+")


@cache
def opcodes() -> list[str]:
    return sorted({row.opcode(modifiers) for row in ROWS for modifiers in sensible(row)[:40]})


def sample(body: list[str]) -> str:
    return kernel("\n".join(body), "u64", "u32", shared=MODULE)


def like(rng: random.Random, token: str) -> str:
    """Another register, number or opcode that may well stand there; often nothing."""
    if rng.random() < 0.2:
        return ""
    if re.fullmatch(r"%[a-z]+[0-9]+", token):
        kind = token.rstrip("0123456789") if rng.random() < 0.6 else rng.choice(("%r", "%rd", "%f", "%h", "%p"))
        return kind + str(rng.randrange(9))
    if token.isdigit():
        return rng.choice(NUMBERS)
    stem = token.partition(".")[0]
    return rng.choice([opcode for opcode in opcodes() if opcode.partition(".")[0] == stem] or [""])


def damaged(rng: random.Random) -> str:
    """Some of the sample with a few changes, most of which keep what is PTX PTX."""
    first = rng.randrange(len(BODY))
    lines = sample(BODY[:4] + BODY[first : first + rng.choice((4, 12, 60))]).split("\n")
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(lines))
        kind = rng.choice((0, 1, 2, 3, 4, *[5] * 9))
        tokens = TOKEN.findall(lines[at])
        if kind == 0:
            lines.insert(rng.randrange(len(lines)), lines[at])
        elif kind == 1:
            del lines[at]
            lines = lines or [""]
        elif kind == 2:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 3:
            lines[at] = lines[at].lstrip().partition(" ")[2]
            lines[at] = f"{rng.choice(opcodes())} {lines[at]}"
        elif kind == 4:
            cut = rng.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:cut] + chr(rng.randrange(128)) + lines[at][cut + rng.randrange(3) :]
        elif tokens:
            which = rng.choice([i for i, token in enumerate(tokens) if not token.isspace()] or [0])
            tokens[which] = like(rng, tokens[which]) or rng.choice((*ODD, *TOKEN.findall(rng.choice(lines))))
            lines[at] = "".join(tokens)
    return "\n".join(lines)


def refusal_of(text: str, array: np.ndarray[Any, Any] | None = None) -> str:
    """Why a text is not read, or not run if it is given an array; nothing if it is. What else is raised is a fault."""
    found: list[Finding] = []
    try:
        if array is None:
            parse(text)
        else:
            found = run(text, "k", 2, 64, [array, np.uint32(5)], seconds=2.0, sources=False)
    except (ParseError, ArgumentError) as error:
        refusal = str(error)
    else:
        refusal = ""
    assert len(refusal) < 2000
    assert (refusal + "".join(map(str, found))).replace("\n", "").isprintable()
    return refusal


def test_any_text_is_refused_or_runs_within_its_memory(cases: Cases) -> None:
    compile_module(sample(BODY), sanitize=True).kernel("k")  # what is loaded before the fork need not be loaded in each
    for rng in cases:
        text = damaged(rng)
        with bounded(SECONDS, MEMORY):
            if refusal_of(text):
                continue

        def case(text: str = text) -> None:
            memory = np.arange(4096, dtype=np.uint32)
            refusal_of(text, memory[2000:2040])
            memory[2000:2040] = range(2000, 2040)
            assert np.array_equal(memory, np.arange(4096))

        wrong = survives(case, SECONDS, MEMORY)
        assert not wrong, f"{wrong}\n{text}"
