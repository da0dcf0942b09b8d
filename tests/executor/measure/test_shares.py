"""What each launch adds to the time of a step, against a count of its nanoseconds one by one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from executor.launch.graph import Moments
from executor.measure.shares import shares


@st.composite
def launches(draw: st.DrawFn) -> list[Moments]:
    """Of all kinds: side by side, one in another, apart, of no duration; each waits for a while at first, or not."""
    times = st.lists(st.integers(0, 30), min_size=3, max_size=3).map(sorted)
    return [Moments(*draw(times)) for _ in range(draw(st.integers(1, 8)))]


def counted(launches: Sequence[Moments]) -> tuple[list[int], int]:
    """Nanosecond by nanosecond: what some launch covers that has begun counts to the one that ends next, the rest to nobody."""
    found, idle = [0] * len(launches), 0
    by_end = sorted(range(len(launches)), key=lambda number: launches[number].end)
    for moment in range(min(one.start for one in launches), max(one.end for one in launches)):
        if any(one.began <= moment < one.end for one in launches):
            found[next(number for number in by_end if launches[number].end > moment)] += 1
        else:
            idle += 1
    return found, idle


@given(launches())
def test_shares_and_what_no_launch_covers_are_the_span_to_the_nanosecond(launches: list[Moments]) -> None:
    found, idle = counted(launches)
    assert shares(launches) == found
    assert sum(shares(launches)) + idle == max(one.end for one in launches) - min(one.start for one in launches)


def test_a_launch_that_a_longer_one_overtakes_takes_what_it_moved_the_front_by() -> None:
    short, long = Moments(10, 10, 30), Moments(0, 0, 50)
    assert shares([long, short]) == [20, 30]
    assert shares([long, long]) == [50, 0]
    assert shares([]) == []


def test_the_wait_of_a_launch_that_is_dependent_is_nobodys_and_does_not_hide_a_gap() -> None:
    assert shares([Moments(0, 0, 20), Moments(5, 23, 40)]) == [20, 17]
