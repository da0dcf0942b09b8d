"""PTX text that is made to do harm: a ParseError soon, in little memory and few words."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from ptxgen.emulator import compile_module, run
from ptxgen.emulator.parse import parse
from ptxgen.errors import ParseError, PtxGenError
from tests.ptxgen.emulator.ptx import kernel

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
NINES = "9" * 5000
IDENTITY = ".func (.reg .b32 %out) same(.reg .b32 %in) { mov.b32 %out, %in; ret; }\n"


def chain(length: int, calls: int) -> str:
    """Functions that each call the one before, so many times."""
    functions = [f".func f{i}() {{ {f'call f{i - 1}; ' * calls if i else ''}ret; }}\n" for i in range(length)]
    return HEAD + "".join(functions) + f".entry k() {{ call f{length - 1}; ret; }}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (kernel(f"mov.u32 %r1, {NINES};"), "ptx line 10: 9{40}... does not fit 64 bits"),
        (kernel(f"mov.u32 %r1, 0x{NINES};"), "ptx line 10: 0x9{38}... does not fit 64 bits"),
        (kernel(f"ld.global.u32 %r1, [%rd1+{NINES}];"), "does not fit 64 bits"),
        (f".version {NINES}.0\n.target sm_90\n", ".version needs a number such as 9.0"),
        (kernel(f".loc {NINES} 1 1"), "does not fit 64 bits"),
        (kernel(".loc 1 1e99 1"), "expected a whole number, got 1e99"),
        (kernel("", shared=f".global .b8 x[{NINES}];"), "does not fit 64 bits"),
        (kernel("", shared=".global .b8 x<1000>[1073741824];"), "the variables of the module have 1073741824000 bytes"),
        (kernel("", shared=".global .b8 x<1048576>;"), "1048576 variables cannot be declared; at most 65536 can"),
        (kernel("", shared=".global .b8 x<40000>;\n.global .b8 y<40000>;"), "more than 65536 variables"),
        (HEAD + ".entry k(.param .b8 p[20000], .param .b8 q[20000]) { ret; }", "parameters up to q have 40000 bytes"),
        (kernel(" ".join(f".local .b8 x{i}[500000];" for i in range(9))), "4500000 bytes of local memory a thread"),
        (kernel("mov.b64 %rd1, " + "{" * 5000 + "%r1" + "}" * 5000 + ";"), "a vector holds registers and numbers"),
        (chain(3000, calls=1), "more than 100 calls within each other"),
        (chain(40, calls=2), "more than 100000 instructions with its calls inlined"),
        (HEAD + IDENTITY + ".entry k() { .reg .b32 %r<3>; call (%r7), same, (%r1); ret; }", "%r7 is not declared"),
        (HEAD + IDENTITY + ".entry k() { .reg .b32 %r<3>; call (%r1), same, (%r7); ret; }", "%r7 is not declared"),
        (HEAD + IDENTITY + ".entry k() { .reg .b32 %r<3>; call same, (%r1); ret; }", "same returns 1 values, got places for 0"),
        (HEAD + IDENTITY + ".entry k() { .reg .b64 %r<3>; call (%r1), same, (1); ret; }", "%out is b32, got %r1, which is b64"),
        (HEAD + IDENTITY + ".entry k() { .param .b32 p; call (p), same, (1); ret; }", "%out is b32, got something that is no"),
        (kernel("@%r1 mov.u32 %r2, 1;"), "guard %r1 is b32, and a guard is a pred"),
        (kernel("@!%f1 bra L;\nL:"), "guard %f1 is f32, and a guard is a pred"),
        (kernel("mov.u32 %r1, !%r2;"), "operand a cannot be !%r2: only a predicate"),
        (HEAD + "/*" + "x" * 1_000_000 + "*/ nonsense", "'nonsense' cannot stand outside a function"),
    ],
)
def test_text_that_no_gpu_would_take_is_refused_soon_and_shortly(text: str, message: str) -> None:
    started = time.process_time()
    with pytest.raises(ParseError, match=message) as caught:
        compile_module(text).kernel("k")
    assert time.process_time() - started < 5
    assert len(str(caught.value)) < 1500


def test_registers_are_declared_when_they_are_used() -> None:
    ranges = " ".join(f".reg .b32 %q{i}a<1048576>;" for i in range(100))
    text = kernel(f"{ranges}\nmov.u32 %q7a1048575, 5;\nmov.u32 %q9a0, %q7a1048575;")
    assert {"%q7a1048575", "%q9a0"} == {name for name in parse(text).functions["k"].registers if name.startswith("%q")}
    for name in ("%q7a1048576", "%q7a01", "%q7a", "%q100a1"):
        with pytest.raises(ParseError, match=f"{name}, which is not declared"):
            parse(kernel(f"{ranges}\nmov.u32 {name}, 5;"))


def test_a_range_is_hidden_by_a_register_of_an_inner_scope() -> None:
    body = """.reg .b32 %x<9>;
    .reg .b32 %x1<4>;
    mov.u32 %x3, 7;
    { .reg .b32 %x3; mov.u32 %x3, 1; }
    { .reg .b32 %x<5>; mov.u32 %x3, 2; }
    mov.u32 %x12, 30;
    add.u32 %x3, %x3, %x12;
    ld.param.u64 %rd1, [p0];
    st.global.u32 [%rd1], %x3;"""
    x = np.zeros(1, np.uint32)
    assert not run(kernel(body, "u64"), "k", 1, 1, [x])
    assert x[0] == 37


def test_a_function_called_by_a_function_gives_back_into_its_own_registers() -> None:
    outer = ".func (.reg .b32 %o) twice(.reg .b32 %i) { .reg .b32 %own; call (%own), same, (%i); add.u32 %o, %own, %i; ret; }\n"
    entry = """.entry k(.param .u64 p0) { .reg .b64 %rd1; .reg .b64 %own; .reg .b32 %r1;
    ld.param.u64 %rd1, [p0]; call (%r1), twice, (21); st.global.u32 [%rd1], %r1; ret; }"""
    x = np.zeros(1, np.uint32)
    assert not run(HEAD + IDENTITY + outer + entry, "k", 1, 1, [x])
    assert x[0] == 42


def trap_at(file: str, *, sources: bool = True) -> str:
    """What is said of a kernel that traps at line 1 of a file."""
    (found,) = run(
        kernel("trap;", shared=f'.file 1 "{file}"').replace("trap;", ".loc 1 1 0\ntrap;"), "k", 1, 1, [], sources=sources
    )
    return str(found)


def test_only_regular_files_of_a_sane_size_are_read_for_the_authors_line(tmp_path: Path) -> None:
    author, pipe, large = tmp_path / "author.py", tmp_path / "pipe", tmp_path / "large"
    author.write_text("k.trap()\x1b[2J\nsecond\n")
    os.mkfifo(pipe)
    with large.open("wb") as stream:
        stream.truncate(20 << 30)  # takes no room on the disk
    assert trap_at(str(author)).endswith(f"  {author}:1   k.trap()\\x1b[2J")
    assert trap_at(str(author), sources=False).endswith(f"  {author}:1")
    for other in (pipe, large, tmp_path, tmp_path / "none", "/dev/zero", "a\0b"):
        assert trap_at(str(other)).endswith(":1")


def test_codes_that_a_terminal_obeys_are_spelt_in_messages() -> None:
    assert trap_at("\x1b[2Jx.py").endswith("  \\x1b[2Jx.py:1")
    with pytest.raises(PtxGenError) as caught:
        parse(HEAD + "nonsense // \x1b[2J")
    assert "\x1b" not in str(caught.value)
    assert "\\x1b[2J" in str(caught.value)
