"""The verifier: for each rule a wrong kernel that it must name, at this file's own line, and a right one beside it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.ir import Function, Label, Op, Parameter, Remark, SharedArray
from ptxgen.dsl.value import Value
from ptxgen.errors import Location, VerifyError
from ptxgen.isa.instructions import named
from ptxgen.isa.operands import Address, Immediate, LabelRef, Register, Special, Symbol
from ptxgen.target import MAX_STATIC_SHARED, Target
from ptxgen.types import F16, F32, PRED, U32, U64
from ptxgen.verify.verify import verify
from tests.ptxgen.dsl.writing import Body, verified

WHERE = Location("author.py", 1, "k.probe()")


def refused(body: Body, pattern: str, marker: str = "HERE", **options: int | tuple[int, ...]) -> str:
    """The error of a kernel that must not pass. It matches `pattern` and names the line of the body marked with `# HERE`."""
    with pytest.raises(VerifyError, match=pattern) as caught:
        verified(body, block=options.get("block", 64))
    lines, first = inspect.getsourcelines(body)
    marked = [first + i for i, line in enumerate(lines) if f"# {marker}" in line]
    if marked:
        assert caught.value.where is not None
        assert (caught.value.where.file, caught.value.where.line) == ("tests/ptxgen/verify/test_verify.py", marked[0])
    return str(caught.value)


def op(name: str, modifiers: dict[str, str], **operands: object) -> Op:
    """An instruction as data, of the first row that has these modifiers and operand places."""
    for row in named(name):
        places = {place.name for place in row.operands if not place.optional}
        slots = {slot.name: slot.values for slot in row.modifiers}
        if places <= set(operands) and all(value in slots.get(key, ()) for key, value in modifiers.items()):
            return Op(row, modifiers, operands, WHERE)  # type: ignore[arg-type]
    raise AssertionError(f"no row of {name} has operands {sorted(operands)}")


def function(*body: Op | Label | Remark, **fields: object) -> Function:
    """A function as data, as somebody else's tool might make one."""
    return Function("probe", (Parameter("x", U64, "f32[4], in", 16),), body=list(body), max_threads=(64, 1, 1), **fields)  # type: ignore[arg-type]


RET = op("ret", {})
R0, R1 = Register("%r0", U32), Register("%r1", U32)


# Registers


def test_a_register_that_nothing_writes_is_named() -> None:
    wrong = function(op("add", {"type": "u32"}, d=R1, a=R0, b=Immediate(1, U32)), RET)
    with pytest.raises(VerifyError, match=r"%r0 \(u32\) is read and never written(.|\n)*author\.py:1"):
        verify(wrong, Target(75))


def test_a_value_made_in_one_branch_and_used_after_it_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        with k.when(k.tid.x < 8):
            value = k.load(k.arg.x[k.tid.x])
        k.store(k.arg.y[k.tid.x], value)  # HERE

    assert "k.variable" in refused(body, "may be read before it is written")


def test_a_value_made_in_both_branches_may_be_used_after_them() -> None:
    def body(k: KernelBuilder) -> None:
        value = k._new(F32)
        with k.when(k.tid.x < 8):
            k.assign(value, 1.0)
        with k.otherwise():
            k.assign(value, 2.0)
        k.store(k.arg.y[k.tid.x], value)

    verified(body)


def test_a_loop_that_reads_what_only_its_last_pass_wrote_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        last = k._new(F32)
        for i in k.strided(0, 8):
            k.store(k.arg.y[i], last)  # HERE
            k.assign(last, k.load(k.arg.x[i]))

    refused(body, "may be read before it is written")


def test_a_loop_that_runs_at_least_once_defines_what_it_writes() -> None:
    def body(k: KernelBuilder) -> None:
        for i in k.strided(0, 8):
            last = k.load(k.arg.x[i])
        k.store(k.arg.y[k.tid.x], last)

    verified(body)


def test_a_loop_that_may_not_run_does_not_define_what_it_writes() -> None:
    def body(k: KernelBuilder) -> None:
        for i in k.strided(k.tid.x, 256, step=64):
            last = k.load(k.arg.x[i])
        k.store(k.arg.y[k.tid.x], last)  # HERE

    refused(body, "may be read before it is written")


