"""k.last_block: the last of several blocks knows that it is, in any order, and may read what the others wrote."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen import emulator
from ptxgen.dsl.arguments import Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.errors import AuthorError, TypeMismatch
from ptxgen.types import F32, S32, U32
from tests.ptxgen.dsl.writing import text, written

BLOCKS, THREADS, TURNS = 5, 64, 2
SEEDS = [None, 1, 2, 3]
SIGNATURE: Signature = {
    "x": read(F32, TURNS, BLOCKS, THREADS),
    "n": read(U32, 1),
    "parts": write(F32, TURNS, BLOCKS, THREADS),
    "y": write(F32, TURNS, THREADS),
    "counters": update(U32, TURNS),
}
ATOMIC = "atom.acq_rel.gpu.global.inc.u32"


def column_sums(k: KernelBuilder) -> None:
    """Each block hands on its part; the last one adds the parts of all, each thread those that its mirror image wrote."""
    thread, count = k.tid.x, k.load(k.arg.n[0])
    for turn in k.strided(0, TURNS):
        k.store(k.arg.parts[turn, k.ctaid.x, thread], k.load(k.arg.x[turn, k.ctaid.x, thread]))
        with k.when(k.last_block(k.arg.counters[turn], count)):
            total = k.variable(0.0, F32)
            for part in k.strided(0, count):
                total @= total + k.load(k.arg.parts[turn, part, THREADS - 1 - thread])
            k.store(k.arg.y[turn, THREADS - 1 - thread], total)


def launch(
    body: str, seed: int | None, counters: np.ndarray[tuple[int], np.dtype[np.uint32]]
) -> tuple[list[emulator.Finding], bool]:  # fmt: skip
    """What the sanitiser finds, and whether the sums are right."""
    x = np.random.default_rng(4).normal(size=(TURNS, BLOCKS, THREADS)).astype(np.float32)
    parts, y = np.zeros_like(x), np.zeros((TURNS, THREADS), np.float32)
    arguments = [x, np.array([BLOCKS], np.uint32), emulator.uninitialised(parts), emulator.uninitialised(y), counters]
    found = emulator.run(body, "probe", BLOCKS, THREADS, arguments, seed=seed)
    return found, np.array_equal(y, np.add.accumulate(x, axis=1)[:, -1])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_block_has_what_all_wrote_in_any_order_and_leaves_zeros(seed: int | None) -> None:
    body, counters = text(column_sums, block=THREADS, signature=SIGNATURE), np.zeros(TURNS, np.uint32)
    for _ in range(2):  # what a launch leaves is what the next one needs
        assert launch(body, seed, counters) == ([], True)
        assert not counters.any()


@pytest.mark.parametrize("weaker", ["relaxed", "acquire", "release"])
def test_without_the_fences_of_the_counter_the_sums_are_a_race(weaker: str) -> None:
    body = text(column_sums, block=THREADS, signature=SIGNATURE)
    assert body.count(ATOMIC) == 1
    for seed in SEEDS:
        found, _ = launch(body.replace(ATOMIC, ATOMIC.replace("acq_rel", weaker)), seed, np.zeros(TURNS, np.uint32))
        assert {finding.kind for finding in found} == {"race"}


def test_one_block_alone_is_the_last() -> None:
    def body(k: KernelBuilder) -> None:
        k.store(k.arg.y[k.tid.x], k.select(k.last_block(k.arg.counter[0], 1), k.u32(1), 0))

    alone = text(body, block=32, signature={"y": write(U32, 32), "counter": update(U32, 1)})
    y, counter = np.zeros(32, np.uint32), np.zeros(1, np.uint32)
    assert not emulator.run(alone, "probe", 1, 32, [y, counter])
    assert y.all()
    assert not counter.any()


def test_a_counter_is_u32_in_global_memory_of_a_block_of_one_dimension() -> None:
    signature: Signature = {"y": update(S32, 1), "c": update(U32, 1)}
    with pytest.raises(TypeMismatch, match=r"must be u32 in global memory, this is s32 in global memory"):
        written(lambda k: k.last_block(k.arg.y[0], 2), signature=signature)
    with pytest.raises(TypeMismatch, match=r"must be u32 in global memory, this is u32 in shared memory"):
        written(lambda k: k.last_block(k.shared(U32, 1)[0], 2), signature=signature)
    with pytest.raises(AuthorError, match=r"k\.last_block needs a one-dimensional block, this one is \(8, 4, 1\)"):
        written(lambda k: k.last_block(k.arg.c[0], 2), block=(8, 4), signature=signature)
