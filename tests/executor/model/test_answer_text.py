"""Stop strings: found however the text is cut, and no text is lost or shown too early."""

from __future__ import annotations

from itertools import compress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.model.scheduling.answer_text import AnswerText, StopStrings
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError
from tests.executor.serve.local import tokenizer_of
from tests.synthetic import Q, write_model

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


@given(
    pieces=st.lists(st.tuples(LETTERS, st.booleans()), max_size=6),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_a_stop_string_is_found_in_text_that_is_not_shown(pieces: list[tuple[str, bool]], stops: list[str]) -> None:
    whole, shown = "".join(text for text, _ in pieces), [one for text, is_shown in pieces for one in [is_shown] * len(text)]
    ends = [(whole.index(stop) + len(stop), whole.index(stop)) for stop in stops if stop in whole]
    strings = StopStrings(stops)
    text = "".join(strings.push(text, shown=is_shown) for text, is_shown in pieces) + strings.finish()
    assert text == "".join(compress(whole[: min(ends)[1]] if ends else whole, shown))
    assert (strings.found is not None) == bool(ends)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(write_model(tmp_path_factory.mktemp("model") / "m.gguf", types=Q.F32, layers=1, hidden=32, ff=32))


def test_a_token_that_ends_an_answer_completes_a_stop_string(tokenizer: Tokenizer) -> None:
    said = tokenizer.encode("one <|im_start|>two", add_special=False)
    (end,) = tokenizer.encode("<|im_end|>", add_special=False)
    for stops, expected in ((["two<|im_end|>"], "one "), (["two<|im_start|>"], "one two"), (["> two", " <|im"], "one")):
        text = AnswerText(tokenizer.stream(), StopStrings(stops))
        assert "".join(map(text.push, said)) + text.finish(end) == expected
    spelt = AnswerText(tokenizer.stream(), StopStrings(["two"]), said)
    assert "".join(map(spelt.push, said)) + spelt.finish(end) == "one <|im_start|>"


@given(text=st.text(st.sampled_from("ab\u00e9\u20ac\U0001f600"), max_size=8), broken=st.binary(max_size=3))
def test_a_token_begins_in_the_text_where_its_first_character_does(text: str, broken: bytes, tokenizer: Tokenizer) -> None:
    """Each byte is a token of its own, so characters are split over tokens."""
    ids = {tokenizer.token_bytes(index): index for index in reversed(range(tokenizer.vocab_size))}
    raw = text.encode() + broken + text.encode()
    answer = AnswerText(tokenizer.stream(), StopStrings(()))
    starts = []
    for byte in raw:
        answer.push(ids[bytes([byte])])
        starts.append(answer.start)
    answer.finish()
    sizes = [len(character.encode()) for character in text]
    assert starts[: len(text.encode())] == [at for at, size in enumerate(sizes) for _ in range(size)]
    replaced = (text.encode() + broken).decode(errors="replace")
    if answer.text == replaced + text:
        expected = [at + len(replaced) for at, size in enumerate(sizes) for _ in range(size)]
        assert starts[len(raw) - len(expected) :] == expected


def test_of_two_that_end_together_the_longer_counts() -> None:
    assert cut(["b", "aab"], ["aaab"]) == ("a", "aab")


def test_nothing_comes_after_a_stop_string() -> None:
    strings = StopStrings("b")
    assert [strings.push("ab"), strings.push("cd"), strings.finish()] == ["a", "", ""]


@pytest.mark.parametrize(("stops", "shown"), [("", "''"), (["a", ""], "''"), ([1], "1"), (7, "7")])
def test_what_is_no_stop_string_is_refused(stops: object, shown: str) -> None:
    with pytest.raises(ArgumentError, match=f"a stop string is {shown}; allowed: text of at least one character"):
        StopStrings(stops)  # type: ignore[arg-type]
