"""Constants and initial values of variables, against NVIDIA's assembler: what they are worth, and which are refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.emulator import run
from ptxgen.emulator.parse import parse
from ptxgen.emulator.program import Item, Step
from ptxgen.errors import ParseError
from ptxgen.target import Target
from ptxgen.toolchain.assemble import AssembleError, assemble
from tests.ptxgen.emulator.elf import section
from tests.ptxgen.emulator.ptx import kernel

HOPPER = Target(90)
NUMBERS = (
    "0", "1", "3", "63", "65", "7U", "0x7FFFFFFFFFFFFFFF", "0x8000000000000000", "18446744073709551615", "4294967296", "017",
    "0b101", "WARP_SZ",
)  # fmt: skip
SIGNS = ("-", "+", "~", "!", "(.s64)", "(.u64)")
OPERATORS = ("+", "-", "*", "/", " % ", "&", "|", "^", "<<", ">>", "&&", "||", "==", "!=", "<", ">", "<=", ">=")
EXPRESSIONS = st.recursive(
    st.sampled_from(NUMBERS),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(SIGNS), inner).map(" ".join),
        inner.map("({})".format),
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map("".join),
        st.tuples(inner, inner, inner).map("({0[0]}?{0[1]}:{0[2]})".format),
    ),
    max_leaves=8,
)


def stored_by_the_assembler(declaration: str, size: int) -> bytes | None:
    """The initial bytes of the variables of a declaration; None if it refuses it."""
    try:
        return section(assemble(kernel("", shared=declaration), HOPPER).cubin, ".nv.global.init").ljust(size, b"\0")
    except AssembleError:
        return None


def stored_by_us(declaration: str, size: int) -> bytes | None:
    try:
        variable = next(iter(parse(kernel("", shared=declaration)).variables.values()))
    except ParseError:
        return None
    return bytes(variable.initial.data).ljust(size, b"\0")


@settings(max_examples=15, deadline=None)
@given(st.lists(EXPRESSIONS, min_size=9, max_size=9))
def test_an_expression_of_integers_is_worth_what_the_assembler_makes_of_it(expressions: list[str]) -> None:
    taken = [e for e in expressions if stored_by_us(f".global .u64 v[] = {{{e}}};", 8) is not None]
    declaration = f".global .u64 v[9] = {{{', '.join(taken)}}};"
    assert stored_by_us(declaration, 72) == stored_by_the_assembler(declaration, 72)
    for refused in {*expressions} - {*taken}:
        assert stored_by_the_assembler(f".global .u64 v[] = {{{refused}}};", 8) is None


@pytest.mark.parametrize(
    "type", ["b32", *(pytest.param(t, marks=pytest.mark.slow) for t in ("u8", "s64", "u32", "b64", "f32", "f64", "f16"))]
)
def test_an_initial_value_is_stored_as_the_assembler_does_or_refused_with_it(type: str) -> None:
    for value in (
        "1", "-1", "300", "5000000000", "1.1", "-1.5e3", ".5", "0f3F8ABCDE", "0d3FF199999999999A", "1.0+2.0", "1.5<2.5",
        "-0d3FF0000000000000", "(0f3F8ABCDE)", "-0f3F8ABCDE", "1+2.0", "1.0/0.0", "1/0", "1e400", "1e-400", "~1.0",
        "1?2.0:3.0", "0xFF00(0x1234)", "0xFF(1.0)", "WARP_SZ-1", "v2", "09", "0b2", "1UL", "--5", "1,",
    ):  # fmt: skip
        declaration = f".global .{type} v[2] = {{{value}}};"
        assert stored_by_us(declaration, 16) == stored_by_the_assembler(declaration, 16), declaration


@pytest.mark.parametrize(
    "declaration",
    [
        "u32 v[2][3] = {{1}, {2, 3}};", "u32 v[2][2][2] = {{{1}, {2}}, {{3, 4}}};", "u32 v[4] = {};",
        "u32 v[][2] = {{1}, {2, 3}, {4}};", "v2 .u32 v[2] = {{1, 2}, {3, 4}};", "v4 .f32 v = {1.0, 2.0, 3.0, 4.0};",
        "u32 v[2][2] = {1, 2, 3, 4};", "u32 v[2][2] = {{1, 2, 3}, {4}};", "u32 v = {1};", "u32 v[1] = 1;", "u32 v[2] = {1,};",
        "v2 .u32 v = {1};", "u32 v[WARP_SZ] = {1};", "u32 v[2+2] = {1};", "u32 v[] = {};", "b8 v[4] = {1, 2, 300, -1};",
        "u32 v[0];", "u32 v[];", "bf16 v;",
    ],
)  # fmt: skip
def test_the_shape_of_an_initial_value_is_the_shape_of_the_variable(declaration: str) -> None:
    assert stored_by_us(f".global .{declaration}", 128) == stored_by_the_assembler(f".global .{declaration}", 128)


POINTERS = """.global .align 8 .b32 target[100];
.global .u64 whole[3] = {target, target+4*2, generic(target)+-8};
.global .u32 low = target+12;
.global .align 8 .u8 bytes[8] = {0xFF(target), 0xff00(target+300), 0xFF0000(target), 0xFF000000(generic(target)),
  0xFF00000000(target), 0xFF0000000000(target), 0xFF000000000000(target), 0xFF00000000000000(target)};
