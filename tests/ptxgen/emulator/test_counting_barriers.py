"""Barriers that count, or combine, what their threads bring (bar.red, barrier.red), over several warps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgen.emulator import run
from tests.ptxgen.emulator.ptx import kernel

HEAD = """ld.param.u64 %rd1, [p0];
ld.param.u64 %rd2, [p1];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd3, %r1, 4;
add.u64 %rd1, %rd1, %rd3;
add.u64 %rd2, %rd2, %rd3;
ld.global.u32 %r2, [%rd2];
setp.ne.u32 %p1, %r2, 0;
mov.u32 %r3, 77;
"""
STORE = "\nst.global.u32 [%rd1], %r3;"


def results(body: str, brought: Any, *, sanitize: bool = True, seed: int | None = None) -> list[int]:
    x = np.array(brought, np.uint32)
    y = np.zeros_like(x)
    assert not run(kernel(HEAD + body + STORE, "u64", "u64"), "k", 1, len(x), [y, x], sanitize=sanitize, seed=seed)
    seen: list[int] = y.tolist()
    return seen


@pytest.mark.slow
@given(st.lists(st.booleans(), min_size=1, max_size=130), st.sampled_from(["bar", "barrier"]), st.integers(0, 15))
def test_all_threads_of_a_block_get_what_they_brought_together(brought: list[bool], opcode: str, number: int) -> None:
    body = f"""{opcode}.red.popc.u32 %r3, {number}, %p1;
{opcode}.red.and.pred %p2, {number}, %p1;
{opcode}.red.or.pred %p1, {number}, %p1;
shl.b32 %r3, %r3, 2;
@%p2 or.b32 %r3, %r3, 2;
@%p1 or.b32 %r3, %r3, 1;"""
    expected = sum(brought) << 2 | all(brought) << 1 | any(brought)
    assert results(body, brought) == [expected] * len(brought)


@pytest.mark.parametrize("sanitize", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_negated_predicate_and_a_number_of_threads_count_those_of_some_warps(sanitize: bool) -> None:
    body = """setp.ge.u32 %p2, %r1, 64;
@%p2 bra OTHERS;
bar.red.popc.u32 %r3, 1, 64, !%p1;
bra DONE;
OTHERS:
barrier.red.popc.u32 %r3, 2, 32, %p1;
DONE:"""
    brought = [i % 3 == 0 for i in range(96)]
    expected = [64 - sum(brought[:64])] * 64 + [sum(brought[64:])] * 32
    assert results(body, brought, sanitize=sanitize, seed=3) == expected


def test_lanes_that_do_not_wait_keep_what_they_had() -> None:
    body = """and.b32 %r4, %r1, 1;
setp.eq.u32 %p2, %r4, 0;
setp.lt.u32 %p3, %r1, 32;
@%p3 bra LOW;
barrier.red.popc.u32 %r3, 0, 32, %p1;
bra DONE;
LOW:
@%p2 bra DONE;
mov.u32 %r3, 5;
DONE:"""
    expected = [77 if i % 2 == 0 else 5 for i in range(32)] + [32] * 32
    assert results(body, [1] * 64) == expected


def test_a_label_behind_the_barrier_is_for_those_who_jump_there_too() -> None:
    body = """setp.lt.u32 %p3, %r1, 32;
@%p3 bra NEXT;
bar.red.popc.u32 %r3, 0, 32, %p1;
NEXT:"""
    assert results(body, [1] * 64) == [77] * 32 + [32] * 32


def test_threads_loop_until_all_have_had_enough() -> None:
    body = """mov.u32 %r3, 0;
AGAIN:
setp.lt.u32 %p1, %r3, %r2;
bar.red.or.pred %p2, 0, %p1;
@!%p2 bra DONE;
add.u32 %r3, %r3, 1;
bra AGAIN;
DONE:"""
    assert results(body, [i % 41 for i in range(100)]) == [40] * 100
