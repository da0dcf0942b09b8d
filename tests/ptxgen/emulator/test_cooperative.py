"""Blocks that take turns: who waits for another gets it, in whatever way it waits, and the sanitiser tells the blocks apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import MOST_BLOCKS, EmulationError, Finding, run
from ptxgen.errors import ArgumentError
from tests.ptxgen.emulator.ptx import kernel

HEAD = "ld.param.u64 %rd1, [p0];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %nctaid.x;"
SENDS = """setp.eq.u32 %p1, %r2, 0;
@%p1 bra WAITS;
st.global.u32 [%rd1+128], 7;
{release}
ret;
WAITS:
{acquire}
ld.global.u32 %r5, [%rd1+128];
st.global.u32 [%rd1+4], %r5;"""
"""Block 0 waits for block 1, and copies the 7 that it writes."""
POLL = "POLL:\n{sleep}\nld.{order}.global.u32 %r4, [%rd1];\nsetp.eq.u32 %p2, %r4, 0;\n@%p2 bra POLL;\n{then}"


def sends(release: str, order: str, then: str = "", sleep: str = "nanosleep.u32 20;") -> str:
    poll = POLL.format(sleep=sleep, order=order, then=then)
    return kernel(f"{HEAD}\n{SENDS.format(release=release, acquire=poll)}", "u64")


def launch(text: str, *, grid: int = 2, block: int = 1, **more: Any) -> tuple[list[Finding], int]:
    """What is found, and what block 0 has copied."""
    x = np.zeros(64, np.uint32)
    return run(text, "k", grid, block, [x], **{"cooperative": True, **more}), int(x[1])


@pytest.mark.parametrize("sanitize", [True, False])
@pytest.mark.parametrize("sleep", ["nanosleep.u32 20;", ""])
def test_a_block_may_wait_for_a_later_one_if_all_are_there(sleep: str, sanitize: bool) -> None:
    text = sends("st.release.gpu.global.u32 [%rd1], 1;", "acquire.gpu", sleep=sleep)
    for seed in (None, 0, 1, 2):
        assert launch(text, seed=seed, sanitize=sanitize) == ([], 7)


def test_a_block_that_waits_for_a_later_one_is_endless_if_they_run_one_after_the_other() -> None:
    with pytest.raises(EmulationError, match=r"block \(0,0,0\) makes no progress"):
        launch(sends("st.release.gpu.global.u32 [%rd1], 1;", "acquire.gpu"), cooperative=False, sanitize=False)


FENCED = "fence.acq_rel.{scope};\nst.relaxed.gpu.global.u32 [%rd1], 1;"


@pytest.mark.parametrize(
    ("release", "order", "then", "ordered"),
    [
        (FENCED.format(scope="gpu"), "relaxed.gpu", "fence.acq_rel.gpu;", True),
        (FENCED.format(scope="gpu"), "acquire.gpu", "", True),
        (FENCED.format(scope="cta"), "acquire.gpu", "", False),
        (FENCED.format(scope="gpu"), "relaxed.gpu", "fence.acq_rel.cta;", False),
        (FENCED.format(scope="gpu"), "relaxed.gpu", "", False),
        ("st.relaxed.gpu.global.u32 [%rd1], 1;", "acquire.gpu", "", False),
        ("st.release.gpu.global.u32 [%rd1+8], 1;\nst.relaxed.gpu.global.u32 [%rd1], 1;", "acquire.gpu", "", False),
        ("st.release.gpu.global.u32 [%rd1], 2;\nred.relaxed.gpu.global.add.u32 [%rd1], 1;", "acquire.gpu", "", True),
    ],
)
def test_a_flag_hands_on_what_a_fence_or_a_release_of_it_published(release: str, order: str, then: str, ordered: bool) -> None:
    text = sends(release, order, then)
    for seed in (0, 1, 2):
        found, copied = launch(text, seed=seed)
        assert copied == 7
        assert [f.kind for f in found] == ([] if ordered else ["race"])


def test_what_was_handed_on_is_handed_on_again() -> None:
    """Block 2 writes and tells block 1, which tells block 0: that reads what block 2 wrote."""
    body = """setp.eq.u32 %p1, %r2, 0;\nsetp.eq.u32 %p2, %r2, 1;\nmul.wide.u32 %rd3, %r2, 4;\nadd.u64 %rd3, %rd1, %rd3;
    @%p1 bra WAITS;\n@%p2 bra WAITS;\nst.global.u32 [%rd1+128], 7;\nst.release.gpu.global.u32 [%rd1+8], 1;\nret;\nWAITS:
    nanosleep.u32 20;\nld.acquire.gpu.global.u32 %r4, [%rd3+4];\nsetp.eq.u32 %p3, %r4, 0;\n@%p3 bra WAITS;
    @%p2 {order}.gpu.global.u32 [%rd1+4], 1;\n@%p2 ret;\nld.global.u32 %r5, [%rd1+128];"""
    for order, kinds in (("st.release", set()), ("st.relaxed", {"race"})):
        text = kernel(f"{HEAD}\n{body.format(order=order)}", "u64")
        for seed in (0, 1, 2):
            assert {f.kind for f in launch(text, grid=3, seed=seed)[0]} == kinds


def test_a_finding_names_the_block_whose_turn_it_was() -> None:
    """Each has shared memory of its own, and other numbers for the same places."""
    text = kernel(
        f"{HEAD}\nmov.u32 %r4, s;\nst.shared.u32 [%r4], 1;\nbar.sync 0;\nsetp.eq.u32 %p1, %r2, 2;\n"
        "@%p1 st.shared.u32 [%r4+64], 1;\nst.global.u32 [%rd1], %r2;",
        "u64", shared=".shared .align 16 .b8 s[64];",
    )  # fmt: skip
    race, bounds = launch(text, grid=4)[0]
    assert (bounds.kind, bounds.block, bounds.address) == ("out of bounds", (2, 0, 0), 64)
    assert (race.kind, race.block, race.count) == ("race", (1, 0, 0), 3)
    assert race.message.endswith("that thread (0,0,0) of block (0,0,0) wrote, and nothing orders the two")


@pytest.mark.parametrize("cooperative", [True, False])
def test_warps_of_one_block_may_wait_for_each_other_asleep(cooperative: bool) -> None:
    """Warp 0 waits for warp 1, which waits at a barrier of its own first."""
    text = kernel(
        f"{HEAD}\nmov.u32 %r6, s;\nst.relaxed.cta.shared.u32 [%r6], 0;\nbar.sync 0;\nsetp.lt.u32 %p1, %r1, 32;\n"
        "@%p1 bra POLL;\nbar.sync 1, 32;\nst.relaxed.cta.shared.u32 [%r6], 7;\nret;\nPOLL:\nnanosleep.u32 20;\n"
        "ld.relaxed.cta.shared.u32 %r5, [%r6];\nsetp.eq.u32 %p2, %r5, 0;\n@%p2 bra POLL;\nst.relaxed.gpu.u32 [%rd1+4], %r5;",
        "u64", shared=".shared .align 16 .b8 s[16];",
    )  # fmt: skip
    for seed in (None, 1, 2):
        assert launch(text, block=64, seed=seed, cooperative=cooperative) == ([], 7)


def test_only_so_many_blocks_are_there_at_once() -> None:
    text = kernel(f"{HEAD}\nst.volatile.global.u32 [%rd1+4], 7;", "u64")
    assert launch(text, grid=MOST_BLOCKS, sanitize=False) == ([], 7)
    with pytest.raises(ArgumentError, match=rf"up to {MOST_BLOCKS} blocks can .*; the grid has {MOST_BLOCKS + 1}"):
        launch(text, grid=MOST_BLOCKS + 1)
