"""A launch waits for what it needs, and for nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from executor.launch.dependencies import AccessedRange, dependencies

ONE_ACCESS = st.builds(
    lambda memory, start, size, writes: AccessedRange(memory, start, start + size, writes),
    st.sampled_from("ab"),
    st.integers(0, 12),
    st.integers(1, 6),
    st.booleans(),
)
LAUNCHES = st.lists(st.lists(ONE_ACCESS, max_size=3), max_size=12)


def conflict(left: list[AccessedRange], right: list[AccessedRange]) -> bool:
    return any(
        a.memory == b.memory and a.start < b.end and b.start < a.end and (a.writes or b.writes) for a in left for b in right
    )


def closure(waits: list[tuple[int, ...]]) -> list[set[int]]:
    before: list[set[int]] = []
    for one in waits:
        before.append(set(one).union(*(before[i] for i in one)))
    return before


def closest(launches: list[list[AccessedRange]]) -> list[set[int]]:
    """All that must have ended before each launch, by the definition."""
    return closure([tuple(i for i in range(n) if conflict(launches[i], launches[n])) for n in range(len(launches))])


@given(LAUNCHES)
def test_exactly_what_conflicts_is_ordered(launches: list[list[AccessedRange]]) -> None:
    assert closure(dependencies(launches)) == closest(launches)


@given(LAUNCHES)
def test_no_wait_is_named_that_another_implies(launches: list[list[AccessedRange]]) -> None:
    waits = dependencies(launches)
    before = closure(waits)
    for one in waits:
        assert not any(i in before[j] for i in one for j in one)


def test_launches_that_read_the_same_run_side_by_side() -> None:
    x, q, k, v = (AccessedRange(name, 0, 16, True) for name in "xqkv")
    reads = AccessedRange("x", 0, 16, False)
    gather = [AccessedRange(name, 0, 16, False) for name in "qkv"]
    assert dependencies([[x], [reads, q], [reads, k], [reads, v], gather]) == [(), (0,), (0,), (0,), (1, 2, 3)]


def test_a_buffer_is_written_again_only_when_its_readers_have_ended() -> None:
    written, read = AccessedRange("x", 0, 16, True), AccessedRange("x", 0, 16, False)
    assert dependencies([[written], [read], [read], [written]]) == [(), (0,), (0,), (1, 2)]
