"""Reading PTX text: what it spells, and a ParseError with its line for everything else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.emulator.parse import parse
from ptxgen.emulator.program import ParsedLabel, Step
from ptxgen.errors import ParseError
from ptxgen.isa.operands import Address, Immediate, Register, Vector
from tests.ptxgen.emulator.ptx import FIRST_LINE, kernel

SAMPLE = kernel(
    """
// a comment
.loc 1 5 3
ld.param.u64 %rd1, [p0+0]; /* another
over two lines */ mov.f32 %f1, 0f3F800000;
L1:
{ .reg .b32 inner; mov.u32 inner, 0x1F; { .reg .b32 inner; mov.u32 inner, 017; } }
@!%p1 ld.global.v4.f32 {%f1, %f2, _, %f4}, [%rd1+-16];
setp.lt.and.s32 %p1|%p2, %r1, -5, !%p3;
@%p1 bra L1;
bar.sync 0;
""",
    "u64",
    shared='.file 1 "author.py"\n.global .align 8 .b8 t[8] = {1, 2, 0xFF};',
)


def steps(text: str) -> list[Step]:
    return [i for i in parse(text).functions["k"].items if isinstance(i, Step)]


def body(text: str) -> list[Step]:
    return steps(kernel(text, "u64"))


def test_a_module_is_read_with_its_lines_files_and_variables() -> None:
    program = parse(SAMPLE)
    assert (program.version, program.target, program.entries) == ((8, 0), "sm_90", ("k",))
    assert program.files == {1: "author.py"}
    assert program.variables["t"].initial.data == b"\x01\x02\xff"
    assert any(isinstance(i, ParsedLabel) and i.name == "L1" for i in program.functions["k"].items)
    load = steps(SAMPLE)[0]
    assert load.source is not None
    assert (load.source.file, load.source.line) == (1, 5)


def test_literals_in_every_base_and_float_form() -> None:
    values = [s.operands["a"] for s in body("mov.u32 %r1, 0x1F; mov.u32 %r1, 017; mov.u32 %r1, 0b101; mov.u32 %r1, 12U;")[:4]]
    assert [v.value for v in values if isinstance(v, Immediate)] == [31, 15, 5, 12]
    single, double = body("mov.f32 %f1, 0fC0490FDB; mov.f64 %fd1, 0d400921FB54442D18;")[:2]
    assert str(single.operands["a"]) == "0fC0490FDB"
    assert str(double.operands["a"]) == "0d400921FB54442D18"


def test_scopes_hide_registers_of_the_same_name() -> None:
    outer, inner = (
        s
        for s in steps(SAMPLE)
        if s.row.name == "mov" and isinstance(s.operands["d"], Register) and "inner" in str(s.operands["d"])
    )
    assert outer.operands["d"] != inner.operands["d"]


def test_vectors_sinks_guards_and_negative_offsets() -> None:
    load = next(s for s in steps(SAMPLE) if s.modifiers.get("vec"))
    vector, address = load.operands["d"], load.operands["a"]
    assert isinstance(vector, Vector)
    assert vector.elements[2] is None
    assert isinstance(address, Address)
    assert address.offset == -16
    assert load.guard is not None
    assert load.guard.negated


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frob.u32 %r1, %r2;", "unknown instruction frob.u32"),
        ("add.f31 %r1, %r2, %r3;", "unknown instruction add.f31"),
        ("mov.u32 %r99, 1;", "%r99, which is not declared"),
        ("add.u32 %r1, %r2;", "takes 3 to 3 operands, got 2"),
        ("add.u32 %r1, %r2, %f1;", "must be u32, got f32"),
        ("mov.u32 %r1, 09;", "not an octal number"),
        ("@%p99 ret;", "%p99 is not declared"),
        ("ld.global.u32 %r1, %rd1;", "must be an address, got %rd1"),
        ("call foo, ();", "not declared"),
        ("mov.u32 %r1, `;", "no PTX token"),
    ],
)
def test_a_fault_names_its_line(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=f"ptx line {FIRST_LINE}: ") as caught:
        body(text)
    assert message in str(caught.value)
    assert caught.value.line == FIRST_LINE


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (".shared .pred q;", "q is .pred, which lives in registers only"),
        (".global .b8 t[2] = {1, 2, 3};", "t is given more than 2 elements"),
        (".global .b64 t = 0x1FFFFFFFFFFFFFFFF;", "does not fit 64 bits"),
        (".local .b8 t[524289];", "t has 524289 bytes, more than 524288"),
        (".global .b8 t[2][999999999];", "more than 1073741824"),
        (".visible .entry other(.param .pred p) {}", "p is .pred"),
        (".visible .entry other(.param .b8 p[32765]) {}", "p has 32765 bytes, more than 32764"),
    ],
)
def test_a_declaration_that_no_memory_holds_names_its_line(declaration: str, message: str) -> None:
    with pytest.raises(ParseError, match=r"ptx line 4: ") as caught:
        parse(kernel("", shared=declaration))
    assert message in str(caught.value)


def reads_or_names_a_line(text: str) -> bool:
    try:
        parse(text)
    except ParseError as e:
        return e.line >= 1
    return True


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(SAMPLE) - 1))
def test_text_cut_off_anywhere_is_a_parse_error_or_reads(length: int) -> None:
    assert reads_or_names_a_line(SAMPLE[:length])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(SAMPLE) - 1), st.text("%[]{}();,.@!x0f-+|_: \n", min_size=1, max_size=3), st.integers(0, 4))
def test_damaged_text_is_a_parse_error_or_reads(at: int, insert: str, remove: int) -> None:
    assert reads_or_names_a_line(SAMPLE[:at] + insert + SAMPLE[at + remove :])