def test_a_register_of_two_types_is_refused() -> None:
    wrong = function(
        op("mov", {"type": "u32"}, d=R0, a=Immediate(0, U32)),
        op("mov", {"type": "f32"}, d=Register("%r0", F32), a=Immediate(0.0, F32)),
        RET,
    )
    with pytest.raises(VerifyError, match="register %r0 is u32 and f32"):
        verify(wrong, Target(75))


# Instructions


def test_operands_of_another_type_than_the_row_says_are_refused() -> None:
    wrong = function(op("mov", {"type": "f32"}, d=Register("%f0", F32), a=R0), RET)
    with pytest.raises(VerifyError, match=r"mov\.f32: operand a must be f32, got u32"):
        verify(wrong, Target(75))


def test_signed_and_unsigned_registers_mix_where_ptx_lets_them() -> None:
    right = function(
        op("mov", {"type": "u32"}, d=R0, a=Immediate(0, U32)), op("add", {"type": "s32"}, d=R1, a=R0, b=Immediate(1, U32)), RET
    )
    verify(right, Target(75))


def test_an_instruction_newer_than_the_target_is_refused_and_passes_on_a_newer_one() -> None:
    kernel = function(op("griddepcontrol", {"action": "wait"}), RET)
    with pytest.raises(VerifyError, match=r"griddepcontrol\.wait needs sm_90, the target is sm_89"):
        verify(kernel, Target(89))
    verify(kernel, Target(90))


def test_a_branch_to_a_label_that_nothing_places_is_refused() -> None:
    with pytest.raises(VerifyError, match=r"bra names the label \$out"):
        verify(function(op("bra", {}, target=LabelRef("$out")), RET), Target(75))
    verify(function(op("bra", {}, target=LabelRef("$out")), Label("$out"), RET), Target(75))


def test_an_unknown_variable_or_special_register_is_refused() -> None:
    load = op("ld", {"space": "param", "type": "u64"}, d=Register("%rd0", U64), a=Address(Symbol("z")))
    with pytest.raises(VerifyError, match=r"names z, which is no parameter or shared array(.|\n)*known: x"):
        verify(function(load, RET), Target(75))
    with pytest.raises(VerifyError, match=r"no special register %smidd"):
        verify(function(op("mov", {"type": "u32"}, d=R0, a=Special("%smidd", U32)), RET), Target(75))


def test_a_function_without_an_end_is_refused() -> None:
    with pytest.raises(VerifyError, match="runs past its last line"):
        verify(function(op("mov", {"type": "u32"}, d=R0, a=Immediate(0, U32))), Target(75))


