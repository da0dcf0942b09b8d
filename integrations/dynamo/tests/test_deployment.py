"""A frontend and two workers as users start them: answers, streams, clients that leave, a worker that is killed and one that
is told to end. The tests run in this order: the last ones end workers."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deployment import KILL, TERM, Deployment, wait_until

from executor.device import open_device
from executor.model.generation import LanguageModel
from executor.serve.capacity import serving_scheduler

LONG = 250
"""Tokens of an answer that takes seconds."""


def said_alone(model: Path, kernels: Path, prompts: list[str], messages: list[dict[str, str]], tokens: int) -> list[str]:
    """What the model says without Dynamo, each prompt by itself, and last in a conversation."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PTXGEN_CACHE_DIR", str(kernels))
        patched.setenv("PTXGEN_BATCH_INVARIANT", "1")
        with (
            open_device("emulator") as device,
            LanguageModel.load(model, device) as loaded,
            serving_scheduler(loaded, 4, None, "f32") as scheduler,
        ):
            ids = [loaded.tokenizer.encode(prompt, add_special=False) for prompt in prompts] + [loaded.chat_ids(messages)]
            return [scheduler.submit(one, max_tokens=tokens, stop_tokens=()).result().text for one in ids]


def test_requests_at_once_are_answered_as_the_model_answers_alone(deployment: Deployment, model: Path, kernels: Path) -> None:
    prompts = [f"the other {letter}" for letter in "abcdefghijkl"]
    messages = [{"role": "user", "content": "the other"}]
    *expected, conversed = said_alone(model, kernels, prompts, messages, 12)
    said = deployment.ask("/v1/chat/completions", messages=messages, max_tokens=12)["choices"][0]
    assert said["message"]["content"] == conversed
    assert {worker.health for worker in deployment.workers} == {"ready"}
    before = [worker.metric("ptxrun_answer_tokens_total") for worker in deployment.workers]

    def ask(at: int) -> str:
        if at % 2:
            return "".join(deployment.stream(prompt=prompts[at], max_tokens=12))
        made = deployment.ask(prompt=prompts[at], max_tokens=12)
        assert made["usage"]["completion_tokens"] == 12
        assert made["choices"][0]["finish_reason"] == "length"
        return str(made["choices"][0]["text"])

    with ThreadPoolExecutor(len(prompts)) as clients:
        assert list(clients.map(ask, range(len(prompts)))) == expected
    shares = [worker.metric("ptxrun_answer_tokens_total") - had for worker, had in zip(deployment.workers, before, strict=True)]
    assert sum(shares) == 12 * len(prompts)
    assert min(shares) > 0


def test_a_stream_comes_piece_by_piece_with_probabilities_if_asked_for(deployment: Deployment) -> None:
    pieces = list(deployment.stream(prompt="the in", max_tokens=20))
    made = deployment.ask(prompt="the in", max_tokens=20, logprobs=2)
    assert len(pieces) >= 10
    assert "".join(pieces) == made["choices"][0]["text"]
    told = made["choices"][0]["logprobs"]
    assert len(told["token_logprobs"]) == 20
    for value, top in zip(told["token_logprobs"], told["top_logprobs"], strict=True):
        assert value == pytest.approx(max(top.values()))
        assert value < 0


def test_a_grammar_a_seed_and_a_stop_string_are_heeded_and_what_is_unknown_is_refused_by_name(deployment: Deployment) -> None:
    held = deployment.ask(prompt="the", max_tokens=20, guided_regex="(yes|no)!", ignore_eos=False)
    assert held["choices"][0]["text"] in ("yes!", "no!")
    assert deployment.ask(prompt="the", max_tokens=20, guided_choice=["a b", "c"])["choices"][0]["text"] in ("a b", "c")
    drawn = [deployment.ask(prompt="a", max_tokens=12, temperature=1, seed=seed)["choices"][0]["text"] for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    whole = deployment.ask(prompt="the", max_tokens=20)["choices"][0]["text"]
    # With ignore_eos Dynamo 1.6 ignores stop strings, too.
    cut = deployment.ask(prompt="the", max_tokens=20, stop=[whole[8:11]], ignore_eos=False)["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (whole[: whole.index(whole[8:11])], "stop")
    assert deployment.refused(prompt="the", min_tokens=2).startswith("min_tokens of stop_conditions is not supported")
    assert deployment.refused(prompt="the", n=2, temperature=1) == "n is 2; allowed with this worker: 1"
    assert "together up to 513" in deployment.refused(prompt="the", max_tokens=600)


def test_a_beginning_that_a_worker_has_brings_requests_back_to_it(deployment: Deployment) -> None:
    prompt = "on the inner other " * 10
    deployment.ask(prompt=prompt, max_tokens=1)
    time.sleep(3)  # what a worker has reaches the router by and by, and nothing there says that it has
    before = [worker.metric("ptxrun_answers_total") for worker in deployment.workers]

    def cached(at: int) -> int:
        made = deployment.ask(prompt=f"{prompt}{at}", max_tokens=1)
        return int(made["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert all(cached(at) >= 32 for at in range(6))
    after = [worker.metric("ptxrun_answers_total") for worker in deployment.workers]
    assert sorted(now - then for now, then in zip(after, before, strict=True)) == [0, 6]


def test_a_client_that_leaves_is_cancelled_at_once(deployment: Deployment) -> None:
    stream = deployment.stream(prompt="the", max_tokens=2 * LONG)
    next(stream)
    (worker,) = [worker for worker in deployment.workers if worker.answers]
    names = (("ptxrun_answers_total", 'stopped="cancelled"'), ("ptxrun_answers_total",), ("ptxrun_answer_tokens_total",))
    before = [worker.metric(*name) for name in names]
    stream.close()
    wait_until(lambda: not worker.answers, "it ends")
    cancelled, answers, tokens = (worker.metric(*name) - had for name, had in zip(names, before, strict=True))
    assert (cancelled, answers) == (1, 1)  # by our count: Dynamo's comes before or after it
    assert tokens < LONG
    assert worker.metric("ptxrun_pages_held") == 0


def test_requests_of_a_worker_that_is_killed_are_served_by_the_other(deployment: Deployment) -> None:
    prompts = [f"in the other {letter}" for letter in "abcd"]
    with ThreadPoolExecutor(len(prompts)) as clients:
        made = list(clients.map(lambda prompt: deployment.ask(prompt=prompt, max_tokens=LONG), prompts))
    expected = [one["choices"][0]["text"] for one in made]
    streams = [deployment.stream(prompt=prompt, max_tokens=LONG) for prompt in prompts]
    begun = [next(stream) for stream in streams]
    killed = next(worker for worker in deployment.workers if worker.answers)
    (other,) = [worker for worker in deployment.workers if worker is not killed]
    killed.process.send_signal(KILL)
    with ThreadPoolExecutor(len(streams)) as clients:
        rest = list(clients.map("".join, streams))
    assert [first + more for first, more in zip(begun, rest, strict=True)] == expected
    assert deployment.alive() == [other]
    assert deployment.ask(prompt="the", max_tokens=4)["usage"]["completion_tokens"] == 4


def test_a_worker_that_is_told_to_end_answers_to_the_end_first(deployment: Deployment) -> None:
    worker = deployment.alive()[-1]
    expected = deployment.ask(prompt="the", max_tokens=LONG)["choices"][0]["text"]
    stream = deployment.stream(prompt="the", max_tokens=LONG)
    text = next(stream)
    worker.process.send_signal(TERM)
    assert text + "".join(stream) == expected
    assert worker.process.wait(30) == 0
    assert "are cut off" not in worker.log.read_text()
