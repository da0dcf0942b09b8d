"""Drafts in the steps of a scheduler: the same text in fewer steps, at no cost for anybody else."""

from __future__ import annotations

from collections.abc import Sequence

from executor.model.sampling import Sampler
from executor.model.scheduling.prompt_lookup import PromptLookup
from tests.executor.model.fake_engine import FakeEngine, alone, fresh, greedy

LONG = list(range(30))


def test_drafts_give_the_same_text_in_fewer_steps_and_are_counted() -> None:
    def repetitive(engine: FakeEngine) -> FakeEngine:
        engine.choose = lambda value: value % 2
        return engine

    results = []
    for draft in (None, PromptLookup):
        engine = repetitive(FakeEngine(rows=40, context=200, pages=120))
        scheduler = fresh(engine, draft=draft)
        requests = [greedy(scheduler, LONG[:4], 100), greedy(scheduler, LONG[4:9], 100, sampler=Sampler(1.0, seed=1))]
        ended = scheduler.submit(LONG[9:13], max_tokens=100, stop_tokens=[0])
        scheduler.run()
        results.append([request.tokens for request in (*requests, ended)])
        assert requests[0].tokens == alone(engine, LONG[:4], 100)
        assert scheduler.pool.held == 0
    assert results[0] == results[1]
    usage = requests[0].usage
    assert requests[1].usage.drafted_tokens == 0
    assert 0 < usage.accepted_tokens < usage.drafted_tokens
    steps = [rows for rows in engine.steps if any(row.slot == 0 for row in rows)]
    assert len(steps) == 100 - usage.accepted_tokens
    assert scheduler.status().accepted_tokens == usage.accepted_tokens + ended.usage.accepted_tokens


def test_drafts_take_no_row_from_a_prompt_and_no_page_from_a_sequence() -> None:
    engine = FakeEngine(rows=8, pages=6, page_len=4)
    engine.choose = lambda value: 1
    scheduler = fresh(engine, draft=PromptLookup)
    first = greedy(scheduler, [1] * 4, 8)
    scheduler.step()
    second = greedy(scheduler, LONG[:9], 3)
    scheduler.step()
    assert [row.position for row in engine.steps[-1]] == [4, *range(7)]
    scheduler.run()
    assert first.usage.preemptions == second.usage.preemptions == 0
    assert first.usage.accepted_tokens > 0


def test_a_draft_that_was_right_is_followed_by_a_longer_one_and_a_wrong_one_by_a_shorter_one() -> None:
    engine = FakeEngine(rows=40, context=200, pages=60)
    right = [True]

    class Oracle:
        def propose(self, tokens: Sequence[int], most: int) -> list[int]:
            return [token if right[0] else 31 - token for token in alone(engine, tokens, most)]

    scheduler = fresh(engine, draft=Oracle)
    greedy(scheduler, LONG[:4], 150)
    lengths = []
    for right[0] in (True, True, False, False, True, True, True, True, True, True):
        scheduler.step()
        lengths.append(len(engine.steps[-1]) - 1)
    assert lengths[1:] == [16, 16, 1, 1, 2, 4, 8, 16, 16]


def test_the_pages_of_a_draft_that_was_wrong_go_back() -> None:
    class Wrong:
        def propose(self, tokens: Sequence[int], most: int) -> list[int]:
            return [30] * most

    engine = FakeEngine(rows=20, page_len=4)
    scheduler = fresh(engine, draft=Wrong)
    request = greedy(scheduler, LONG[:4], 20)
    while scheduler.step():
        assert scheduler.pool.held <= scheduler.pool.pages_for(4 + len(request.tokens))
    assert request.tokens == alone(engine, LONG[:4], 20)
    assert request.usage.drafted_tokens == 16 + 17  # once as many as can be, then one a step


def test_a_drafter_that_raises_fails_its_own_request_only() -> None:
    class Broken:
        def propose(self, tokens: Sequence[int], most: int) -> list[int]:
            raise ZeroDivisionError

    engine = FakeEngine()
    scheduler = fresh(engine, draft=Broken)
    bad = greedy(scheduler, LONG[:4])
    good = greedy(scheduler, LONG[:4], sampler=Sampler(1.0))
    scheduler.run()
    assert (bad.stopped, good.stopped) == ("failed", "length")