# What stands around them


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (function(Label("$a"), RET, Label("$a"), RET), r"the label \$a twice"),
        (function(RET, shared=[SharedArray("x", F32, 4, 16)]), "the variable x twice"),
        (function(RET, shared=[SharedArray("probe", F32, 4, 16)]), "the variable probe twice"),
        (function(RET, shared=[SharedArray("a b", F32, 4, 16)]), "'a b' cannot be a name"),
        (function(RET, shared=[SharedArray("s", F32, 0, 16)]), "s has 0 elements"),
        (function(RET, shared=[SharedArray("s", F32, 4, 12)]), "alignment of s must be a power of two, got 12"),
        (function(Remark("größe"), RET), "a remark is"),
        (function(RET, summary="größe"), "the summary is"),
        (function(RET, summary="two\nlines"), "the summary is"),
    ],
)  # fmt: skip
def test_names_and_texts_that_ptx_does_not_take_are_refused(wrong: Function, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(wrong, Target(75))


def test_shared_memory_up_to_the_limit_passes_and_beyond_it_is_named() -> None:
    verify(function(RET, shared=[SharedArray("s", F32, MAX_STATIC_SHARED // 4, 16)]), Target(75))
    too_much = function(RET, shared=[SharedArray("s", F32, MAX_STATIC_SHARED // 4, 16), SharedArray("t", F16, 1, 2)])
    with pytest.raises(VerifyError, match=r"49154 bytes of shared memory \(s 49152, t 2\); the limit is 49152"):
        verify(too_much, Target(75))


def test_what_a_launch_may_ask_for_depends_on_the_target() -> None:
    asks = function(RET, dynamic_shared=64 * 1024, shared=[SharedArray("s", F32, 1, 16)])
    verify(asks, Target(80))
    with pytest.raises(
        VerifyError, match=r"has 4 bytes of shared memory and asks for 65536 more at launch; .* 65536 at most on sm_75"
    ):
        verify(asks, Target(75))


def test_shared_memory_and_remarks_name_the_authors_line() -> None:
    def too_much(k: KernelBuilder) -> None:
        k.shared(F32, 16)
        k.shared(F32, MAX_STATIC_SHARED)  # HERE

    def odd(k: KernelBuilder) -> None:
        k.shared(F32, 4, align=12)  # HERE

    def not_ascii(k: KernelBuilder) -> None:
        k.remark("größe")  # HERE

    refused(too_much, "the limit is 49152")
    refused(odd, "must be a power of two, got 12")
    refused(not_ascii, "a remark is")


# Barriers and warp instructions

Condition = Callable[[KernelBuilder], Value]

DIVERGENT: dict[str, Condition] = {
    "the thread": lambda k: k.tid.x < 8,
    "the lane": lambda k: k.lane == 0,
    "a value computed from the thread": lambda k: (k.tid.x * 3 + 1) % 5 > 2,
    "a load at the thread's address": lambda k: k.load(k.arg.x[k.tid.x]) > 0.0,
    "a clock": lambda k: k.special("%clock") > 7,
    "an atomic": lambda k: k.atom(k.arg.n[0].address, 1, space="global", op="add", type="u32") == 0,
    "a selected value": lambda k: k.select(k.tid.x < 8, k.ctaid.x, 0) > 0,
    "a vote of each half of the warp": lambda k: k.vote(
        k.lane == 3, k.select(k.lane < 16, k.u32(0xFFFF), 0xFFFF0000), mode="any"
    ),
}
WARP: dict[str, Condition] = {
    "the warp": lambda k: k.warp == 0,
    "a vote": lambda k: k.vote(k.tid.x < 8, 0xFFFFFFFF, mode="any"),
    "a broadcast from one lane": lambda k: k.shuffle(k.tid.x, 0) > 3,
}
UNIFORM: dict[str, Condition] = {
    "the block": lambda k: k.ctaid.x == 0,
    "a load at one address": lambda k: k.load(k.arg.n[0]) > 3,
    "a coordinate that has one value": lambda k: k.tid.y == 0,
}


def barrier_under(condition: Condition) -> Body:
    def body(k: KernelBuilder) -> None:
        with k.when(condition(k)):
            k.barrier()  # HERE

    return body


def shuffle_under(condition: Condition) -> Body:
    def body(k: KernelBuilder) -> None:
        x = k.load(k.arg.x[0])
        with k.when(condition(k)):
            k.warp_sum(x)  # HERE

    return body


@pytest.mark.parametrize("condition", [*DIVERGENT.values(), *WARP.values()], ids=[*DIVERGENT, *WARP])
def test_a_barrier_under_a_branch_on_the_thread_or_the_warp_is_refused(condition: Condition) -> None:
    message = refused(barrier_under(condition), "bar.sync needs all threads of the block")
    assert re.search(r"the branch at\n  tests/ptxgen/verify/test_verify.py:\d+  with k.when\(condition\(k\)\):", message)


@pytest.mark.parametrize("condition", UNIFORM.values(), ids=UNIFORM)
def test_a_barrier_under_a_branch_that_the_block_shares_passes(condition: Condition) -> None:
    verified(barrier_under(condition))


@pytest.mark.parametrize("condition", DIVERGENT.values(), ids=DIVERGENT)
def test_a_shuffle_under_a_branch_on_the_thread_is_refused(condition: Condition) -> None:
    refused(shuffle_under(condition), r"shfl.sync.bfly.b32 needs all lanes of the warp")


@pytest.mark.parametrize("condition", [*WARP.values(), *UNIFORM.values()], ids=[*WARP, *UNIFORM])
def test_a_shuffle_under_a_branch_that_the_warp_shares_passes(condition: Condition) -> None:
    verified(shuffle_under(condition))


def test_the_error_says_what_the_branch_depends_on() -> None:
    assert "depends on %tid.x" in refused(barrier_under(DIVERGENT["a value computed from the thread"]), "bar.sync")


def test_a_barrier_in_a_loop_that_threads_leave_at_different_times_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        for _ in k.strided(k.tid.x, 256, step=64):
            k.barrier()  # HERE

    refused(body, "bar.sync needs all threads")


def test_a_barrier_before_the_divergent_exit_of_a_loop_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        with k.loop() as loop:
            k.barrier()  # HERE
            loop.break_if(k.tid.x < 8)

    refused(body, "bar.sync needs all threads")


def test_a_barrier_in_a_loop_with_one_trip_count_for_the_block_passes() -> None:
    def body(k: KernelBuilder) -> None:
        for _ in k.strided(0, k.load(k.arg.n[0])):
            k.barrier()

    verified(body)


def test_a_loop_over_rows_of_a_warp_may_shuffle_but_not_wait_for_the_block() -> None:
    def rows(k: KernelBuilder, inner: Callable[[Value], object]) -> None:
        for row in k.strided(k.warp, 16, step=2):
            inner(k.load(k.arg.x[row]))

    verified(lambda k: rows(k, k.warp_sum))
    with pytest.raises(VerifyError, match=r"bar\.sync"):
        verified(lambda k: rows(k, lambda _: k.barrier()))


def test_a_barrier_after_some_threads_returned_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        with k.when(k.tid.x >= 40):
            k.ret()
        k.barrier()  # HERE

    refused(body, "bar.sync needs all threads")


def test_a_barrier_after_the_ways_met_again_passes() -> None:
    def body(k: KernelBuilder) -> None:
        with k.when(k.tid.x < 8):
            k.store(k.arg.y[k.tid.x], 0.0)
        with k.otherwise():
            k.store(k.arg.y[k.tid.x], 1.0)
        k.barrier()

    verified(body)


def test_a_count_that_threads_reached_by_different_ways_is_not_shared() -> None:
    def body(k: KernelBuilder) -> None:
        count = k.variable(0, U32)
        with k.when(k.tid.x < 8):
            count @= 1
        with k.when(count > 0):
            k.barrier()  # HERE

    refused(body, "bar.sync needs all threads")


def test_a_count_of_the_passes_of_a_divergent_loop_is_not_shared() -> None:
    def body(k: KernelBuilder) -> None:
        count = k.variable(0, U32)
        with k.loop() as loop:
            count @= count + 1
            loop.break_if(k.load(k.arg.x[k.tid.x]) > 0.0)
        with k.when(count > 3):
            k.barrier()  # HERE

    refused(body, "bar.sync needs all threads")


def test_in_a_block_of_one_warp_what_the_warp_shares_the_block_shares() -> None:
    verified(barrier_under(WARP["a vote"]), block=32)
    refused(barrier_under(DIVERGENT["the lane"]), "bar.sync", block=32)


def test_rows_of_a_two_dimensional_block_as_wide_as_a_warp_are_warps() -> None:
    def body(k: KernelBuilder) -> None:
        x = k.load(k.arg.x[0])
        with k.when(k.tid.y < 2):
            k.warp_sum(x)  # HERE

    verified(body, block=(32, 4))
    refused(body, "shfl", block=(16, 4))


def test_a_shuffle_of_a_smaller_mask_is_the_authors_business() -> None:
    def body(k: KernelBuilder) -> None:
        x = k.load(k.arg.x[0])
        with k.when(k.lane < 8):
            k.shfl(x, 4, 31, 0xFF, mode="bfly", result=F32)

    verified(body)


def test_a_barrier_with_a_guard_on_the_thread_is_refused() -> None:
    p = Register("%p0", PRED)
    barrier = op("bar_sync", {}, a=Immediate(0, U32))
    guarded = Op(barrier.row, barrier.modifiers, barrier.operands, WHERE, guard=p)
    wrong = function(
        op("mov", {"type": "u32"}, d=R0, a=Special("%tid.x", U32)),
        op("setp", {"cmp": "lt", "type": "u32"}, d=p, a=R0, b=Immediate(8, U32)),
        guarded,
        RET,
    )
    with pytest.raises(VerifyError, match=r"its guard depends on %tid.x"):
        verify(wrong, Target(75))


def test_what_a_barrier_combines_is_the_same_for_all_threads() -> None:
    def body(k: KernelBuilder) -> None:
        more = k.load(k.arg.n[k.tid.x]) > 3
        with k.when(k.bar_red(0, more, op="or")):
            k.barrier()
        with k.when(k.bar_red(1, 64, more, op="popc") > 5):
            k.barrier()

    verified(body)
