"""Text that knows what a template wrote: always the text that str would give, and never the template's where it is not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.text.rendering.traced import TracedText, joined, own_of, runs, written

# The template's characters and the others' are different ones, so a result tells who wrote it.
OWN, OTHER = "<A B|", "x\ty\n"
PIECES = st.one_of(st.text(OWN, max_size=4).map(written), st.text(OTHER, max_size=4))
TEXTS = st.lists(PIECES, max_size=5).map(joined)
ANY = st.one_of(TEXTS, st.text(OTHER, max_size=3))

FOLLOWED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "+": lambda a, b, c: a + b + c,
    "join": lambda a, b, c: a.join([b, c, b]),
    "*": lambda a, b, c: a * 3,
    "slice": lambda a, b, c: a[1:-1] + a[::-1] + a[len(b) :],
    "index": lambda a, b, c: [a[0], a[-1]] if a else [],
    "iter": lambda a, b, c: list(a),
    "strip": lambda a, b, c: [a.strip(), a.lstrip(), a.rstrip(), a.strip("<x "), a.lstrip("\n|"), a.rstrip("AB")],
    "split": lambda a, b, c: [a.split(), a.split(None, 1), a.rsplit(None, 1), a.rsplit()],
    "split at": lambda a, b, c: [a.split("x"), a.split("AB", 1), a.rsplit("B", 2), *([a.split(b)] if b else [])],
    "lines": lambda a, b, c: [a.splitlines(), a.splitlines(True)],
    "partition": lambda a, b, c: [a.partition("x"), a.rpartition("A")],
    "affixes": lambda a, b, c: [a.removeprefix("<A"), a.removesuffix("x"), a.removeprefix(b)],
    "replace": lambda a, b, c: [a.replace("A", c), a.replace("xy", c, 1), a.replace(b, c) if b else a],
    "str": lambda a, b, c: str(a),
}


@pytest.mark.parametrize("name", FOLLOWED)
@settings(max_examples=50)
@given(a=TEXTS, b=ANY, c=TEXTS)
def test_what_str_does_is_done_and_followed(name: str, a: TracedText, b: str, c: TracedText) -> None:
    made = FOLLOWED[name](a, b, c)
    assert made == FOLLOWED[name](plain(a), plain(b), plain(c))
    for text in flat(made):
        assert own_of(text) == bytes(character in OWN for character in text)


@given(a=TEXTS, b=ANY)
def test_runs_are_the_text_in_stretches_of_one_writer(a: TracedText, b: str) -> None:
    made = runs(a + b)
    assert "".join(text for text, _ in made) == a + b
    assert all((character in OWN) is own for text, own in made for character in text)
    assert all(first[1] is not second[1] for first, second in pairwise(made))
    assert runs("xy") == [("xy", False)]


NOT_FOLLOWED: dict[str, Callable[[Any, Any], str]] = {
    "center": lambda a, b: a.center(9, "A"),
    "ljust": lambda a, b: a.ljust(9),
    "zfill": lambda a, b: a.zfill(9),
    "translate": lambda a, b: a.translate({ord("x"): "A"}),
    "expandtabs": lambda a, b: a.expandtabs(),
    "replace nothing": lambda a, b: a.replace("", b),
    "of others": lambda a, b: "x".join([a, b]),
    "format of others": lambda a, b: f"x%s{a}" % b,
}


@pytest.mark.parametrize("name", NOT_FOLLOWED)
@settings(max_examples=20)
@given(a=TEXTS, b=TEXTS)
def test_what_is_not_followed_is_nobody_s_and_so_not_the_template_s(name: str, a: TracedText, b: TracedText) -> None:
    made = NOT_FOLLOWED[name](a, b)
    assert made == NOT_FOLLOWED[name](plain(a), plain(b))
    assert not any(own_of(made))


@pytest.mark.parametrize(
    ("form", "values", "runs_of"),
    [
        ("<A>%s|", ("x",), [("<A>", True), ("x", False), ("|", True)]),
        ("%s%s%%", (written("A"), "x"), [("A", True), ("x", False), ("%", True)]),
        ("A%dB", 7, [("A", True), ("7", False), ("B", True)]),
        ("A%(x)sB%(y)5s", {"x": "<", "y": written("B")}, [("A", True), ("<", False), ("B", True), ("    B", False)]),
        ("A%*dB", (3, 7), [("A  7B", False)]),
        ("A%%", (), [("A%", True)]),
        ("A%ld% 3d", (1, 2), [("A", True), ("1  2", False)]),
    ],
)
def test_a_form_of_the_template_s_is_followed_and_what_fills_it_keeps_its_writer(
    form: str, values: Any, runs_of: list[tuple[str, bool]]
) -> None:
    made = written(form) % values
    assert made == form % values
    assert runs(made) == runs_of
    assert not any(own_of((written(form) + "x") % values))  # a form that others wrote a part of


@pytest.mark.parametrize("name", ["upper", "lower", "capitalize", "title"])
@given(own=st.text(max_size=5), other=st.text(max_size=5))
def test_case_keeps_the_writer_or_forgets_it(name: str, own: str, other: str) -> None:
    text = written(own) + other
    made = getattr(text, name)()
    assert made == getattr(own + other, name)()
    assert own_of(made) in (own_of(text), bytes(len(made)))


def test_texts_and_writers_are_of_one_length() -> None:
    with pytest.raises(ValueError, match="a text of 2 characters cannot have 1 origins"):
        TracedText("ab", b"\1")
    assert not any(own_of(TracedText("ab")))
    for wrong in (lambda: written("a") + 1, lambda: 1 + written("a"), lambda: joined(["a", 1])):  # type: ignore[list-item, operator]
        with pytest.raises(TypeError):
            wrong()


def flat(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [text for item in value for text in flat(item)]


def plain(text: str) -> str:
    return text.encode().decode()
