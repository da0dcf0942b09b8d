"""Steps that a scheduler starts before the tokens of the last one were read: the answers are those of one that waits."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from executor.base.errors import DeviceError
from executor.model.sampling import Sampler
from executor.model.scheduling.prompt_lookup import PromptLookup
from executor.model.scheduling.request import Request
from executor.model.step import Row
from tests.executor.model.fake_engine import FakeEngine, alone, fresh, greedy, rows_of_steps

LONG = list(range(30))


def test_while_all_decode_each_step_is_started_before_the_last_one_was_read() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)
    requests = [greedy(scheduler, LONG[at : at + 4], 5) for at in range(2)]
    scheduler.run()
    # The prompts' step is waited for, and nothing is started that would be one too many.
    assert engine.order == ["step", "read", "step", *["ahead", "read"] * 3, "read"]
    assert [request.tokens for request in requests] == [alone(engine, LONG[at : at + 4], 5) for at in range(2)]


def test_a_sequence_that_ends_leaves_a_row_that_does_not_count() -> None:
    engine, plain = FakeEngine(), FakeEngine(ahead=False)
    end = alone(engine, LONG[1:5], 4)[-1]
    seen = []
    for each in (engine, plain):
        scheduler = fresh(each)
        ended = scheduler.submit(LONG[1:5], max_tokens=9, stop_tokens=[end])
        other = greedy(scheduler, LONG[2:7], 9)
        scheduler.run()
        seen.append((ended.stopped, ended.tokens, other.tokens, scheduler.status(), scheduler.pool.held))
    assert seen[0] == seen[1]
    assert seen[0][0] == "eos"
    assert rows_of_steps(plain) == [9, 2, 2, 2, 1, 1, 1, 1, 1]
    assert rows_of_steps(engine) == [9, 2, 2, 2, 2, 1, 1, 1, 1]


def test_a_step_for_sequences_that_all_have_ended_is_thrown_away() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)
    end = alone(engine, LONG[:4], 3)[-1]
    first = scheduler.submit(LONG[:4], max_tokens=9, stop_tokens=[end]).result()
    assert (first.stopped, len(first.tokens), len(engine.steps)) == ("eos", 2, 4)
    assert (scheduler.status().steps, scheduler.status().rows) == (3, 6)
    assert list(greedy(scheduler, LONG[3:9], 4).result().tokens) == alone(engine, LONG[3:9], 4)


def test_a_cancelled_sequence_gets_no_more_tokens() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)
    requests = [greedy(scheduler, LONG[at : at + 4]) for at in range(2)]
    for _ in range(3):
        scheduler.step()
    requests[0].cancel()
    scheduler.run()
    assert [request.tokens for request in requests] == [alone(engine, LONG[:4], 3), alone(engine, LONG[1:5], 8)]


@pytest.mark.parametrize("slots", [4, 2])
def test_what_arrives_gets_its_rows_after_the_step_that_was_started(slots: int) -> None:
    engine = FakeEngine(slots=slots)
    scheduler = fresh(engine)
    requests = [greedy(scheduler, LONG[at : at + 4], 12) for at in range(2)]
    for _ in range(3):
        scheduler.step()
    late = greedy(scheduler, LONG[5:9], 3)
    scheduler.step()
    scheduler.step()
    assert len(late.tokens) == (slots > 2)
    scheduler.run()
    assert late.tokens == alone(engine, LONG[5:9], 3)
    assert [request.tokens for request in requests] == [alone(engine, LONG[at : at + 4], 12) for at in range(2)]


def test_steps_ahead_of_drawn_tokens_give_the_answers_of_steps_that_wait() -> None:
    def answers(*, ahead: bool) -> list[list[int]]:
        engine = FakeEngine(ahead=ahead)
        scheduler = fresh(engine)
        samplers = (Sampler(1.0, seed=1), Sampler(), Sampler(2.0, top_k=9, seed=2))
        requests = [greedy(scheduler, LONG[at : at + 4], 6 + 3 * at, sampler=one) for at, one in enumerate(samplers)]
        scheduler.run()
        assert ("ahead" in engine.order) == ahead
        return [request.tokens for request in requests]

    assert answers(ahead=True) == answers(ahead=False)


@pytest.mark.parametrize(("sampler", "draft"), [(Sampler(1.0, seed=1, presence_penalty=0.5), None), (Sampler(), PromptLookup)])
def test_no_step_is_started_ahead_of_tokens_that_the_host_draws_and_of_drafts(
    sampler: Sampler, draft: type[PromptLookup] | None
) -> None:
    engine = FakeEngine()
    scheduler = fresh(engine, draft=draft)
    requests = [greedy(scheduler, LONG[:4], sampler=each) for each in (sampler, Sampler())]
    requests[0].result()
    scheduler.run()
    assert "ahead" not in engine.order
    assert len(engine.steps) > 3


def test_a_step_ahead_that_fails_does_so_after_the_tokens_before_it_and_not_for_those_that_ended() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)
    end = alone(engine, LONG[:4], 3)[-1]
    ended = scheduler.submit(LONG[:4], max_tokens=9, stop_tokens=[end])
    other = greedy(scheduler, LONG[2:6])

    def fail(rows: Sequence[Row]) -> None:
        if len(engine.steps) == 3:
            raise DeviceError("no room")

    engine.before_step = fail
    scheduler.run()
    assert (ended.stopped, other.stopped) == ("eos", "failed")
    assert other.tokens == alone(engine, LONG[2:6], 3)
    assert scheduler.pool.held == 0


def test_an_interrupt_before_all_tokens_were_delivered_throws_the_next_step_away() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)

    def interrupt(token: int) -> None:
        if len(requests[0].tokens) == 3:
            raise KeyboardInterrupt

    requests = [greedy(scheduler, LONG[at : at + 4], on_token=None if at else interrupt) for at in range(3)]
    with pytest.raises(KeyboardInterrupt):
        scheduler.run()
    assert [len(request.tokens) for request in requests] == [3, 2, 2]
    scheduler.run()
    assert [request.tokens for request in requests] == [alone(engine, LONG[at : at + 4], 8) for at in range(3)]


def test_a_step_that_another_model_has_started_is_thrown_away() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)
    request = greedy(scheduler, LONG[:4])
    for _ in range(3):
        scheduler.step()
    engine.model = 1
    engine.order.clear()
    scheduler.step()
    assert engine.order == ["step", "ahead", "read"]
    assert list(request.result().tokens) == alone(engine, LONG[:4], 8)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_the_answers_are_those_of_a_scheduler_that_waits(seed: int) -> None:
    def answers(ahead: bool) -> list[object]:
        chance = random.Random(seed)
        engine = FakeEngine(slots=3, rows=6, pages=9 + seed % 8, context=32, ahead=ahead)
        scheduler = fresh(engine)
        requests: list[Request] = []
        for _ in range(12):
            prompt = [chance.randrange(30) for _ in range(chance.randrange(1, 9))]
            most, ends, cancelled = chance.randrange(1, 14), chance.choice([(), (31, 3, 9, 17)]), chance.randrange(14)
            sampler = chance.choice([Sampler(), Sampler(), Sampler(0.9, seed=7)])

            def on_token(token: int, number: int = len(requests), last: int = cancelled) -> None:
                if len(requests[number].tokens) == last:
                    requests[number].cancel()

            requests.append(scheduler.submit(prompt, max_tokens=most, sampler=sampler, stop_tokens=ends, on_token=on_token))
            for _ in range(chance.randrange(4)):
                scheduler.step()
        scheduler.run()
        assert scheduler.pool.held == 0
        return [(request.stopped, request.tokens, request.text) for request in requests]

    assert answers(True) == answers(False)
