"""The scheduler over real kernels: answers are those of lone runs by bits, and nothing is lost or kept."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from executor.choice.choice import GpuProfile
from executor.device.protocol import Device
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from executor.model.scheduling.prompt_lookup import PromptLookup
from executor.model.scheduling.request import Request
from executor.model.scheduling.scheduler import Scheduler
from tests.synthetic import Q, write_model

VOCABULARY = 512
CONTEXT = 96
START = [11, 7, 300, 5] * 9
"""What some prompts begin with: a page and a bit."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Iterator[LanguageModel]:
    folder = tmp_path_factory.mktemp("model")
    path = write_model(folder / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=64, context=CONTEXT)
    with LanguageModel.load(path, device, context=CONTEXT, profile=GpuProfile()) as loaded:
        yield loaded


def scheduler(model: LanguageModel, **options: object) -> Scheduler:
    return model.scheduler(context=CONTEXT, rows=8, **options)  # type: ignore[arg-type]


def wishes(count: int) -> list[dict[str, object]]:
    """Prompts of several lengths, with equal beginnings among them, greedy and sampled."""
    chance = random.Random(7)
    made: list[dict[str, object]] = []
    for number in range(count):
        own = [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 12))]
        prompt = [*START[: chance.choice((0, 32, 36))], *own]
        sampler = Sampler() if chance.random() < 0.7 else Sampler(temperature=1.0, seed=number)
        made.append({"prompt": prompt, "max_tokens": chance.randrange(1, 12), "sampler": sampler, "seed": number})
    return made


@pytest.mark.slow
@pytest.mark.parametrize("count", [40])
def test_sequences_that_come_and_go_have_the_answers_of_their_lone_runs(model: LanguageModel, count: int) -> None:
    asked = wishes(count)
    with scheduler(model, slots=1) as alone:
        expected = [list(alone.submit(**wish).result().tokens) for wish in asked]  # type: ignore[arg-type]
    chance = random.Random(8)
    with scheduler(model, slots=3, pages=5, draft=PromptLookup) as together:
        requests: list[Request] = []
        while len(requests) < count or together.step():
            if len(requests) < count and chance.random() < 0.5:
                requests.append(together.submit(**asked[len(requests)]))  # type: ignore[arg-type]
            elif requests and chance.random() < 0.05:
                chance.choice(requests).cancel()
        for request, answer in zip(requests, expected, strict=True):
            if request.stopped == "cancelled":
                assert answer[: len(request.tokens)] == request.tokens
            else:
                assert request.tokens == answer
        assert together.status().pages_held == 0


def test_a_second_turn_computes_only_its_new_tokens(model: LanguageModel) -> None:
    with scheduler(model, slots=1) as running:
        first = running.submit(START, max_tokens=3).result()
        second = running.submit([*START, *first.tokens, 9], max_tokens=2)
        answer = second.result()
        assert second.usage.cached_prompt_tokens == 32
        running.pool.forget()
        assert running.submit([*START, *first.tokens, 9], max_tokens=2).result().tokens == answer.tokens


def test_another_profile_finds_no_pages_of_the_one_before(model: LanguageModel) -> None:
    with scheduler(model, slots=1) as running:
        running.submit(START, max_tokens=1).result()
        model.decoder.profile = GpuProfile("fast")
        try:
            request = running.submit(START, max_tokens=1)
            request.result()
        finally:
            model.decoder.profile = GpuProfile()
        assert request.usage.cached_prompt_tokens == 0


def test_a_scheduler_that_nobody_holds_gives_its_engine_s_memory_back(model: LanguageModel) -> None:
    model.generate([1, 2, 3], max_tokens=1, sampler=Sampler())
    model.device.synchronize()
    before = model.device.memory().allocated
    for _ in range(2):
        with scheduler(model, slots=1) as running:
            running.submit([1, 2, 3], max_tokens=2).result()
        del running
        model.device.synchronize()
        assert model.device.memory().allocated == before
