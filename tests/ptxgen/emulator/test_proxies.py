"""Proxies on the emulator: what must stand between ordinary reads and writes of shared memory and a bulk copy over them, and
copies whose bytes come at any moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ptxgen.conformance.execution import emitted, inputs
from ptxgen.dsl.arguments import Array
from ptxgen.emulator import Finding, Marked, run
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from tests.ptxgen.emulator.ptx import kernel
from tests.ptxgen.emulator.test_bulk_copies import FENCE, MEET, RING, SLOT, kinds

BARRIER = "bar.sync 0;"
ARRIVE = "mbarrier.arrive.expect_tx.shared::cta.b64 %rd9, [free], 0;"
WAIT = "and.b32 %r30, %r3, 1;\nFREE:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [free], %r30;\n@!%p1 bra FREE;"
STORE = "st.shared.u32 [%r12], %r20;"
BUT_ONE = "setp.ne.u32 %p4, %r1, 5;\n@%p4 "
"""Of the lanes all but the sixth."""
ONE = "setp.eq.u32 %p4, %r1, 1;\n@%p4 "
"""The second lane alone, which begins no copy."""


USE = "st.global.v4.u32 [%rd3], {%r20, %r21, %r22, %r23};\n"


def declared(text: str) -> str:
    """The text with the variable `free`."""
    return text.replace(".shared .align", ".shared .align 8 .b8 free[8];\n.shared .align", 1)


def used_late(text: str) -> str:
    """The text of a ring, where what was loaded is first used after the copy."""
    assert USE in text
    end = "add.u32 %r3, %r3, 1;\nsetp.lt.u32 %p1, %r3, 7"
    return text.replace(USE, "").replace(end, USE.replace("[%rd3]", f"[%rd3+-{SLOT}]") + end)


def found_after_the_loads(*lines: str, arrivals: int = 32, late: bool = False) -> list[Finding]:
    """What is found in a ring whose lanes execute these lines between their loads of a slot and the copy into it; `free` is an
    mbarrier whose phases wait for so many arrivals. What was loaded is used before the lines, or `late`, after the copy."""
    ring = replace(RING, started=f"@%p3 mbarrier.init.shared.b64 [free], {arrivals};\n{MEET}", read="\n".join(lines))
    return ring.run(edit=lambda text: declared(used_late(text) if late else text))[0]


def after_the_loads(*lines: str, arrivals: int = 32, late: bool = False) -> set[str]:
    return {found.kind for found in found_after_the_loads(*lines, arrivals=arrivals, late=late)}


@pytest.mark.parametrize(
    ("lines", "arrivals"),
    [
        ((MEET, FENCE), 32),
        ((MEET, f"@%p3 {FENCE}"), 32),
        ((FENCE, MEET), 32),
        ((FENCE, BARRIER), 32),
        ((BARRIER, FENCE), 32),
        ((MEET, ONE + FENCE, MEET), 32),
        ((MEET, ONE + FENCE, BARRIER), 32),
        ((MEET, "fence.proxy.async;"), 32),
        ((ARRIVE, WAIT), 32),
        ((MEET, f"@%p3 {ARRIVE}", WAIT), 1),
        ((MEET, ONE + ARRIVE, f"@%p3 {WAIT.partition('FREE:')[0]}", WAIT), 1),
        ((STORE, FENCE, ARRIVE, WAIT), 32),
        ((STORE, ARRIVE, WAIT, FENCE), 32),
    ],
    ids=str,
)
def test_a_fence_of_proxies_or_an_mbarrier_that_the_readers_arrived_at_lets_a_copy_follow(
    lines: tuple[str, ...], arrivals: int
) -> None:
    assert not after_the_loads(*lines, arrivals=arrivals)


@pytest.mark.parametrize(
    ("lines", "arrivals", "expected"),
    [
        ((MEET,), 32, {"unfenced"}),
        ((BARRIER,), 32, {"unfenced"}),
        ((MEET, "fence.proxy.async.global;"), 32, {"unfenced"}),
        ((MEET, "membar.cta;"), 32, {"unfenced"}),
        ((MEET, ONE + FENCE), 32, {"unfenced"}),  # which the lane that copies does not follow
        ((FENCE,), 32, {"race"}),
        ((BUT_ONE + FENCE, MEET), 32, {"unfenced"}),
        ((ARRIVE,), 32, {"race", "unfenced", "barrier"}),
        ((BUT_ONE + ARRIVE, WAIT), 31, {"race"}),
        ((BUT_ONE + ARRIVE, WAIT, MEET), 31, {"unfenced"}),
        ((f"@%p3 {ARRIVE}", WAIT, MEET), 1, {"unfenced"}),
        ((STORE, ARRIVE, WAIT), 32, {"unfenced"}),  # for what is written an mbarrier is no fence
    ],
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_copy_to_where_lanes_read_without_either_is_found(lines: tuple[str, ...], arrivals: int, expected: set[str]) -> None:
    found = after_the_loads(*lines, arrivals=arrivals)
    assert found
    assert found <= expected


@pytest.mark.parametrize(
    ("lines", "arrivals"),
    [((ARRIVE, WAIT), 32), ((MEET, f"@%p3 {ARRIVE}", WAIT), 1), (("mov.b32 %r24, %r20;", ARRIVE, WAIT), 32)],
    ids=str,
)
def test_an_mbarrier_hands_over_no_load_whose_value_is_used_after_the_arrival(lines: tuple[str, ...], arrivals: int) -> None:
    (found, *_) = found_after_the_loads(*lines, arrivals=arrivals, late=True)
    assert found.kind == "unfenced"
    assert "by a load whose value is not used before the arrival" in str(found)
    assert "ld.shared" in str(found.against)


def test_a_load_whose_value_is_used_after_the_arrival_is_right_with_a_fence() -> None:
    assert not after_the_loads(FENCE, ARRIVE, WAIT, late=True)
    assert not after_the_loads(MEET, f"@%p3 {FENCE}", late=True)


def test_a_later_load_that_is_used_hides_none_that_is_not() -> None:
    again = "ld.shared.v2.u64 {%rd6, %rd7}, [%r12];\nadd.u64 %rd6, %rd6, %rd7;"
    assert after_the_loads(again, ARRIVE, WAIT, late=True) == {"unfenced"}


def test_a_fence_before_the_loads_is_none() -> None:
    assert kinds(replace(RING, after_wait=FENCE, read=MEET)) == {"unfenced"}


def test_the_finding_names_the_copy_and_the_load() -> None:
    (found, *_), _, _ = replace(RING, read=MEET).run()
    assert "cp.async.bulk" in found.ptx_text
    assert found.against is not None
    assert "ld.shared" in found.against.ptx_text
    assert "thread (0,0,0) read, with no fence.proxy.async since, and no mbarrier at which it arrived" in str(found)


HANDED = f"""
ld.param.u64 %rd1, [p0];
mov.u32 %r1, %tid.x;
mov.u32 %r2, cells;
setp.eq.u32 %p2, %r1, 0;
@%p2 mbarrier.init.shared.b64 [free], 32;
bar.sync 0;
mov.u32 %r3, 0;
shl.b32 %r4, %r1, 2;
add.u32 %r2, %r2, %r4;
setp.ge.u32 %p3, %r1, 32;
@%p3 bra READ;
st.shared.u32 [%r2], %r1;
{{arrive}}
ret;
READ:
{{late}}
{WAIT}
ld.shared.u32 %r5, [%r2+-128];
cvt.u64.u32 %rd2, %r4;
add.u64 %rd1, %rd1, %rd2;
st.global.u32 [%rd1+-128], %r5;"""
"""The second warp reads what the first wrote before it arrived."""


def test_an_mbarrier_hands_over_what_was_written_before_the_arrival() -> None:
    shared = ".shared .align 8 .b8 free[8];\n.shared .align 8 .b8 cells[128];"
    found = {}
    for name, arrive, late in (("all", ARRIVE, ""), ("other warp", "", ARRIVE)):
        y = np.zeros(32, np.uint32)
        text = kernel(HANDED.format(arrive=arrive, late=late), "u64", shared=shared)
        for seed in (None, 0, 1):
            found[name, seed] = {f.kind for f in run(text, "k", 1, 64, [y], seed=seed)}
            assert arrive == "" or y.tolist() == list(range(32))
    assert not any(found["all", seed] for seed in (None, 0, 1))
    assert "race" in found["other warp", None] | found["other warp", 0] | found["other warp", 1]


# Copies at any moment


def refilled_before_it_is_read(text: str) -> str:
    start = text.index("ld.shared.v4")
    end = text.index("\n", text.index("add.u64 %rd3", start)) + 1
    loads, rest = text[start:end], text[:start] + text[end:]
    return rest.replace(
        "add.u32 %r3, %r3, 1;\nsetp.lt.u32 %p1, %r3, 7;", loads + "add.u32 %r3, %r3, 1;\nsetp.lt.u32 %p1, %r3, 7;"
    )


@pytest.mark.slow
def test_with_a_seed_the_bytes_of_a_copy_may_come_at_once_or_late() -> None:
    """In a ring that begins to fill a slot before it reads it; which a right one does not notice."""
    for sanitize in (False, True):
        right = []
        for seed in (None, *range(8)):
            _, y, x = RING.run(edit=refilled_before_it_is_read, sanitize=sanitize, seed=seed)
            right.append(np.array_equal(x, y))
            _, y, x = RING.run(sanitize=sanitize, seed=seed)
            np.testing.assert_array_equal(y, x)
        assert right[0]  # at the wait
        assert not all(right)


CP_ASYNC = """
ld.param.u64 %rd1, [p1];
ld.param.u64 %rd3, [p0];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd4, %r1, 4;
add.u64 %rd1, %rd1, %rd4;
add.u64 %rd3, %rd3, %rd4;
mov.u32 %r2, cells;
mad.lo.u32 %r2, %r1, 4, %r2;
st.shared.u32 [%r2], 7;
cp.async.ca.shared.global [%r2], [%rd1], 4;
ld.shared.u32 %r3, [%r2];
cp.async.wait_all;
st.global.u32 [%rd3], %r3;"""


def test_so_may_those_of_cp_async_and_a_read_before_the_wait_is_found_in_either_case() -> None:
    text, seen = kernel(CP_ASYNC, "u64", "u64", shared=".shared .align 16 .b8 cells[128];"), set()
    for seed in (None, *range(8)):
        y, x = np.zeros(32, np.uint32), np.ones(32, np.uint32)
        assert [f.kind for f in run(text, "k", 1, 32, [y, x], seed=seed)] == ["early read"]
        run(text, "k", 1, 32, [y, x], seed=seed, sanitize=False)
        seen |= set(y.tolist())
    assert seen == {1, 7}


# A kernel of the catalogue


def found_in_a_ring(change: Callable[[str], str]) -> list[Finding]:
    """What is found in a product whose warps stream weights through a ring, with another text."""
    product = find("hw_dp4a_q8_0_gemv").make(k=1024, n=9, digits=1, num_warps=1, rows_per_warp=1, row_groups=8, stages=2)
    arguments, signature, launch = inputs(product), product.signature(), product.launch()
    args = [
        Marked(arguments[name].copy(), a.direction != "out", a.constant, a.settled) if isinstance(a, Array) else arguments[name]
        for name, a in signature.items()
    ]
    text = change(emitted(product, Target(90), lines=True).text)
    return run(text, product.name, launch.grid, launch.block, args, shared=launch.dynamic_shared)


def without_fences(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "fence.proxy.async" not in line)


@pytest.mark.slow
def test_a_weight_ring_that_refills_a_slot_with_no_fence_of_proxies_is_found() -> None:
    found = found_in_a_ring(without_fences)
    assert {one.kind for one in found} == {"unfenced"}
    assert all("cp.async.bulk" in one.ptx_text and one.against and "ld.shared" in one.against.ptx_text for one in found)
    assert not found_in_a_ring(lambda text: without_fences(text).replace("bar.warp.sync", f"{FENCE}\nbar.warp.sync"))
