"""A dependent launch is refused if what it touches before its wait may still be touched by a launch in flight, and only
then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.base.errors import LaunchError
from executor.device import open_device
from executor.launch.dependencies import AccessedRange, dependencies
from executor.launch.dependent_launches import Start, check_dependent_launches
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.dependent_launch import BeforeWait, NextStarts
from ptxgen.formats import FORMATS
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv

AT_ONCE, LATER, AT_END = NextStarts


def launch(
    title: str,
    *after: int,
    dependent: bool = True,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
    first: Sequence[str] = (),
    next_starts: NextStarts = AT_ONCE,
) -> Start:
    """Memory a, b, ... of a byte each, also the names of the arguments. first: what is touched before the wait."""
    accesses = {one: AccessedRange(one, 0, 1, one in writes) for one in (*reads, *writes)}
    facts = BeforeWait(frozenset(set(first) - set(writes)), frozenset(set(first) & set(writes)), next_starts=next_starts)
    return Start(title, after, dependent, accesses, facts)


def test_what_the_launch_before_writes_is_not_read_before_the_wait() -> None:
    check_dependent_launches([launch("one", writes="a"), launch("two", 0, reads="ab", first="b")])
    with pytest.raises(LaunchError, match=r"^two is dependent and reads a \(0x0 to 0x1\) before .* one, .* writes as a \("):
        check_dependent_launches([launch("one", writes="a"), launch("two", 0, reads="ab", first="a")])


def test_what_a_launch_in_flight_reads_is_not_overwritten_before_the_wait() -> None:
    with pytest.raises(LaunchError, match=r"^two is dependent and writes a .* one, which may still run, reads as a"):
        check_dependent_launches([launch("one", reads="a"), launch("two", 0, writes="a", first="a")])


@pytest.mark.parametrize(("next_starts", "refused"), [(AT_ONCE, True), (LATER, False), (AT_END, False)])
def test_how_far_back_launches_are_in_flight_depends_on_when_each_lets_the_next_start(
    next_starts: NextStarts, refused: bool
) -> None:
    one, two = launch("one", writes="a"), launch("two", 0, writes="b", next_starts=next_starts)
    plan = [one, two, launch("three", 1, reads="a", first="a")]
    if refused:
        with pytest.raises(LaunchError, match=r"three is dependent and reads a .* one"):
            check_dependent_launches(plan)
    else:
        check_dependent_launches(plan)
    check_dependent_launches([plan[0], replace(plan[1], dependent=False), plan[2]])  # which starts when the first has ended


def test_disjoint_parts_of_one_memory_do_not_conflict() -> None:
    first = replace(launch("one"), accesses={"y": AccessedRange("m", 0, 8, writes=True)})
    second = replace(launch("two", 0, first="w"), accesses={"w": AccessedRange("m", 8, 16, writes=False)})
    check_dependent_launches([first, second])
    with pytest.raises(LaunchError, match=r"two is dependent and reads w"):
        check_dependent_launches([first, replace(second, accesses={"w": AccessedRange("m", 7, 16, writes=False)})])


def test_what_other_devices_write_is_not_touched_before_the_wait() -> None:
    receives = replace(launch("receives", 1, dependent=False, reads="a"), from_peers=frozenset("a"))
    with pytest.raises(LaunchError, match=r"two is dependent and reads a .* other devices write for receives as a"):
        check_dependent_launches([launch("one", writes="b"), launch("two", 0, reads="a", first="a"), receives])


def test_a_launch_that_may_touch_any_memory_or_need_not_wait_is_not_dependent() -> None:
    one, two = launch("one", writes="a"), launch("two", 0, reads="a")
    with pytest.raises(LaunchError, match=r"^two is dependent, and touches memory before it waits that no argument names$"):
        check_dependent_launches([one, replace(two, before_wait=BeforeWait(anywhere=True))])
    with pytest.raises(LaunchError, match=r"^two is dependent, and a thread of it may end without having waited$"):
        check_dependent_launches([one, replace(two, before_wait=BeforeWait(waits=False))])


# Against a model of all that may happen

MEMORIES = "abc"
sets = st.sets(st.sampled_from(MEMORIES), max_size=2)


@st.composite
def plans(draw: st.DrawFn) -> list[Start]:
    """Launches with the edges that their memory asks for."""
    launches = []
    for number in range(draw(st.integers(2, 5))):
        reads, writes = draw(sets), draw(sets)
        first = draw(st.sets(st.sampled_from(sorted(reads | writes)))) if reads | writes else set()
        given = {"reads": sorted(reads - writes), "writes": sorted(writes), "first": sorted(first)}
        launches.append(
            launch(str(number), dependent=draw(st.booleans()), next_starts=draw(st.sampled_from(NextStarts)), **given)
        )
    edges = dependencies([[*one.accesses.values()] for one in launches])
    return [replace(one, after=after) for one, after in zip(launches, edges, strict=True)]


WAITING, RUNNING, WAITED, ENDED = range(4)
"""Not begun; before its wait; after it; over."""


def steps(plan: Sequence[Start], state: tuple[tuple[int, bool], ...]) -> Iterator[tuple[int, tuple[int, bool]]]:
    """What may happen next: a launch and its new state, which is how far it is and whether it has let the next one start."""
    for number, one in enumerate(plan):
        phase, freed = state[number]
        before, opens = one.depends_on, one.before_wait.next_starts
        if phase == WAITING:
            if all(state[other][0] == ENDED for other in one.after) if before is None else state[before][1]:
                yield number, (RUNNING, freed)
        elif phase == RUNNING:
            if before is None or state[before][0] == ENDED:
                yield number, (WAITED, freed)
        elif phase == WAITED:
            yield number, (ENDED, True)
        if not freed and ((phase == WAITED and opens is LATER) or (phase in (RUNNING, WAITED) and opens is AT_ONCE)):
            yield number, (phase, True)


def overlaps(plan: Sequence[Start]) -> set[tuple[int, int]]:
    """(a launch that started early and has not waited, an earlier one that has not ended or whose writes it has not waited
    for), in any order of events."""
    first = tuple((WAITING, False) for _ in plan)
    seen, work = {first}, [first]
    found: set[tuple[int, int]] = set()
    while work:
        state = work.pop()
        for number, one in enumerate(plan):
            if one.depends_on is not None and state[number][0] == RUNNING:
                found |= {(number, other) for other in range(number) if state[other][0] != ENDED or other == one.depends_on}
        for number, new in steps(plan, state):
            following = (*state[:number], new, *state[number + 1 :])
            if following not in seen:
                seen.add(following)
                work.append(following)
    return found


def conflict(late: Start, earlier: Start) -> bool:
    facts, theirs = late.before_wait, earlier.accesses
    written = {name for name, access in theirs.items() if access.writes}
    return bool(facts.reads & written or facts.writes & theirs.keys())


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(plans())
def test_what_is_refused_is_what_some_order_of_events_lets_conflict(plan: list[Start]) -> None:
    races = any(conflict(plan[late], plan[earlier]) for late, earlier in overlaps(plan))
    try:
        check_dependent_launches(plan)
    except LaunchError:
        assert races
    else:
        assert not races


@pytest.mark.slow
def test_a_graph_refuses_an_dependent_launch_that_reads_what_an_earlier_launch_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan.node does not let such a launch be dependent; without that rule the graph is refused."""
    kernel = HwDp4aGemv(format=FORMATS["Q8_0"], k=32, n=8, digits=1, pdl=True)
    with open_device("emulator") as device:
        launcher = Launcher(device, Modules(device))
        rng = np.random.default_rng(1)
        arguments = {name: GpuBuffer.from_numpy(device, value, name=name) for name, value in kernel.inputs(rng).items()}
        w = arguments["w"]
        words = w.nbytes // 4
        delta = GpuBuffer.zeros(device, "f32", (words,))
        plans = [
            launcher.prepare(AddInPlace(n=words), x=w.view(0, (words,), "f32"), delta=delta),
            launcher.prepare(kernel, **arguments),
        ]
        assert [node.dependent for node in LaunchGraph(device, plans).nodes] == [False, False]
        rule = Plan.node
        monkeypatch.setattr(Plan, "node", lambda self, after, written=(), stamps=None: rule(self, after, (), stamps))
        with pytest.raises(LaunchError, match=r"hw_dp4a_q8_0_gemv.* is dependent and reads w .*residual_add.* writes as x"):
            LaunchGraph(device, plans)
