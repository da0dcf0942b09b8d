"""Labels, lists of branch targets and other names: which braces they belong to, as NVIDIA's assembler has it."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.emulator import run
from ptxgen.emulator.parse import parse
from ptxgen.errors import ParseError
from ptxgen.target import Target
from ptxgen.toolchain.assemble import AssembleError, assemble
from tests.ptxgen.emulator.ptx import kernel

HOPPER = Target(90)
START = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, 0; mov.u32 %r2, 1;"
LOOP = """{ .reg .pred q; .reg .b32 i; mov.b32 i, 0;
AGAIN: add.u32 i, i, 1; add.u32 %r1, %r1, 1; setp.lt.u32 q, i, 3; @q bra AGAIN; }"""
SWITCH = "{ T: .branchtargets A, B; brx.idx %r2, T; A: add.u32 %r1, %r1, 100; B: add.u32 %r1, %r1, 1; }"

RUN = {
    f"{LOOP} {LOOP}": 6,  # MLIR's and CUTLASS's waits on an mbarrier
    "bra L; add.u32 %r1, %r1, 100; L: { bra L; add.u32 %r1, %r1, 10; L: add.u32 %r1, %r1, 1; }": 1,
    "{ bra L; add.u32 %r1, %r1, 10; { L: add.u32 %r1, %r1, 100; } } L: add.u32 %r1, %r1, 1;": 1,
    "{ { bra L; } add.u32 %r1, %r1, 10; L: add.u32 %r1, %r1, 1; } L: add.u32 %r1, %r1, 2;": 3,
    f"{SWITCH} {SWITCH}": 2,
    "T: .branchtargets A, B; { brx.idx %r2, T; A: add.u32 %r1, %r1, 10; } A: add.u32 %r1, %r1, 100; B: add.u32 %r1, %r1, 1;": 1,
    "T: .branchtargets A, B; { T: .branchtargets A; mov.u32 %r2, 0; brx.idx %r2, T; A: } add.u32 %r1, %r1, 5; A: B:": 5,
    "T: .branchtargets L<2>; brx.idx %r2, T; L0: add.u32 %r1, %r1, 10; L1: add.u32 %r1, %r1, 1;": 1,
    "{ .reg .b32 L; mov.b32 L, 4; add.u32 %r1, %r1, L; } bra L; add.u32 %r1, %r1, 10; L:": 4,
    "{ P: .callprototype _ (.param .b32 a); } { P: .callprototype _ (); } add.u32 %r1, %r1, 2;": 2,
    "k: p: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 3; @%p1 bra k;": 3,
    "{ .local .b32 v; st.local.b32 [v], 1; { .local .b32 v; st.local.b32 [v], 2; } ld.local.b32 %r1, [v]; }": 1,
    "{ .shared .b32 g; st.shared.b32 [g], 1; } ld.global.b32 %r1, [g];": 7,
    "{ .const .b32 c = 5; ld.const.b32 %r1, [c]; } { .const .b32 c = 6; ld.const.b32 %r3, [c]; add.u32 %r1, %r1, %r3; }": 11,
    "{ .local .b32 p0; st.local.b32 [p0], 3; } ld.param.u64 %rd1, [p0]; add.u32 %r1, %r1, 1;": 1,
}
REFUSED = {
    "bra L; { L: }": "branch to L, which is not defined in these braces or those around them",
    "{ L: } bra L;": "branch to L, which is not defined in these braces",
    "{ L: } { bra L; }": "branch to L, which is not defined in these braces",
    "bra nowhere;": "branch to nowhere, which is not defined",
    "L: L:": "L is declared twice in the same braces",
    ".reg .b32 L; L:": "L is declared twice in the same braces",
    "L: .reg .b32 L;": "L is declared twice in the same braces",
    "p0:": "p0 is declared twice in the same braces",
    "L: { .reg .b32 L; bra L; }": "must be a label",
    "L: { .local .b32 L; bra L; }": "branch to L, which is not a label",
    "brx.idx %r1, T; T: .branchtargets A; A:": "T is not a list of branch targets that is declared before",
    "{ T: .branchtargets A; } brx.idx %r1, T; A:": "T is not a list of branch targets",
    "A: brx.idx %r1, A;": "A is not a list of branch targets",
    "T: .branchtargets A; A: bra T;": "branch to T, which is not a label",
    "T: .branchtargets A, nowhere; A:": "branch to nowhere, which is not defined",
    "{ T: .branchtargets A; } { A: }": "branch to A, which is not defined in these braces",
    "P: .calltargets nowhere;": "nowhere is not a function",
    "bra L+4; L:": "operand target cannot be L+4",
    "L: mov.u64 %rd1, L;": "operand a cannot be L, which is not declared",
    "{ .reg .b32 x; } mov.u32 x, 1;": "cannot be x, which is not declared",
    "{ .local .b32 v; } ld.local.b32 %r1, [v];": "v is not declared",
    ".reg .b32 x; .reg .f32 x;": "x is declared twice in the same braces",
    ".reg .b32 x<3>; .reg .b32 x2;": "x2 is declared twice in the same braces",
    ".reg .b32 x2; .reg .b32 x<3>;": "x2 is declared twice in the same braces",
    ".reg .b32 x<2>; .reg .b32 x<3>;": "x0 is declared twice in the same braces",
    ".local .b32 x; .shared .b32 x;": "x is declared twice in the same braces",
}  # fmt: skip


def text_of(body: str) -> str:
    return kernel(f"{START}\n{body}\nst.global.u32 [%rd1], %r1;", "u64", shared=".global .b32 g = 7;")


@pytest.mark.parametrize("body", list(RUN))
def test_a_name_is_that_of_the_innermost_braces_that_have_it(body: str) -> None:
    assemble(text_of(body), HOPPER)
    x = np.zeros(1, np.uint32)
    assert not run(text_of(body), "k", 1, 1, [x])
    assert x[0] == RUN[body]


@pytest.mark.parametrize("body", list(REFUSED))
def test_a_name_that_is_not_declared_there_or_twice_is_refused(body: str) -> None:
    with pytest.raises(AssembleError):
        assemble(text_of(body), HOPPER)
    with pytest.raises(ParseError) as caught:
        parse(text_of(body))
    assert REFUSED[body] in str(caught.value)


def test_functions_that_are_inlined_twice_have_labels_and_lists_of_their_own() -> None:
    function = ".func (.reg .b32 %o) NAME(.reg .b32 %i) {{ T: .branchtargets A, B; brx.idx %i, T; {} ret; }}"
    first = function.replace("NAME", "f").format("A: mov.b32 %o, 1; ret; B: mov.b32 %o, 2;")
    second = function.replace("NAME", "g").format("B: mov.b32 %o, 10; ret; A: mov.b32 %o, 20;")
    body = " ".join(
        f"mov.u32 %r3, {index}; call (%r4), {name}, (%r3); add.u32 %r1, %r1, %r4;" for name in "fg" for index in (0, 1, 1)
    )
    text = kernel(f"{START} {body} st.global.u32 [%rd1], %r1;", "u64", shared=f"{first} {second}")
    assemble(text, HOPPER)
    x = np.zeros(1, np.uint32)
    assert not run(text, "k", 1, 1, [x])
    assert x[0] == 1 + 2 + 2 + 20 + 10 + 10
