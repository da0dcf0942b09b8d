"""Many sequences that come and go over too few pages: each answers what it answers alone, and no page is left behind."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import pytest

from executor.model.sampling import Sampler
from executor.model.scheduling.prompt_lookup import PromptLookup
from executor.model.scheduling.request import Request
from executor.model.scheduling.scheduler import Scheduler
from executor.model.scheduling.token_sequence import Stopped
from tests.executor.model.fake_engine import FakeEngine, Letters

CONTEXT = 40


@dataclass(frozen=True)
class Wish:
    """What is asked of a scheduler; `sampling`: by a sampler with this seed."""

    prompt: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...]
    sampling: int | None


def wish(random_: random.Random) -> Wish:
    """Many prompts begin alike, some are all alike."""
    first = random_.randrange(3)
    prompt = [first, *[first] * random_.choice((0, 0, 4, 8, 16)), *random_.choices(range(3), k=random_.randrange(10))]
    stop = random_.choice(((), (), ("a",), ("bc", "aab"), ("ca",)))
    return Wish(tuple(prompt), random_.randint(1, 30), stop, random_.randrange(4) if random_.random() < 0.1 else None)


def engine(**options: Any) -> FakeEngine:
    """Half of its tokens are of three, so that texts repeat; 31 ends an answer."""
    fake = FakeEngine(context=CONTEXT, page_len=4, **options)
    fake.choose = lambda value: 31 if value % 41 == 0 else value % 3 if value % 2 else value % 29
    return fake


def submit(scheduler: Scheduler, wish: Wish, **options: Any) -> Request:
    sampler = Sampler() if wish.sampling is None else Sampler(1.0, top_k=3, seed=wish.sampling)
    return scheduler.submit(wish.prompt, max_tokens=wish.max_tokens, stop=wish.stop, sampler=sampler, **options)


@lru_cache(None)
def alone(wish: Wish) -> tuple[tuple[int, ...], str, Stopped]:
    """What it answers on an engine of its own."""
    result = submit(Scheduler(engine(rows=CONTEXT), Letters()), wish).result()
    if wish.sampling is None and not wish.stop:
        expected = list(islice(engine().alone(wish.prompt), len(result.tokens)))
        assert list(result.tokens) == expected
    return result.tokens, result.text, result.stopped


@pytest.mark.parametrize(
    ("sequences", "pages"),
    [(150, {"pages": 20}), (1000, {"pages": 20}), (600, {"pages": 30, "window": 5, "window_pages": 25})],
    ids=["150", "1000", "with windows"],
)
def test_sequences_come_and_go_and_each_answers_as_alone(sequences: int, pages: dict[str, int]) -> None:
    random_ = random.Random(3)
    wishes = [wish(random_) for _ in range(sequences // 5)]
    fake = engine(slots=6, rows=14, **pages)
    scheduler = Scheduler(fake, Letters(), prompt_rows=9, draft=PromptLookup)
    asked: list[tuple[Wish, Request, list[int]]] = []
    alive: list[Request] = []
    cancelled = 0
    while len(asked) < sequences or scheduler.status().queued or scheduler.status().running:
        for _ in range(random_.choice((0, 0, 1, 3)) if len(asked) < sequences and len(alive) < 20 else 0):
            wanted, seen = random_.choice(wishes), list[int]()
            alive.append(submit(scheduler, wanted, on_token=seen.append))
            asked.append((wanted, alive[-1], seen))
        if alive and random_.random() < 0.03:
            cancelled += random_.choice(alive).cancel()
        scheduler.step()
        alive = [request for request in alive if request.state != "finished"]
    reasons = Counter(request.stopped for _, request, _ in asked)
    status = scheduler.status()
    assert (status.pages_held, status.queued, status.running) == (0, 0, 0)
    assert reasons["cancelled"] == cancelled > 0
    assert min(reasons[reason] for reason in ("eos", "stop", "length", "context")) > 0
    assert status.accepted_tokens > sequences // 40
    assert status.preemptions > (sequences // 40 if fake.window is None else 0)
    assert scheduler.pool.window is None or scheduler.pool.window.held == 0
    assert sum(request.usage.cached_prompt_tokens for _, request, _ in asked) > sequences
    for wanted, request, seen in asked:
        tokens, text, stopped = alone(wanted)
        assert seen == request.tokens
        if request.stopped == "cancelled":
            assert request.tokens == list(tokens[: len(request.tokens)])
        else:
            assert (tuple(request.tokens), request.text, request.stopped) == (tokens, text, stopped)
