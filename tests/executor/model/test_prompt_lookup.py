"""Drafts from the text so far, and what a step makes of a draft."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.base.errors import ModelError, OutOfPages
from executor.memory.page_pool import PagePool, PageTable
from executor.model.scheduling.prompt_lookup import PromptLookup
from executor.model.scheduling.verify import accepted, verify
from executor.model.step import Row
from ptxgen.errors import ArgumentError
from ptxgen.kernels.token.argmax import NOT_A_NUMBER
from tests.executor.model.fake_engine import FakeEngine

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def by_definition(tokens: list[int], most: int, shortest: int, longest: int) -> list[int]:
    for length in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                period = len(tokens) - start - length
                return [tokens[start + length + i % period] for i in range(most)]
    return []


@given(
    text=st.lists(st.integers(0, 2), max_size=40), most=st.integers(1, 16), shortest=st.integers(1, 3), more=st.integers(0, 2)
)
def test_a_draft_follows_the_last_place_of_the_longest_run(text: list[int], most: int, shortest: int, more: int) -> None:
    lookup = PromptLookup(shortest, shortest + more)
    for end in range(0, len(text) + 1, 3):
        assert lookup.propose(text[:end], most) == by_definition(text[:end], most, shortest, shortest + more)


def test_a_repetition_that_has_begun_goes_on() -> None:
    assert PromptLookup().propose([7, 1, 2, 3, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]


def test_a_text_that_says_nothing_twice_gives_no_draft() -> None:
    assert PromptLookup().propose(list(range(50))) == []


@pytest.mark.parametrize(
    ("draft", "likeliest", "expected"),
    [
        ([], [5], [5]),
        ([5, 6], [5, 6, 7], [5, 6, 7]),
        ([5, 6], [5, 8, 7], [5, 8]),
        ([5, 6], [4, 6, 7], [4]),
        ([5], [5, NOT_A_NUMBER], [5]),
    ],
)
def test_what_greedy_decoding_would_have_taken_is_accepted(draft: list[int], likeliest: list[int], expected: list[int]) -> None:
    assert accepted(draft, likeliest) == expected


def test_nothing_follows_logits_that_hold_nan() -> None:
    with pytest.raises(ModelError, match="the logits hold NaN"):
        accepted([5], [NOT_A_NUMBER, 5])


def started(pages: int = 8) -> tuple[FakeEngine, PagePool, PageTable]:
    """A sequence whose prompt has been computed, but for its last token."""
    engine = FakeEngine(pages=pages, page_len=4, rows=17)
    pool = PagePool(pages, 4)
    table = PageTable(pool)
    table.reserve(len(PROMPT) - 1)
    engine.set_table(1, table.pages)
    engine.step([Row(1, token, at, False) for at, token in enumerate(PROMPT[:-1])])
    return engine, pool, table


@pytest.mark.parametrize("agreeing", [0, 1, 3, 6])
def test_a_draft_is_verified_in_one_step_and_the_rest_is_rolled_back(agreeing: int) -> None:
    engine, pool, table = started()
    following = list(islice(engine.alone(PROMPT), 9))
    draft = [*following[:agreeing], *(31 - token for token in following[agreeing:6])]
    tokens = [*PROMPT, *verify(engine, 1, table, PROMPT, draft)]
    assert tokens == [*PROMPT, *following[: agreeing + 1]]
    assert len(engine.steps) == 2
    assert pool.held == pool.pages_for(len(tokens) - 1)
    assert verify(engine, 1, table, tokens, []) == [following[agreeing + 1]]


def test_a_draft_that_fails_leaves_the_sequence_as_it_was() -> None:
    engine, pool, table = started(pages=3)
    held = pool.held
    with pytest.raises(OutOfPages):
        verify(engine, 1, table, PROMPT, [0] * 5)
    engine.before_step = lambda rows: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        verify(engine, 1, table, PROMPT, [0] * 4)
    assert pool.held == held
    with pytest.raises(ArgumentError, match="the draft has 17 tokens; allowed: up to 16"):
        verify(engine, 1, table, PROMPT, [0] * 17)
