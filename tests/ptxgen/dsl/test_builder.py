"""What an author meets in the builder: errors at the author's own line, and the instructions that structured code becomes."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen import types
from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.emulator import run
from ptxgen.errors import AuthorError, TypeMismatch, UnavailableInstruction, UnknownInstruction
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.types import B32, BF16, F16, F32, F64, S32, U8, U16, U32, U64, DType
from tests.ptxgen.dsl.writing import Body, lines_of, text, written

FILE = "tests/ptxgen/dsl/test_builder.py"


def message(body: Body, error: type[AuthorError] = AuthorError) -> str:
    """What the builder says of `body`, whose last line is the wrong one: the error must name exactly that line."""
    with pytest.raises(error) as caught:
        written(body)
    lines, first = inspect.getsourcelines(body)
    wrong = next((i for i, line in enumerate(lines) if "# HERE" in line), len(lines) - 1)
    where = caught.value.where
    assert where is not None
    assert (where.file, where.line) == (FILE, first + wrong)
    assert where.source == lines[wrong].strip()
    return str(caught.value).replace(f"{FILE}:{where.line}", "LINE")


# Errors


def test_mixing_types_names_both_and_the_conversion() -> None:
    def body(k: KernelBuilder) -> None:
        total = k.f32(0.0)
        total + k.tid.x

    assert message(body, TypeMismatch) == (
        "add needs operands of one type, got f32 and u32\n  LINE  total + k.tid.x\n  convert the second with k.f32(...)"
    )


@pytest.mark.parametrize("operation", [operator.and_, operator.eq, operator.lt, operator.mul])
def test_signed_and_unsigned_do_not_mix(operation: Callable[[Value, Value], Value]) -> None:
    def body(k: KernelBuilder) -> None:
        operation(k.u32(1), k.s32(1))

    assert "got u32 and s32" in message(body, TypeMismatch)


@pytest.mark.parametrize(
    ("operation", "line"),
    [
        (lambda x: 100 // x, "div.u32 %r1, 100, %r0;"),
        (lambda x: 100 % x, "rem.u32 %r1, 100, %r0;"),
        (lambda x: 7 & x, "and.b32 %r1, %r0, 7;"),
        (lambda x: 7 | x, "or.b32 %r1, %r0, 7;"),
        (lambda x: 7 ^ x, "xor.b32 %r1, %r0, 7;"),
        (lambda x: 1 << x, "shl.b32 %r2, %r1, %r0;"),
        (lambda x: 256 >> x, "shr.u32 %r2, %r1, %r0;"),
        (lambda x: 1 - x, "sub.u32 %r1, 1, %r0;"),
    ],
)
def test_a_constant_may_stand_on_the_left(operation: Callable[[Value], Value], line: str) -> None:
    assert line in text(lambda k: operation(k.tid.x))


def test_plain_bits_mix_with_integers_in_logic() -> None:
    written(lambda k: k.bits(k.f32(1.0), B32) & k.u32(7))


def test_a_register_has_no_truth_value() -> None:
    def body(k: KernelBuilder) -> None:
        if k.tid.x < 3:  # HERE
            k.barrier()

    assert "no truth value while the kernel is being written" in message(body)
    assert "with k.when(condition):" in message(body)


def test_an_unknown_instruction_suggests_near_names() -> None:
    def body(k: KernelBuilder) -> None:
        k.fmaa(k.f32(1.0), k.f32(1.0), k.f32(1.0))  # type: ignore[attr-defined]

    assert "no instruction is called 'fmaa'" in message(body, UnknownInstruction)
    assert "did you mean fma" in message(body, UnknownInstruction)


def test_an_unknown_modifier_lists_the_known_ones() -> None:
    def body(k: KernelBuilder) -> None:
        k.add(k.f32(1.0), k.f32(1.0), rnd="up")  # type: ignore[arg-type]

    assert "rnd may be rn, rz, rm, rp, not 'up'" in message(body, TypeMismatch)


def test_an_unknown_special_register_suggests_near_names() -> None:
    def body(k: KernelBuilder) -> None:
        k.special("%smidd")

    assert "did you mean %smid" in message(body)


@pytest.mark.parametrize(
    ("write_it", "complaint"),
    [
        (lambda k: k.u32(-1), "the constant -1 does not fit u32"),
        (lambda k: k.u32(1 << 32), "does not fit u32"),
        (lambda k: k.s32(1) + (1 << 31), "does not fit s32"),
        (lambda k: k.u32(1) + 0.5, "operand b is u32, got the float constant 0.5"),
        (lambda k: k.f32(1e39), "does not fit f32"),
        (lambda k: k.f16(65536.0), "does not fit f16"),
        (lambda k: k.f16(1.0) + 1.0, "PTX has no f16 constants; convert one with k.f16(...)"),
    ],
)
def test_a_constant_that_does_not_fit_is_refused(write_it: Body, complaint: str) -> None:
    with pytest.raises(TypeMismatch) as caught:
        written(write_it)
    assert complaint in str(caught.value)


def test_constants_up_to_the_ends_of_their_types_pass() -> None:
    for type in (U32, S32, U64, types.S64):
        low = -(1 << type.bits - 1) if type.is_signed else 0
        high = low + (1 << type.bits) - 1
        written(lambda k, low=low, high=high, type=type: (k.convert(low, type), k.convert(high, type)))  # type: ignore[misc]


def test_infinities_are_constants() -> None:
    assert any("0fFF800000" in line for line in lines_of(lambda k: k.f32(float("-inf"))))


def test_an_augmented_assignment_is_refused_because_a_loop_would_not_see_it() -> None:
    def body(k: KernelBuilder) -> None:
        total = k.f32(0.0)
        total += 1.0

    assert "`x @= x + y`" in message(body)


def test_assigning_another_type_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        total = k.f32(0.0)
        total @= k.tid.x

    assert "cannot assign u32 to f32" in message(body, TypeMismatch)


def test_a_value_of_another_kernel_is_refused() -> None:
    kept: list[Value] = []
    written(lambda k: kept.append(k.tid.x))

    def body(k: KernelBuilder) -> None:
        k.tid.x + kept[0]

    assert "belongs to another kernel" in message(body)


def test_indices_are_checked_against_the_shape() -> None:
    with pytest.raises(AuthorError, match=r"x has 1 dimensions \(256,\), got 2 indices"):
        written(lambda k: k.load(k.arg.x[0, 0]))
    with pytest.raises(AuthorError, match="index 256 is outside dimension 0 of x, which has 256"):
        written(lambda k: k.load(k.arg.x[256]))
    with pytest.raises(TypeMismatch, match="an index of x must be u32, got s32"):
        written(lambda k: k.load(k.arg.x[k.s32(1)]))


def test_an_unknown_argument_lists_the_known_ones() -> None:
    def body(k: KernelBuilder) -> None:
        k.load(k.arg.z[0])

    assert "the kernel has no argument 'z'; it has x, n, y" in message(body)


def test_storing_another_type_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        k.store(k.arg.y[0], k.tid.x)

    assert "store of u32 into f32 memory" in message(body, TypeMismatch)


def test_a_guarded_load_changes_registers_that_there_are_where_the_guard_holds() -> None:
    def body(k: KernelBuilder) -> None:
        held = [k.variable(0.5, F32) for _ in range(2)]
        k.load_where(k.tid.x < 3, k.arg.x.at(k.tid.x * 2)[0], held)
        k.store(k.arg.y.at(k.tid.x * 2)[0], held)

    x, y = np.arange(1.0, 257.0, dtype=np.float32), np.zeros(256, np.float32)
    assert run(text(body), "probe", grid=1, block=64, args=[x, np.zeros(256, np.uint32), y]) == []
    assert y[:8].tolist() == [1, 2, 3, 4, 5, 6, 0.5, 0.5]


def test_a_guarded_load_into_another_type_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        k.load_where(k.tid.x < 3, k.arg.x[0], [k.u32(0)])

    assert "load of f32 into a register of u32" in message(body, TypeMismatch)


def test_break_out_of_a_strided_loop_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        for _ in k.strided(0, 8):
            break

    with pytest.raises(AuthorError, match=r"`break` or `return` inside a k\.strided loop"):
        written(body)


def test_a_loop_that_never_runs_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        list(k.strided(8, 8))

    assert "the loop from 8 to 8 never runs" in message(body)


def test_a_branch_on_a_number_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        with k.when(k.tid.x):  # HERE
            k.barrier()

    assert "a branch needs a predicate, got u32" in message(body, TypeMismatch)


def test_otherwise_without_when_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        with k.otherwise():  # HERE
            k.barrier()

    assert "must follow the body of a k.when directly" in message(body)


def test_a_second_otherwise_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        with k.when(k.tid.x == 0):
            k.barrier()
        with k.otherwise():
            k.barrier()
        with k.otherwise():  # HERE
            k.barrier()

    assert "must follow the body of a k.when directly" in message(body)


def test_the_warp_of_a_two_dimensional_block_is_refused() -> None:
    with pytest.raises(AuthorError, match=r"k\.warp needs a one-dimensional block"):
        written(lambda k: k.warp, block=(8, 8))


def test_shared_memory_that_no_launch_asks_for_is_refused() -> None:
    with pytest.raises(AuthorError, match="the launch asks for no shared memory"):
        written(lambda k: k.dynamic_shared(F32))


def test_an_instruction_newer_than_the_target_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        k.griddepcontrol(action="wait")

    assert "griddepcontrol.wait needs sm_90 and PTX 7.8, the target is sm_75" in message(body, UnavailableInstruction)
    written(body, target=Target(90))


# What structured code becomes


def test_a_strided_loop_tests_at_the_bottom_and_before_only_if_it_must() -> None:
    def body(k: KernelBuilder) -> None:
        for _ in k.strided(0, 8, step=2):
            k.barrier()

    assert lines_of(body) == [
        "mov.u32 %r0, 0;",
        "$loop_1:",
        "bar.sync 0;",
        "add.u32 %r1, %r0, 2;",
        "mov.u32 %r0, %r1;",
        "setp.lt.u32 %p0, %r0, 8;",
        "@%p0 bra $loop_1;",
        "$loop_end_2:",
        "ret;",
    ]
    from_thread = lines_of(lambda k: [None for _ in k.strided(k.tid.x, 8)])
    assert "setp.ge.u32 %p0, %r1, 8;" in from_thread
    assert from_thread.index("@%p0 bra $loop_end_2;") < from_thread.index("$loop_1:")


def test_when_and_otherwise_become_two_branches() -> None:
    def body(k: KernelBuilder) -> None:
        with k.when(k.tid.x < 8):
            k.store(k.arg.y[0], 1.0)
        with k.otherwise():
            k.store(k.arg.y[1], 2.0)

    assert lines_of(body)[3:] == [
        "setp.lt.u32 %p0, %r0, 8;",
        "@!%p0 bra $endif_1;",
        "st.global.f32 [%rd1], 0f3F800000;",
        "bra $endelse_2;",
        "$endif_1:",
        "st.global.f32 [%rd1+4], 0f40000000;",
        "$endelse_2:",
        "ret;",
    ]


def test_a_loop_is_left_where_its_condition_says() -> None:
    def body(k: KernelBuilder) -> None:
        count = k.variable(0, U32)
        with k.loop() as loop:
            loop.break_if(count >= 4)
            count @= count + 1

    assert lines_of(body) == [
        "mov.u32 %r0, 0;",
        "$loop_1:",
        "setp.ge.u32 %p0, %r0, 4;",
        "@%p0 bra $loop_end_2;",
        "add.u32 %r1, %r0, 1;",
        "mov.u32 %r0, %r1;",
        "bra $loop_1;",
        "$loop_end_2:",
        "ret;",
    ]


def test_constant_indices_become_offsets_and_registers_one_wide_multiply() -> None:
    signature: Signature = {"a": read(F32, 4, 8), "y": write(F32, 1)}

    def body(k: KernelBuilder) -> None:
        total = k.load(k.arg.a[2, 3]) + k.load(k.arg.a[3, k.tid.x])
        k.store(k.arg.y[0], total)

    lines = text(body, signature=signature)
    assert "ld.global.f32 %f0, [%rd1+76];" in lines  # (2 * 8 + 3) * 4 bytes
    assert "mad.wide.u32 %rd2, %r0, 4, %rd1;" in lines
    assert "ld.global.f32 %f1, [%rd2+96];" in lines


def test_small_integers_are_loaded_into_32_bit_registers() -> None:
    signature: Signature = {"a": read(U8, 4), "b": read(types.S8, 4), "c": read(U16, 4)}
    lines = text(lambda k: [k.load(getattr(k.arg, name)[0]) for name in "abc"], signature=signature)
    assert "ld.global.u8 %r0," in lines
    assert "ld.global.s8 %s0," in lines
    assert "ld.global.u16 %r1," in lines


def test_vector_loads_read_only_loads_and_cache_hints_are_spelt() -> None:
    def body(k: KernelBuilder) -> None:
        x, y = k.arg.x, k.arg.y
        k.store(y[0], k.load_vector(x[0], 4, nc=True, evict="L1::no_allocate"))
        k.store(y[8], k.load(x[0], cop="cg"), cop="cs")

    lines = text(body)
    assert "ld.global.nc.L1::no_allocate.v4.f32 {%f0, %f1, %f2, %f3}, [%rd1];" in lines
    assert "st.global.v4.f32 [%rd3], {%f0, %f1, %f2, %f3};" in lines
    assert "ld.global.cg.f32 %f4, [%rd1];" in lines
    assert "st.global.cs.f32 [%rd3+32], %f4;" in lines
    assert ".version 7.4" in lines  # because of the eviction hint


def test_a_modifier_of_the_older_form_is_preferred() -> None:
    assert "bar.sync 0;" in lines_of(lambda k: k.bar_sync(0))


def test_half_constants_are_spelt_by_their_bits() -> None:
    assert "mov.b16 %h0, 15360;" in lines_of(lambda k: k.f16(1.0))
    assert "mov.b16 %hb0, 16329;" in lines_of(lambda k: k.bf16(1.57))  # 0x3FC9


def test_the_entry_reads_each_argument_and_special_register_once() -> None:
    lines = lines_of(lambda k: [k.load(k.arg.x[k.tid.x]) for _ in range(3)])
    assert sum("ld.param" in line for line in lines) == 1
    assert sum("%tid.x" in line for line in lines) == 1


def test_an_instruction_without_a_result_returns_nothing_and_several_come_as_a_tuple() -> None:
    results: list[object] = []

    def body(k: KernelBuilder) -> None:
        results.append(k.membar(level="gl"))  # type: ignore[func-returns-value]
        results.append(k.mov(k.bits(k.f64(1.0), types.B64), result=B32))

    written(body)
    assert results[0] is None
    assert isinstance(results[1], tuple)
    assert len(results[1]) == 2


def test_helpers_of_every_kind_assemble() -> None:
    def body(k: KernelBuilder) -> None:
        x, n = k.load(k.arg.x[k.tid.x]), k.load(k.arg.n[k.tid.x])
        total = k.f32(0.0)
        for i in k.strided(k.tid.x, 256, step=64):
            with k.when(k.load(k.arg.x[i]) > 0.0):
                total @= total + x
            with k.otherwise():
                total @= k.fma(x, x, total)
        tile = k.shared(F32, 8, 8)
        k.store(tile[k.tid.x // 8, k.tid.x % 8], total)
        k.barrier()
        h = k.f16(k.load(tile[k.tid.x % 8, 3]))
        h = k.select(n > 3, h, k.f16(0.5))
        chosen = k.variable(h, F16)
        wide = k.u64(n) * 3 + k.u64(k.bits(k.s32(n) - 1, U32))
        signed = k.s32(k.f64(x)) >> 2
        predicate = (n != 0) & ~(x == x) | (signed < 0)
        total @= k.block_sum(total) + k.block_max(k.f32(chosen)) + k.warp_max(k.f32(wide))
        with k.when(predicate):
            k.store(k.arg.y[k.tid.x], -total / 3.0 - 1.0)

    for sm in (75, 90):
        assembled = assemble(text(body, target=Target(sm)), Target(sm))
        assert assembled.spill_stores == 0


def test_bf16_is_converted_where_the_gpu_has_it() -> None:
    def body(k: KernelBuilder) -> None:
        low = k.variable(k.bf16(k.load(k.arg.x[0])), BF16)
        k.store(k.arg.y[0], k.f32(k.select(k.tid.x == 0, low, k.bf16(1.0))))

    assemble(text(body, target=Target(90)), Target(90))


# Any expression

INTEGER_OPERATORS = ["+", "-", "*", "&", "|", "^", "//", "%", "<<", ">>"]
FLOAT_OPERATORS = ["+", "-", "*", "/"]
Tree = tuple[object, ...]


def trees(operators: list[str], constants: st.SearchStrategy[float]) -> st.SearchStrategy[Tree]:
    leaves = st.one_of(st.just(("register",)), st.tuples(st.just("constant"), constants))
    return st.recursive(
        leaves, lambda inner: st.tuples(st.just("operator"), st.sampled_from(operators), inner, inner), max_leaves=8
    )


def emit_tree(k: KernelBuilder, tree: Tree, register: Value, type: DType) -> Value:
    if tree[0] == "register":
        return register
    if tree[0] == "constant":
        return k.convert(tree[1], type)  # type: ignore[arg-type]
    left, right = (emit_tree(k, side, register, type) for side in tree[2:])  # type: ignore[arg-type]
    operations: dict[object, Callable[[], Value]] = {
        "+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right, "/": lambda: left / right,
        "//": lambda: left // right, "%": lambda: left % right, "&": lambda: left & right, "|": lambda: left | right,
        "^": lambda: left ^ right, "<<": lambda: left << k.u32(right), ">>": lambda: left >> k.u32(right),
    }  # fmt: skip
    return operations[tree[1]]()


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from([U32, S32, U64, F32, F64]))
def test_any_typed_expression_assembles(data: st.DataObject, type: DType) -> None:
    low = -(1 << type.bits - 1) if type.is_signed else 0
    constants = st.floats(-1e30, 1e30) if type.is_float else st.integers(low, low + (1 << type.bits) - 1)
    tree = data.draw(trees(FLOAT_OPERATORS if type.is_float else INTEGER_OPERATORS, constants))

    def body(k: KernelBuilder) -> None:
        value = emit_tree(k, tree, k.convert(k.load(k.arg.n[k.tid.x]), type), type)
        k.store(k.arg.y[k.tid.x], k.f32(value))

    assemble(text(body), Target(75))
