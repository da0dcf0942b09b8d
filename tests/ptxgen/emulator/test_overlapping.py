"""Launches overlap as programmatic dependent launch lets them: each order that a GPU may take is taken for some seed, and what
is touched before a wait and nothing orders is found for every seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from ptxgen.emulator import Finding, Kernel, Launch, MemoryMap, compile_module, launch_overlapping, overlapping_runs
from ptxgen.errors import ArgumentError
from tests.ptxgen.emulator.ptx import kernel

WAIT = "griddepcontrol.wait;"
FREE = "griddepcontrol.launch_dependents;"
LOAD = "ld.global.u32 %r5, [%rd1];"
PASS_ON = "st.global.u32 [%rd2], %r5;"
SEEDS = range(12)
WRITE = f"{FREE}\n{WAIT}\nmov.u32 %r5, 7;\n{PASS_ON}"
"""One launch that lets the next start at once, waits and writes 7."""


@cache
def compiled(body: str, sanitize: bool) -> Kernel:
    pointers = "ld.param.u64 %rd1, [p0];\nld.param.u64 %rd2, [p1];"
    return compile_module(kernel(f"{pointers}\n{body}", "u64", "u64"), sanitize=sanitize).kernel("k")


@dataclass(frozen=True)
class One:
    """A launch of a thread a block: what it does, what it reads from (%rd1) and writes to (%rd2), by name."""

    body: str
    source: str
    target: str
    after: tuple[int, ...] = ()
    dependent: bool = True
    constant: bool = True
    blocks: int = 1


def run(plan: Sequence[One], seed: int, *, sanitize: bool = True) -> tuple[dict[str, int], list[Finding]]:
    """What memory holds afterwards, of zeros before, and what was found."""
    memory = {name: np.zeros(64, np.uint32) for one in plan for name in (one.source, one.target)}
    launches = []
    for one in plan:
        own = MemoryMap()
        for name, read_only in ((one.source, True), (one.target, False)):
            own.add(memory[name].ctypes.data, 256, name, read_only=read_only, constant=read_only and one.constant)
        params = np.array([memory[one.source].ctypes.data, memory[one.target].ctypes.data], np.uint64).tobytes()
        launches.append(Launch(compiled(one.body, sanitize), one.blocks, 1, params, 0, own, one.dependent))
    findings = launch_overlapping(launches, [one.after for one in plan], seed=seed, seconds=10)
    return {name: int(values[0]) for name, values in memory.items()}, findings


def test_what_is_read_after_the_wait_is_what_the_launch_before_wrote() -> None:
    plan = [One(WRITE, "none", "a"), One(f"{FREE}\n{WAIT}\n{LOAD}\n{PASS_ON}", "a", "b", (0,), constant=False)]
    for seed in SEEDS:
        values, findings = run(plan, seed)
        assert not findings, seed
        assert values["b"] == 7


EARLY_READ = [One(WRITE, "none", "a"), One(f"{LOAD}\n{WAIT}\n{PASS_ON}", "a", "b", (0,))]


def test_what_is_read_before_the_wait_is_old_or_new_by_the_seed() -> None:
    assert {run(EARLY_READ, seed, sanitize=False)[0]["b"] for seed in SEEDS} == {0, 7}


def test_a_turn_may_end_at_a_barrier_and_in_a_loop() -> None:
    stores = "mov.u32 %r5, 1;\nst.global.u32 [%rd2], %r5;\nbar.sync 0;\nmov.u32 %r5, 2;\nst.global.u32 [%rd2], %r5;"
    loop = "L:\nadd.u32 %r5, %r5, 1;\nst.global.u32 [%rd2], %r5;\nsetp.lt.u32 %p1, %r5, 9;\n@%p1 bra L;"
    plan = [One(f"{FREE}\n{stores}\n{loop}", "none", "a"), EARLY_READ[1]]
    assert {run(plan, seed, sanitize=False)[0]["b"] for seed in range(100)} >= {0, 1, 3, 9}


def test_what_is_read_before_the_wait_races_for_every_seed() -> None:
    for seed in SEEDS:
        _, findings = run(EARLY_READ, seed)
        (found,) = (one for one in findings if one.kind == "race")
        assert "a launch that may still run" in found.message, seed
        assert found.against is not None
        assert {found.ptx_text, found.against.ptx_text} == {LOAD, PASS_ON}


@pytest.mark.parametrize(
    ("second", "races"),
    [
        (f"{FREE}\n{WAIT}", True),
        (f"{WAIT}\n{FREE}", False),
        (WAIT, False),  # the third starts at its end
    ],
)
def test_how_far_back_launches_are_in_flight(second: str, races: bool) -> None:
    """The third launch reads before its wait what the first one writes."""
    plan = [One(WRITE, "none", "a"), One(second, "none", "c", (0,)), One(f"{LOAD}\n{WAIT}\n{PASS_ON}", "a", "b", (1,))]
    for seed in SEEDS:
        values, findings = run(plan, seed)
        assert [one.kind for one in findings] == (["race"] if races else []), seed
        assert races or values["b"] == 7
    if races:
        assert {run(plan, seed, sanitize=False)[0]["b"] for seed in range(40)} == {0, 7}


def test_a_store_before_the_wait_races_with_a_read_in_flight() -> None:
    reads = One(f"{FREE}\n{WAIT}\n{LOAD}\n{PASS_ON}", "a", "b", constant=False)
    writes = One(f"mov.u32 %r5, 7;\n{PASS_ON}\n{WAIT}", "none", "a", (0,))
    for seed in SEEDS:
        kinds = {one.kind for one in run([reads, writes], seed)[1]}
        assert kinds == {"race", "unordered"}, seed
    assert {run([reads, writes], seed, sanitize=False)[0]["b"] for seed in SEEDS} == {0, 7}


def test_a_launch_that_is_not_dependent_comes_after_all_that_it_waits_for() -> None:
    late = One(f"{LOAD}\n{PASS_ON}", "a", "b", (0,), dependent=False)
    for seed in SEEDS:
        values, findings = run([EARLY_READ[0], late], seed)
        assert not findings
        assert values["b"] == 7


def test_the_read_only_path_is_for_what_launches_before_have_written() -> None:
    through = One(f"ld.global.nc.u32 %r5, [%rd1];\n{PASS_ON}", "a", "b", (0,), dependent=False, constant=False)
    assert not run([EARLY_READ[0], through], 1)[1]


def test_launches_that_no_edge_orders_race() -> None:
    kinds = {seed: [one.kind for one in run([One(WRITE, "none", "a"), One(WRITE, "none", "a")], seed)[1]] for seed in SEEDS}
    assert all(found == ["race"] for found in kinds.values()), kinds


def test_an_input_stays_read_only_where_another_launch_may_write_it() -> None:
    stores = One(f"{WAIT}\nst.global.u32 [%rd1], 1;", "a", "b", (0,), constant=False)
    assert [one.kind for one in run([EARLY_READ[0], stores], 1)[1]] == ["read-only"]


def test_runs_hold_every_launch_and_no_more_blocks_than_there_is_room_for() -> None:
    blocks = [1, 500, 600, 2000, 3, 3, 1023]
    parted = {seed: list(overlapping_runs(blocks, seed)) for seed in range(20)}
    assert all(sum(counts) == len(blocks) for counts in parted.values())
    assert len(set(map(tuple, parted.values()))) > 1
    with pytest.raises(ArgumentError, match=r"^launches that overlap have up to 1024 blocks in all"):
        run([One(WRITE, "none", "a", blocks=1024)], 1)