"""


def test_the_bytes_of_an_address_are_put_where_the_text_wants_them() -> None:
    body = """ld.param.u64 %rd1, [p0]; mov.u64 %rd2, target; st.global.u64 [%rd1], %rd2;
    ld.global.u64 %rd3, [whole]; st.global.u64 [%rd1+8], %rd3; ld.global.u64 %rd3, whole[1]; st.global.u64 [%rd1+16], %rd3;
    ld.global.u64 %rd3, [whole+16]; st.global.u64 [%rd1+24], %rd3; ld.global.u32 %r1, [low]; st.global.u32 [%rd1+32], %r1;
    ld.global.u64 %rd3, [bytes]; st.global.u64 [%rd1+40], %rd3;"""
    text = kernel(body, "u64", shared=POINTERS.replace("\n", " "))
    assemble(text, HOPPER)
    x = np.zeros(6, np.uint64)
    assert not run(text, "k", 1, 1, [x])
    address = int(x[0])
    carried = address & ~0xFF00 | (address + 300) & 0xFF00
    assert x[1:].tolist() == [address, address + 8, address - 8, (address + 12) & 0xFFFFFFFF, carried]


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (".global .u8 b = 0xF(t);", "the mask 0xf is not 0xFF"),
        (".global .u8 b = 0x1FE(t);", "the mask 0x1fe is not"),
        (".global .u16 b = 0xFF(t);", "a byte of an address is .u8, .u32 or .u64"),
        (".global .u16 b = t;", "an address is .u64 or .u32"),
        (".global .u64 b = s;", "which is in shared memory"),
        (".global .u64 b = later; .global .b32 later;", "later, which is not declared before it"),
        (".global .u64 b = t-4;", "expected ','"),
        (".shared .u64 b = 4;", "b cannot have an initial value"),
    ],
)
def test_an_address_that_no_variable_can_start_with_is_refused_by_both(declaration: str, message: str) -> None:
    text = kernel("", shared=f".global .b32 t; .shared .b32 s; {declaration}")
    with pytest.raises(AssembleError):
        assemble(text, HOPPER)
    with pytest.raises(ParseError, match=re.escape(message)):
        parse(text)


def code(text: str) -> bytes:
    return section(assemble(text, HOPPER).cubin, ".text.k")


ALIKE = (
    ("mov.u32 %r1, {};", "WARP_SZ-1", "31"), ("mov.u32 %r1, {};", "(1<<4)|3", "19"),
    ("mov.u16 %h1, {}; cvt.u32.u16 %r1, %h1;", "70000", "4464"), ("mov.u32 %r1, {};", "-5000000000", "-705032704"),
    ("mov.u32 %r1, {};", "5 % 2", "1"), ("mov.u32 %r1, {};", "1.5<2.5", "1"),
    ("mov.f32 %f1, {}; mov.b32 %r1, %f1;", "0d3FF0000000000000", "0f3F800000"),
    ("mov.f32 %f1, {}; mov.b32 %r1, %f1;", "1.0/3.0", "0f3EAAAAAB"),
    ("mov.f64 %fd1, {}; mov.b64 {{%r1, %r2}}, %fd1;", "0f3F800000", "0d000000003F800000"),
    ("mov.f32 %f1, {}; mov.b32 %r1, %f1;", "1e39", "0f7F800000"),
    ("mov.pred %p1, {}; selp.u32 %r1, 1, 0, %p1;", "4294967296", "1"), ("selp.u32 %r1, 1, 0, {};", "!2", "0"),
    ("mov.b64 %rd3, {}; mov.b64 {{%r1, %r2}}, %rd3;", "1.5", "0d3FF8000000000000"), ("cvt.s32.s8 %r1, {};", "200", "-56"),
    ("mov.b32 %r1, {{{}, -1}};", "70000", "4464"), ("ld.global.u32 %r1, [%rd1{}];", "+4*2-8+1<<3", "+8"),
    ("ld.global.u32 %r1, [g{}];", "+WARP_SZ", "+32"), ("ld.global.u32 %r1, {};", "g[4]", "[g+16]"),
    ("ld.global.u32 %r1, [g+{}];", "-(4-8)", "4"), ("mov.u64 %rd3, {}; ld.global.u32 %r1, [%rd3];", "g+4*2", "g[2]"),
    ("st.global.b32 [%rd1+64], {};", "{{%r2}}", "%r2"), ("st.global.f32 [%rd1+64], {};", "{{2.0}}", "2.0"),
    ("ld.global.u32 {}, [%rd1+64];", "{{%r1}}", "%r1"), ("ld.acquire.gpu.global.u32 {}, [%rd1];", "{{%r1}}", "%r1"),
    ("mov.u16 %h1, {}; cvt.u32.u16 %r1, %h1;", "%tid.x", "%tid.x"),
)  # fmt: skip


def operands(item: Item) -> object:
    """What an instruction does, but for its line."""
    return (item.row.name, item.modifiers, item.operands) if isinstance(item, Step) else item


def around(body: str) -> str:
    start = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, 0; mov.u32 %r2, %tid.x;"
    return kernel(
        f"{start} {body} st.global.v2.u32 [%rd1], {{%r1, %r2}};",
        "u64",
        shared=".global .align 4 .u32 g[64] = {0, 1, 2, 3, 4, 5, 6, 7, 8};",
    )


@pytest.mark.parametrize(("template", "odd", "plain"), ALIKE)
def test_an_odd_operand_is_what_the_assembler_takes_it_for(template: str, odd: str, plain: str) -> None:
    texts = [around(template.format(operand.format())) for operand in (odd, plain)]
    assert code(texts[0]) == code(texts[1])
    odd_steps, plain_steps = ([operands(item) for item in parse(text).functions["k"].items] for text in texts)
    assert odd_steps == plain_steps


@pytest.mark.parametrize(
    "body",
    [
        "mov.f32 %f1, 1;", "mov.f32 %f1, 0x3f800000;", "mov.f64 %fd1, -1;", "mov.f32 %f1, WARP_SZ;", "mov.u32 %r1, 1.0;",
        "mov.u32 %r1, 0f3F800000;", "mov.b32 %r1, 1.0;", "mov.b16 %h1, 0f3F800000;", "add.f32 %f1, %f2, 1;",
        "fma.rn.f32 %f1, %f2, 2, %f3;", "setp.gt.f32 %p1, %f1, 0;", "selp.f32 %f1, 1, 0, %p1;", "selp.b32 %r1, 1.0, 0, %p1;",
        "st.global.f32 [%rd1], 0;", "st.global.v2.f32 [%rd1], {0, %f1};", "st.global.u32 [%rd1], {1.0};",
        "atom.global.add.f32 %f1, [%rd1], 1;", "cvt.rn.f32.s32 %f1, 1.0;", "mov.b64 %rd3, {0f3F800000, 2};",
        "mov.u32 %r1, %tid.x+1;", "add.u32 %r1, %tid.x, 1;", "setp.eq.u32 %p1, %laneid, 0;", "add.u64 %rd3, %rd1, g;",
        "mov.f32 %f1, g;", "mov.u32 %r1, nothing;", "mov.u32 %r1, 1?2;", "mov.u32 %r1, 1/0;", "mov.u32 %r1, 1+2.0;",
        "mov.u32 %r1, (1;", "mov.f32 %f1, -0f3F800000;", "ld.global.u32 %r1, [%rd1+%rd2];", "ld.global.u32 %r1, [%rd1-8];",
        "ld.global.u32 %r1, [8+%rd1];", "ld.global.u32 %r1, [%rd1*2];", "ld.global.u32 %r1, [%rd1+1.0];",
        "ld.global.u32 %r1, [8];", "ld.global.u32 %r1, [nothing];", "ld.global.u32 %r1, g;", "ld.global.u32 %r1, [%fd1];",
        "add.u32 %r1, {%r2}, 1;", "mov.u32 %r1, {%r2};", "st.global.v1.u32 [%rd1], %r1;", "st.global.v2.u32 [%rd1], {%r1, _};",
        "mov.u32 %r1, 1;;", "bar.sync 16;", "bar.sync 0, 33;", "bfe.u32 %r1, %r2, 256, 1;", "cvta.shared.u64 %rd3, g;",
        "cvta.to.global.u64 %rd3, g;",
    ],
)  # fmt: skip
def test_an_operand_that_the_assembler_refuses_is_refused(body: str) -> None:
    text = kernel(body, "u64", shared=".global .align 4 .u32 g[64];")
    with pytest.raises(AssembleError):
        assemble(text, HOPPER)
    with pytest.raises(ParseError, match="ptx line 10"):
        parse(text)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.f32 %f1, 1;", "operand a cannot be 1: an integer constant can be of an integer or .b type or pred, not of f32"),
        ("mov.u32 %r1, 0f3F800000;", "cannot be 0f3F800000: a single-precision constant can be of f32, f64 or b32, not of u32"),
        ("mov.u32 %r1, %r2+1;", "cannot be %r2+1: what is added to a register stands in an address, [%r2+1]"),
        ("add.u32 %r1, %tid.x, 1;", "cannot be the special register %tid.x: move it to a register first"),
        ("ld.global.u32 %r1, [%rd1-8];", "an offset follows a plus sign; write a negative one as +-4"),
        ("bar.sync 0, 33;", "operand b cannot be 33; allowed: 0 to 4294967264 by 32"),
        ("mov.u32 %r1, " + "(" * 2000 + "1" + ")" * 2000 + ";", "a constant expression is nested more than 50 deep"),
        ("mov.u32 %r1, " + "-~" * 2000 + "1.0;", "1.0 is a double constant; ~ takes integers"),
    ],
)  # fmt: skip
def test_the_message_says_what_is_wrong_and_what_to_write(body: str, message: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)):
        parse(kernel(body))


@pytest.mark.parametrize("bits", ["7F800001", "FFABCDEF", "7FFFFFFF"])
def test_a_constant_that_is_not_a_number_keeps_its_bits(bits: str) -> None:
    body = f"ld.param.u64 %rd1, [p0]; mov.f32 %f1, 0f{bits}; st.global.f32 [%rd1], %f1; st.global.f32 [%rd1+4], 0f{bits};"
    x = np.zeros(2, np.uint32)
    assert not run(kernel(body, "u64"), "k", 1, 1, [x])
    assert x.tolist() == [int(bits, 16)] * 2
