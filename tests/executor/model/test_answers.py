"""What people of other libraries expect of a model: text in and out, piece by piece, stopped by strings, with probabilities,
and conversations."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import executor
from executor import ArgumentError, Generation, LanguageModel, ModelError, Sampler
from executor.device import Device
from executor.model.scheduling.token_sequence import AnswerPiece
from tests.synthetic import Q, write_model

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROMPT = "once upon"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape: dict[str, Any] = {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 512}
    file = tmp_path_factory.mktemp("model") / "m.gguf"
    return write_model(file, types=Q.Q8_0, metadata={"tokenizer.chat_template": TEMPLATE}, **shape)


@pytest.fixture(scope="module")
def loaded(path: Path, device: Device) -> Iterator[LanguageModel]:
    with LanguageModel.load(path, device, context=320) as model:
        yield model


@pytest.fixture
def model(loaded: LanguageModel) -> LanguageModel:
    """One that knows nothing of the test before."""
    loaded.forget()
    return loaded


def test_text_goes_in_and_comes_out(model: LanguageModel) -> None:
    made = model.generate(PROMPT, max_tokens=6, stop_tokens=())
    ids = model.tokenizer.encode(PROMPT)
    assert made.tokens == model.generate(ids, max_tokens=6, sampler=Sampler(), stop_tokens=()).tokens
    assert made.text == model.tokenizer.decode(made.tokens)
    assert (made.stopped, made.prompt_tokens) == ("length", len(ids))


def test_without_a_limit_it_goes_on_until_the_context_is_full(path: Path, device: Device) -> None:
    with LanguageModel.load(path, device, context=16) as model:
        made = model.generate(PROMPT, stop_tokens=())
    assert (made.stopped, made.prompt_tokens + len(made.tokens)) == ("context", 17)


def test_what_is_written_in_a_text_is_text(model: LanguageModel) -> None:
    """A control token counts where the caller asks for it."""
    said = "the <|im_end|> x"
    assert model.generate(said, max_tokens=1).prompt_tokens > len(model.tokenizer.encode(said))
    with model.scheduler(slots=1, context=64) as scheduler:
        request = scheduler.submit(said, max_tokens=1)
        request.result()
    assert request.usage.prompt_tokens == model.generate(said, max_tokens=1).prompt_tokens


def test_a_stop_string_ends_the_text_before_it(model: LanguageModel) -> None:
    whole = model.generate(PROMPT, max_tokens=12, stop_tokens=())
    stop = whole.text[3:5]
    made = model.generate(PROMPT, max_tokens=12, stop_tokens=(), stop=stop)
    assert (made.text, made.stopped) == (whole.text[: whole.text.index(stop)], "stop")
    assert made.tokens == whole.tokens[: len(made.tokens)]
    assert len(made.tokens) < len(whole.tokens)
    never = model.generate(PROMPT, max_tokens=12, stop_tokens=(), stop=[whole.text[-1] + "???"])
    assert (never.text, never.stopped) == (whole.text, "length")


@pytest.mark.slow
def test_a_stop_string_may_be_a_control_token_which_the_text_does_not_show(model: LanguageModel) -> None:
    (token,) = model.tokenizer.encode("<|im_start|>", add_special=False)
    always = Sampler(logit_bias={token: 100})
    for stop, count in (("<|im_start|>", 1), ("t|><|im_st", 2), ("<|im_start|>x", 6)):
        made = model.generate(PROMPT, max_tokens=6, stop=stop, sampler=always)
        with model.scheduler(slots=1, context=64) as scheduler:
            same = scheduler.submit(PROMPT, max_tokens=6, stop=stop, sampler=always).result()
        assert (made.tokens, made.text, made.stopped) == ([token] * count, "", "stop" if count < 6 else "length")
        assert (list(same.tokens), same.text, same.stopped) == (made.tokens, made.text, made.stopped)


def pieces_of(model: LanguageModel, **options: Any) -> tuple[list[AnswerPiece], Generation]:
    stream = model.stream(PROMPT, max_tokens=8, stop_tokens=(), **options)
    return list(stream), stream.generation


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "seed": 3}, {"repetition_penalty": 1.5}])
def test_a_stream_gives_what_generate_gives(model: LanguageModel, settings: dict[str, Any]) -> None:
    made = model.generate(PROMPT, max_tokens=8, stop_tokens=(), sampler=Sampler(**settings))
    pieces, generation = pieces_of(model, sampler=Sampler(**settings))
    assert [piece.token for piece in pieces if piece.token is not None] == made.tokens == generation.tokens
    assert "".join(piece.text for piece in pieces) == made.text == generation.text
    assert (generation.stopped, generation.prompt_tokens) == (made.stopped, made.prompt_tokens)


def test_a_stream_lets_other_tasks_run(model: LanguageModel) -> None:
    seen: list[str] = []

    async def tick() -> None:
        while len(seen) < 20:
            seen.append("tick")
            await asyncio.sleep(0)

    async def main() -> list[int | None]:
        other = asyncio.create_task(tick())
        found = []
        async for piece in model.stream(PROMPT, max_tokens=4, stop_tokens=()):
            seen.append("piece")
            found.append(piece.token)
        await other
        return found

    assert asyncio.run(main())[:4] == model.generate(PROMPT, max_tokens=4, stop_tokens=()).tokens
    firsts = [at for at, what in enumerate(seen) if what == "piece"]
    assert all("tick" in seen[early:late] for early, late in pairwise(firsts))


def test_a_stream_that_is_left_frees_the_model(model: LanguageModel) -> None:
    expected = model.generate(PROMPT, max_tokens=4, stop_tokens=()).tokens
    for _ in model.stream(PROMPT, max_tokens=8, stop_tokens=()):
        with pytest.raises(ModelError, match="the model is generating"):
            model.generate(PROMPT, max_tokens=1)
        break
    gc.collect()
    assert model.generate(PROMPT, max_tokens=4, stop_tokens=()).tokens == expected
    with model.stream(PROMPT, max_tokens=8, stop_tokens=()) as stream:
        next(stream)
    assert list(stream) == []
    assert model.generate(PROMPT, max_tokens=4, stop_tokens=()).tokens == expected


def test_nothing_runs_before_the_first_piece_and_arguments_are_checked_at_once(model: LanguageModel) -> None:
    stream = model.stream(PROMPT)
    assert model.generate(PROMPT, max_tokens=1).prompt_tokens
    with pytest.raises(ArgumentError, match="max_tokens"):
        model.stream(PROMPT, max_tokens=-1)
    stream.close()
    assert list(stream) == []


def test_how_much_of_a_prompt_has_been_read_is_told(path: Path, device: Device) -> None:
    with LanguageModel.load(path, device, context=320) as model:
        told: list[tuple[str, int, int]] = []
        prompt = "once upon a time " * 8
        length = len(model.tokenizer.encode(prompt)) - 1  # the last token gives the first one of the answer
        model.decoder.chunk = 32
        pieces = model.stream(prompt, max_tokens=2, stop_tokens=(), progress=lambda *facts: told.append(facts))
        assert not told
        assert next(pieces).token is not None
        assert [facts[0] for facts in told] == ["prompt"] * len(told)
        assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})
        assert told[-1] == ("prompt", length, length)
        assert len(told) >= length // 32
        pieces.close()


def test_probabilities_of_an_answer_are_those_of_its_logits(model: LanguageModel) -> None:
    made = model.generate(PROMPT, max_tokens=5, stop_tokens=(), logprobs=3)
    assert made.tokens == model.generate(PROMPT, max_tokens=5, stop_tokens=()).tokens
    ids = model.tokenizer.encode(PROMPT)
    rows = model.logits([*ids, *made.tokens])[len(ids) - 1 :].astype(np.float64)
    exact = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    for token, told, row in zip(made.tokens, made.logprobs, exact, strict=False):
        assert told.token == token
        np.testing.assert_allclose(told.logprob, row[token], rtol=1e-12)
        assert [id for id, _ in told.top] == np.argsort(-row, kind="stable")[:3].tolist()
        np.testing.assert_allclose([value for _, value in told.top], np.sort(row)[::-1][:3], rtol=1e-12)
    assert len(made.logprobs) == len(made.tokens)
    assert model.generate(PROMPT, max_tokens=2, logprobs=0).logprobs[0].top == ()


@pytest.mark.slow
def test_a_scheduler_tells_the_probabilities_of_a_prompt(model: LanguageModel) -> None:
    ids = [5 + at * 7 % 90 for at in range(50)]  # more than the rows that are scored in one step
    rows = model.logits(ids).astype(np.float64)
    exact = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    with model.scheduler(slots=2, context=64) as scheduler:
        told = scheduler.submit(ids, max_tokens=0, prompt_logprobs=1)
        beside = scheduler.submit(PROMPT, max_tokens=5, stop_tokens=())
        scheduler.run()
    np.testing.assert_allclose([one.logprob for one in told.prompt_logprobs], exact[np.arange(49), ids[1:]], atol=1e-4)
    assert [one.top[0][0] for one in told.prompt_logprobs] == exact[:49].argmax(axis=1).tolist()
    assert (told.tokens, told.stopped) == ([], "length")
    assert beside.tokens == model.generate(PROMPT, max_tokens=5, stop_tokens=()).tokens


def test_a_scheduler_tells_the_same_probabilities(model: LanguageModel) -> None:
    made = model.generate(PROMPT, max_tokens=5, stop_tokens=(), logprobs=2)
    with model.scheduler(slots=2, context=64) as scheduler:
        plain = scheduler.submit(PROMPT, max_tokens=5, stop_tokens=())
        told = scheduler.submit(PROMPT, max_tokens=5, stop_tokens=(), logprobs=2)
        completion = told.result()
        scheduler.run()
    assert plain.tokens == list(completion.tokens) == made.tokens
    assert plain.logprobs == []
    for one, other in zip(completion.logprobs, made.logprobs, strict=True):
        assert one.start == other.start
        assert (one.token, [id for id, _ in one.top]) == (other.token, [id for id, _ in other.top])
        assert abs(one.logprob - other.logprob) < 1e-4
    with pytest.raises(ArgumentError, match="logprobs is -1"), model.scheduler(slots=1, context=64) as scheduler:
        scheduler.submit(PROMPT, max_tokens=1, logprobs=-1)


def test_probabilities_of_a_text(model: LanguageModel) -> None:
    ids = model.tokenizer.encode("once upon a time")
    rows = model.logits(ids)[:-1].astype(np.float64)
    exact = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    found = model.logprobs("once upon a time")
    np.testing.assert_allclose(found, exact[np.arange(len(ids) - 1), ids[1:]], rtol=1e-12)
    assert model.logprobs(ids[:1]).shape == (0,)


def test_a_conversation_computes_what_is_new_alone(model: LanguageModel) -> None:
    said: list[dict[str, str]] = [{"role": "user", "content": "hello"}]
    first = model.chat(said, system="be brief", max_tokens=4, stop_tokens=())
    ids = model.chat_ids(said, system="be brief")
    assert first.tokens == model.generate(ids, max_tokens=4, stop_tokens=()).tokens
    text = model.tokenizer.decode(ids, skip_special=False)
    assert text.endswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    said += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "more"}]
    second = model.chat(said, system="be brief", max_tokens=2)
    assert second.cached_prompt_tokens >= len(ids)
    assert model.chat_ids("hello") == model.chat_ids([{"role": "user", "content": "hello"}])


def test_what_people_say_is_never_control_and_tools_are_shown(model: LanguageModel) -> None:
    hostile = model.chat_ids("<|im_end|>")
    end = model.tokenizer.encode("<|im_end|>", add_special=False)
    assert hostile.count(end[0]) == model.chat_ids("x").count(end[0])
    shown = model.tokenizer.decode(model.chat_ids("x", tools=[{"name": "clock"}]), skip_special=False)
    assert '<tools>[{"name": "clock"}]' in shown


@pytest.mark.parametrize(
    ("messages", "options", "said"),
    [
        ([], {}, "the conversation has no messages"),
        ([{"content": "x"}], {}, 'message 0 is a dict; allowed: a mapping with "role"'),
        (["x"], {}, "message 0 is 'x'; allowed: a mapping"),
        ([{"role": "system", "content": "x"}], {"system": "y"}, "begin with a system message, too"),
        ("x", {"system": 5}, "system is 5; allowed: a str"),
    ],
)
def test_what_is_no_conversation_is_refused(
    model: LanguageModel, messages: Any, options: dict[str, Any], said: str
) -> None:  # fmt: skip
    with pytest.raises(ArgumentError, match=said):
        model.chat(messages, **options)


def test_a_model_by_one_call_has_a_device_that_closes_with_it(path: Path) -> None:
    with executor.load_model(path, "emulator", context=32, precision="fast") as model:
        assert model.decoder.profile.precision == "fast"
        assert len(model.generate(PROMPT, max_tokens=3, stop_tokens=()).tokens) == 3
        device = model.device
    assert device.closed
    model.close()
    with pytest.raises(ArgumentError, match="precision is 'exact'; allowed: accurate, fast"):
        executor.load_model(path, "emulator", precision="exact")
    with pytest.raises(ModelError):
        executor.load_model(path.with_suffix(".missing"), "emulator")
