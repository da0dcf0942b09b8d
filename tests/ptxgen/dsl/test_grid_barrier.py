"""k.grid_barrier: the blocks of a cooperative launch wait for each other, in any order of turns, and what keeps that right is
needed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen import emulator
from ptxgen.dsl.arguments import Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.cooperation import MOST_POLLS
from ptxgen.errors import AuthorError, TypeMismatch
from ptxgen.target import Target
from ptxgen.types import F32, U32
from tests.ptxgen.dsl.writing import text, written

BLOCKS, THREADS, ROUNDS = 3, 64, 2
N = BLOCKS * THREADS
SEEDS = [0, 1, 2, 3, 4]
SIGNATURE: Signature = {
    "x": read(F32, BLOCKS, THREADS),
    "parts": write(F32, BLOCKS, THREADS),
    "y": write(F32, BLOCKS, THREADS),
    "words": update(U32, 2, zeros=True),
}


def column_sums(k: KernelBuilder) -> None:
    """In each round every block hands on its part, and adds those of all, each thread what its mirror image wrote, times the
    number of the round. The parts are written again in the next round."""
    mirrored = THREADS - 1 - k.tid.x
    for turn in k.strided(1, ROUNDS + 1):
        k.store(k.arg.parts[k.ctaid.x, k.tid.x], k.load(k.arg.x[k.ctaid.x, k.tid.x]) * k.f32(turn))
        k.grid_barrier(k.arg.words, 2 * ROUNDS)
        total = k.variable(0.0, F32)
        for part in k.strided(0, BLOCKS):
            total @= total + k.load(k.arg.parts[part, mirrored])
        k.store(k.arg.y[k.ctaid.x, mirrored], total)
        k.grid_barrier(k.arg.words, 2 * ROUNDS)


BODY = text(column_sums, block=THREADS, signature=SIGNATURE, cooperative=True)


def launch(body: str, seed: int | None = None, **more: Any) -> tuple[list[emulator.Finding], bool]:
    """What the sanitiser finds, and whether the sums are right and the words zeros again."""
    x = np.random.default_rng(4).normal(size=(BLOCKS, THREADS)).astype(np.float32)
    parts, y, words = np.zeros_like(x), np.zeros_like(x), np.zeros(2, np.uint32)
    arguments = [x, emulator.uninitialised(parts), emulator.uninitialised(y), words]
    found = emulator.run(body, "probe", BLOCKS, THREADS, arguments, seed=seed, cooperative=True, **more)
    expected = np.broadcast_to(np.add.accumulate(x * np.float32(ROUNDS))[-1], y.shape)
    return found, np.array_equal(y, expected) and not words.any()


@pytest.mark.parametrize("seed", [None, *SEEDS])
def test_all_blocks_have_what_all_wrote_in_any_order_and_the_words_are_zeros_again(seed: int | None) -> None:
    assert launch(BODY, seed) == ([], True)
    assert launch(BODY, seed, sanitize=False) == ([], True)


@pytest.mark.parametrize("left_out", [0, 1], ids=["between a store and loads", "between loads and a store"])
def test_a_barrier_left_out_is_a_race(left_out: int) -> None:
    """The block still waits for itself: it is the others that are not waited for."""
    head, *barriers = BODY.split("    bar.sync 0;\n")
    assert len(barriers) == 4  # two around the wait of each barrier
    del barriers[2 * left_out]
    for seed in SEEDS:
        found, _ = launch("    bar.sync 0;\n".join([head, *barriers]), seed)
        assert "race" in {finding.kind for finding in found} <= {"race", "uninitialised"}
        assert any("of block" in f.message.partition("that thread")[2] for f in found)


ORDERS = [
    ("atom.acq_rel.gpu", ["atom.relaxed.gpu", "atom.acquire.gpu", "atom.release.gpu", "atom.acq_rel.cta"]),
    ("red.release.gpu", ["red.relaxed.gpu", "red.release.cta"]),
    ("ld.acquire.gpu", ["ld.relaxed.gpu", "ld.acquire.cta"]),
]


@pytest.mark.parametrize(("right", "wrong"), [(right, wrong) for right, several in ORDERS for wrong in several])
def test_each_release_acquire_and_scope_is_needed(right: str, wrong: str) -> None:
    assert BODY.count(right) == 2
    for seed in SEEDS[:2]:
        found, _ = launch(BODY.replace(right, wrong), seed)
        assert {finding.kind for finding in found} == {"race"}


def leaves(k: KernelBuilder) -> None:
    """Block 1 ends where the others wait."""
    with k.when(k.ctaid.x != 1):
        k.grid_barrier(k.arg.words, 2)
        k.grid_barrier(k.arg.words, 2)


LEAVES = text(leaves, block=THREADS, signature=SIGNATURE, cooperative=True)


def test_blocks_that_wait_for_one_that_does_not_come_are_found() -> None:
    ((finding,), _) = launch(LEAVES)
    assert (finding.kind, finding.block) == ("deadlock", (0, 0, 0))
    assert finding.message == "probe, block (0,0,0) waits for another block, as all do that have not ended"
    assert finding.ptx_text == "ld.acquire.gpu.global.u32 " + finding.ptx_text.split(" ", 1)[1]
    with pytest.raises(emulator.EmulationError, match="waits for another block"):
        launch(LEAVES, sanitize=False)


def test_a_block_gives_up_after_a_number_of_polls() -> None:
    impatient = LEAVES.replace(f", {MOST_POLLS};", ", 20;")
    assert impatient.count(", 20;") == 2
    ((finding,), _) = launch(impatient)
    assert (finding.kind, finding.ptx_text.split()[-1]) == ("trap", "trap;")


@pytest.mark.parametrize("waits", [True, False])
def test_a_kernel_that_is_dependent_may_wait_for_its_own_blocks_once_it_has_for_those_before(waits: bool) -> None:
    def body(k: KernelBuilder) -> None:
        if waits:
            k.griddepcontrol(action="wait")
        column_sums(k)

    dependent = text(body, block=THREADS, signature=SIGNATURE, cooperative=True, target=Target(90))
    found, right = launch(dependent, seed=1, dependent=True)
    assert right
    assert {finding.kind for finding in found} == (set() if waits else {"unordered"})


PERMUTED: Signature = {
    "x": read(U32, N),
    "to": read(U32, N),
    "source": read(U32, N),
    "parts": write(U32, N),
    "y": write(U32, N),
    "words": update(U32, 2, zeros=True),
}


@cache
def permutes(waits: bool) -> str:
    def body(k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        k.store(k.arg.parts[k.load(k.arg.to[i])], k.load(k.arg.x[i]))
        if waits:
            k.grid_barrier(k.arg.words, 2)
        k.store(k.arg.y[i], k.load(k.arg.parts[k.load(k.arg.source[i])]))
        if waits:
            k.grid_barrier(k.arg.words, 2)

    return text(body, block=THREADS, signature=PERMUTED, cooperative=True)


@settings(max_examples=20)
@given(st.permutations(range(N // 32)), st.lists(st.integers(0, N - 1), min_size=1, max_size=4), st.integers(0, 9))
def test_two_phases_mean_one_after_the_other_and_need_a_barrier_where_others_wrote(
    warps: list[int], elsewhere: list[int], seed: int
) -> None:
    """Each warp writes the part of one; all threads read what they wrote, but for a few that read anything."""
    i = np.arange(N, dtype=np.uint32)
    to = (np.array(warps, np.uint32)[i // 32] * 32 + i % 32).astype(np.uint32)
    source = to.copy()
    source[:: N // len(elsewhere)][: len(elsewhere)] = elsewhere
    writer = np.argsort(to)
    foreign = bool((writer[source] // 32 != i // 32).any())
    for waits in (True, False):
        parts, y = np.zeros(N, np.uint32), np.zeros(N, np.uint32)
        arguments = [i * 7, to, source, emulator.uninitialised(parts), emulator.uninitialised(y), np.zeros(2, np.uint32)]
        found = emulator.run(permutes(waits), "probe", BLOCKS, THREADS, arguments, seed=seed, cooperative=True)
        assert ("race" in {finding.kind for finding in found}) == (foreign and not waits)
        if waits:
            assert not found
            assert (y == 7 * writer[source]).all()


def test_what_a_barrier_of_the_grid_needs_is_said() -> None:
    def barrier(k: KernelBuilder) -> None:
        k.grid_barrier(k.arg.words, 2)

    with pytest.raises(AuthorError, match=r"(?s)does not hold them all at once.*cooperative=True"):
        written(barrier, signature=SIGNATURE)
    with pytest.raises(AuthorError, match=r"k\.grid_barrier needs a one-dimensional block, this one is \(8, 4, 1\)"):
        written(barrier, block=(8, 4), signature=SIGNATURE, cooperative=True)
    with pytest.raises(AuthorError, match=r"2 barriers or more, got 1"):
        written(lambda k: k.grid_barrier(k.arg.words, 1), signature=SIGNATURE, cooperative=True)
    with pytest.raises(TypeMismatch, match=r"must be u32\[2\] in global memory, these are f32\[3, 64\]"):
        written(lambda k: k.grid_barrier(k.arg.y, 2), signature=SIGNATURE, cooperative=True)
