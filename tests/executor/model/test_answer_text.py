"""Stop strings: found however the text is cut, and no text is lost or shown too early."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.model.scheduling.answer_text import StopStrings
from ptxgen.errors import ArgumentError

LETTERS = st.text("ab", max_size=5)


def cut(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """The text that is left, and the stop string."""
    strings = StopStrings(stops)
    text = "".join(map(strings.push, pieces)) + strings.finish()
    return text, strings.found


@given(pieces=st.lists(LETTERS, max_size=6), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_a_text_ends_before_the_first_stop_string_however_it_is_cut(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    ends = [(whole.index(stop) + len(stop), whole.index(stop)) for stop in stops if stop in whole]
    expected = whole[: min(ends)[1]] if ends else whole
    text, found = cut(stops, pieces)
    assert text == expected
    assert (found is not None) == bool(ends)
    assert cut(stops, list(whole)) == (text, found)


@given(
    pieces=st.lists(LETTERS, min_size=1, max_size=6),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_nothing_is_held_back_that_cannot_begin_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    strings = StopStrings(stops)
    shown = "".join(map(strings.push, pieces))
    if strings.found is None:
        held = "".join(pieces)[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_of_two_that_end_together_the_longer_counts() -> None:
    assert cut(["b", "aab"], ["aaab"]) == ("a", "aab")


def test_nothing_comes_after_a_stop_string() -> None:
    strings = StopStrings("b")
    assert [strings.push("ab"), strings.push("cd"), strings.finish()] == ["a", "", ""]


@pytest.mark.parametrize(("stops", "shown"), [("", "''"), (["a", ""], "''"), ([1], "1"), (7, "7")])
def test_what_is_no_stop_string_is_refused(stops: object, shown: str) -> None:
    with pytest.raises(ArgumentError, match=f"a stop string is {shown}; allowed: text of at least one character"):
        StopStrings(stops)  # type: ignore[arg-type]
