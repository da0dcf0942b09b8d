"""Calls of functions of the module: what is passed and given back, in registers and in parameter space."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ptxgen.emulator import compile_module, run
from ptxgen.errors import ParseError
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from tests.ptxgen.emulator.ptx import kernel

CALLED = """.func (.param .b32 o) twice(.param .b32 i) { .reg .b32 t; ld.param.b32 t, [i]; add.u32 t, t, t;
st.param.b32 [o], t; ret; }
.func (.reg .f64 o) same(.reg .f64 i) { mov.f64 o, i; ret; }
.func (.reg .b32 o) next(.reg .b32 first) { .shared .b32 n; .reg .pred q; setp.ne.u32 q, first, 0; @q st.shared.b32 [n], 0;
ld.shared.b32 o, [n]; add.u32 o, o, 1; st.shared.b32 [n], o; ret; }
.func (.reg .b32 o) sum(.param .align 8 .b8 s[8]) { .reg .b32 a, b; ld.param.v2.b32 {a, b}, [s]; add.u32 o, a, b; ret; }
""".replace("\n", " ")
CALLS = {
    "call (%r1), twice, (7);": 14,
    "mov.b32 %r2, 8; call (%r1), twice, (%r2);": 16,
    "{ .param .b32 a; st.param.b32 [a], 5; call (%r1), twice, (a); }": 10,
    "{ .param .b32 a, b; st.param.b32 [a], 5; call (b), twice, (a); ld.param.b32 %r1, [b]; }": 10,
    "mov.b32 %r1, 3; call (_), twice, (1); call (_), same, (1.0);": 3,
    "{ .reg .b32 x; mov.b32 %r1, 0; call (x), next, (1); add.u32 %r1, %r1, x; call (x), next, (0); add.u32 %r1, %r1, x; }": 3,
    "call (%fd1), same, (1.5); mov.b64 {%r2, %r1}, %fd1;": 0x3FF80000,
    "{ .param .align 8 .b8 s[8]; st.param.b32 [s], 1; st.param.b32 [s+4], 2; call (%r1), sum, (s); }": 3,
}


@pytest.mark.parametrize("body", list(CALLS))
def test_a_function_takes_and_gives_registers_constants_and_memory(body: str) -> None:
    text = kernel(f"ld.param.u64 %rd1, [p0]; {body} st.global.u32 [%rd1], %r1;", "u64", shared=CALLED)
    assemble(text, Target(90))
    x = np.zeros(1, np.uint32)
    assert not run(text, "k", 1, 1, [x])
    assert x[0] == CALLS[body]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("call (%fd1), same, (1);", "argument i is f64 and cannot be 1: an integer constant"),
        ("{ .param .b64 a; call (%r1), twice, (a); }", "i has 4 bytes of .b32, got a, which has 8 bytes of .b64"),
        ("{ .param .b64 a; call (%r1), sum, (a); }", "s has 8 bytes of .b8, got a, which has 8 bytes of .b64"),
        ("call (%r1), sum, (1);", "s is .b8: cannot be 1"),
        ("call (%r1), twice, (%rd1);", "i is .b32"),
        ("call (%r1), twice, (nothing);", "nothing is not declared"),
        ("mov.u64 %rd1, twice;", "cannot be twice, a function, whose address is not emulated"),
        ("st.param.u64 [p0], %rd1;", "p0 is a parameter of the kernel, which cannot be written"),
    ],
)
def test_a_call_with_what_the_function_does_not_take_is_refused(body: str, message: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)):
        compile_module(kernel(body, "u64", shared=CALLED)).kernel("k")
