"""Loops found in a function and their passes, instructions counted by unit, and the times that follow."""

from __future__ import annotations

import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.explain.bounds import ISSUE, LOAD_STORE, MEMORY, READ_LIMIT, bounds, mix
from ptxgen.explain.loops import executions, find_loops, innermost
from ptxgen.gpus.gpu import GPUS
from ptxgen.isa import instructions
from ptxgen.isa.units import Unit
from ptxgen.types import F32
from ptxgen.verify.cfg import graph
from tests.ptxgen.dsl.writing import Body, verified


def passes(body: Body) -> list[tuple[int | None, bool]]:
    return [(loop.passes, loop.exact) for loop in find_loops(graph(verified(body)))]


def nested(k: KernelBuilder) -> None:
    total = k.f32(0.0)
    for i in k.strided(0, 10, step=3):
        for j in k.strided(k.tid.x, 256, step=64):
            total @= total + k.load(k.arg.x[j])
        k.store(k.arg.y[i], total)


def test_passes_of_nested_loops_come_from_their_constants() -> None:
    assert passes(nested) == [(4, True), (4, False)]


def test_only_the_loop_that_holds_no_other_is_innermost_and_blocks_run_as_often_as_their_loops() -> None:
    flow = graph(verified(nested))
    loops = find_loops(flow)
    (inner,) = innermost(loops)
    assert inner == loops[1]
    assert executions(flow, loops)[inner.header] == 16
    assert executions(flow, loops)[0] == 1


def test_passes_that_depend_on_an_argument_or_a_break_are_not_known() -> None:
    def to_length(k: KernelBuilder) -> None:
        for i in k.strided(0, k.load(k.arg.n[0])):
            k.store(k.arg.y[i], 0.0)

    def until(k: KernelBuilder) -> None:
        with k.loop() as loop:
            loop.break_if(k.load(k.arg.x[0]) > 1.0)

    assert passes(to_length) == [(None, False)]
    assert passes(until) == [(None, False)]


def test_straight_code_has_no_loops() -> None:
    assert passes(lambda k: k.store(k.arg.y[0], 1.0)) == []


def test_every_row_of_the_table_runs_on_a_unit() -> None:
    for row in instructions.ROWS:
        modifiers = {slot.name: slot.values[0] for slot in row.modifiers if not slot.optional}
        assert isinstance(row.unit_of(modifiers), Unit)


def test_instructions_are_counted_by_unit_and_bytes_by_memory() -> None:
    def body(k: KernelBuilder) -> None:
        a, b, c, d = k.load_vector(k.arg.x[k.tid.x * 4], 4)
        staged = k.shared(F32, 64)
        k.store(staged[k.tid.x], k.fma(a, b, c) + d)
        k.store(k.arg.y[k.tid.x], k.shuffle_xor(k.sqrt(a), 1))

    function = verified(body)
    counted = mix(((op, 1) for op in function.ops), load_store_bytes=128)
    assert counted.instructions[Unit.FMA] == 2
    assert counted.instructions[Unit.SPECIAL] == 1
    assert counted.instructions[Unit.SHUFFLE] == 1
    assert (counted.instructions[Unit.GLOBAL], counted.global_bytes) == (2, 20)
    assert (counted.instructions[Unit.SHARED], counted.shared_bytes) == (1, 4)
    assert counted.load_store_clocks == 4 + 1 + 1  # a warp's 16-byte load is 512 bytes
    assert counted.total == len(function.ops)


def test_bounds_are_work_over_rates() -> None:
    gpu = GPUS["h200"]
    op = next(op for op in verified(lambda k: k.f32(1.0) + k.f32(2.0)).ops if op.row.name == "add")
    whole = mix([(op, 1000)], load_store_bytes=128)
    found = {bound.unit: bound for bound in bounds(gpu, LaunchConfig(132, 128), Work(flops=1, bytes=4_800_000), whole, whole)}
    clock = 1 / 1.98e9
    assert found[Unit.FMA.value].seconds == pytest.approx(1000 * 4 * 32 / 128 * clock)
    assert found[ISSUE].seconds == pytest.approx(1000 * 4 / 4 * clock)
    assert found[MEMORY].seconds == pytest.approx(1e-6)
    assert found[READ_LIMIT].share == 1.0
    assert LOAD_STORE not in found
