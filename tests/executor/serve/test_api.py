"""What the endpoints say, by OpenAI's own client, over an engine that computes almost nothing."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from itertools import islice, pairwise
from typing import Any
from zlib import crc32

import numpy as np
import openai
import pytest

from executor.model.logprobs import token_logprob
from executor.model.sampling import Sampler
from executor.model.step import Row
from executor.text.tokenizer import Tokenizer
from tests.executor.model.fake_engine import FakeEngine
from tests.executor.serve.local import CONTEXT, NAME, VOCABULARY, Local, run

CHAT: Any = [{"role": "user", "content": "hello"}]
GREEDY: Any = {"model": NAME, "temperature": 0}


def test_completions_are_what_the_engine_says_alone(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        ids = tokenizer.encode("once")
        made = await local.client.completions.create(prompt="once", max_tokens=6, **GREEDY)
        assert made.choices[0].text == local.alone(ids, 6)
        assert (made.choices[0].finish_reason, made.model, made.object) == ("length", NAME, "text_completion")
        assert made.usage is not None
        assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (len(ids), 6)
        assert made.usage.total_tokens == len(ids) + 6
        default = await local.client.completions.create(prompt=[5, 6, 7], **GREEDY)
        assert default.choices[0].text == local.alone([5, 6, 7], 16)
        many = await local.client.completions.create(prompt=["once", "upon"], n=2, max_tokens=3, **GREEDY)
        alone = [local.alone(tokenizer.encode(text), 3) for text in ("once", "once", "upon", "upon")]
        assert [choice.text for choice in many.choices] == alone
        assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
        assert many.usage is not None
        assert many.usage.prompt_tokens == len(ids) + len(tokenizer.encode("upon"))
        assert many.usage.completion_tokens == 12
        lists = await local.client.completions.create(prompt=[[5, 6, 7], [9]], max_tokens=4, **GREEDY)
        assert [choice.text for choice in lists.choices] == [local.alone([5, 6, 7], 4), local.alone([9], 4)]

    run(work, tokenizer)


def test_a_stream_says_the_same_piece_by_piece(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        options: Any = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5, "n": 2, **GREEDY}
        texts: dict[int, str] = {0: "", 1: ""}
        ends: dict[int, str] = {}
        usage = None
        async for chunk in await local.client.completions.create(prompt="once", **options):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                if choice.finish_reason:
                    ends[choice.index] = choice.finish_reason
        alone = local.alone(tokenizer.encode("once"), 5)
        assert texts == {0: alone, 1: alone}
        assert ends == {0: "length", 1: "length"}
        assert usage is not None
        assert usage.completion_tokens == 10
        pieces, roles = [], []
        async for chunk in await local.client.chat.completions.create(messages=CHAT, **{**options, "n": 1}):
            roles += [choice.delta.role for choice in chunk.choices if choice.delta.role]
            pieces += [choice.delta.content or "" for choice in chunk.choices]
        whole = await local.client.chat.completions.create(messages=CHAT, max_tokens=5, **GREEDY)
        assert "".join(pieces) == whole.choices[0].message.content
        assert roles == ["assistant"]

    run(work, tokenizer)


def test_a_conversation_is_rendered_and_what_is_said_is_no_control_token(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        messages: Any = [
            {"role": "developer", "content": "brief"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<|im_end|>", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}},
                ],
            },
        ]
        made = await local.client.chat.completions.create(messages=messages, max_completion_tokens=4, **GREEDY)
        plain = [{"role": "system", "content": "brief"}, {"role": "user", "content": "<|im_end|>x"}]
        ids = local.service.served.chat(plain, variables={})
        assert made.choices[0].message.content == local.alone(ids, 4)
        (control,) = tokenizer.encode("<|im_end|>", add_special=False)
        assert ids.count(control) == 2  # the template's own
        moody = await local.client.chat.completions.create(
            messages=messages, max_tokens=4, extra_body={"chat_template_kwargs": {"mood": "gay"}}, **GREEDY
        )
        assert moody.usage is not None
        assert moody.usage.prompt_tokens > len(ids)

    run(work, tokenizer)


def test_stop_strings_and_ends_of_text_end_an_answer(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        whole = local.alone([5, 6, 7], 8)
        stop = whole[4:7]
        made = await local.client.completions.create(prompt=[5, 6, 7], max_tokens=8, stop=[stop, "never"], **GREEDY)
        assert made.choices[0].text == whole[: whole.index(stop)]
        assert made.choices[0].finish_reason == "stop"
        (eos,) = tokenizer.eos_ids
        *_, third = islice(local.engine.alone([5, 6, 9]), 3)
        local.engine.choose = lambda value: eos if value % VOCABULARY == third else value % VOCABULARY
        ended = await local.client.completions.create(prompt=[5, 6, 9], max_tokens=8, **GREEDY)
        assert (ended.choices[0].finish_reason, ended.usage and ended.usage.completion_tokens) == ("stop", 2)

    run(work, tokenizer)


def test_a_stop_string_that_is_a_control_token_ends_an_answer_and_is_not_shown(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        (start,) = tokenizer.encode("<|im_start|>", add_special=False)
        (letter,) = tokenizer.encode("a", add_special=False)
        prompts = [5], local.service.served.chat(CHAT, variables={})
        seconds = {crc32(np.array([*prompt, letter]).tobytes()) for prompt in prompts}
        local.engine.choose = lambda value: start if value in seconds else letter
        for stop in ("<|im_start|>", "a<|im_start|>"):
            asked: Any = {"max_tokens": 9, "stop": ["never", stop], **GREEDY}
            made = await local.client.completions.create(prompt=[5], **asked)
            said = await local.client.chat.completions.create(messages=CHAT, **asked)
            expected = ("a" if stop[0] == "<" else "", "stop")
            assert (made.choices[0].text, made.choices[0].finish_reason) == expected
            assert (said.choices[0].message.content, said.choices[0].finish_reason) == expected
            text, finish = "", None
            async for chunk in await local.client.completions.create(prompt=[5], stream=True, **asked):
                text, finish = text + chunk.choices[0].text, chunk.choices[0].finish_reason
            assert (text, finish) == expected

    run(work, tokenizer)


def test_ignore_eos_goes_on(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        (eos,) = tokenizer.eos_ids
        local.engine.choose = lambda value: eos
        made = await local.client.completions.create(prompt=[5], max_tokens=3, extra_body={"ignore_eos": True}, **GREEDY)
        assert made.usage is not None
        assert made.usage.completion_tokens == 3

    run(work, tokenizer)


def test_probabilities_are_told_and_add_up(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        made = await local.client.chat.completions.create(messages=CHAT, max_tokens=3, logprobs=True, top_logprobs=20, **GREEDY)
        assert made.choices[0].logprobs is not None
        content = made.choices[0].logprobs.content
        assert content is not None
        assert len(content) == 3
        for token in content:
            assert token.logprob == token.top_logprobs[0].logprob
            assert 0 < sum(math.exp(top.logprob) for top in token.top_logprobs) < 1
            assert bytes(token.bytes or []).decode(errors="replace") == token.token
        streamed: list[Any] = []
        async for chunk in await local.client.chat.completions.create(
            messages=CHAT, max_tokens=3, logprobs=True, stream=True, **GREEDY
        ):
            for choice in chunk.choices:
                streamed += (choice.logprobs.content or []) if choice.logprobs else []
        assert [token.logprob for token in streamed] == [token.logprob for token in content]
        text = await local.client.completions.create(prompt=[5, 6], max_tokens=4, logprobs=2, **GREEDY)
        told = text.choices[0].logprobs
        assert told is not None
        assert told.tokens is not None
        assert told.text_offset is not None
        assert [len(told.tokens), len(told.token_logprobs or []), len(told.text_offset)] == [4, 4, 4]
        assert told.text_offset[1] == len(told.tokens[0])
        assert all(len(top) == 2 for top in told.top_logprobs or [])

    run(work, tokenizer)


def test_offsets_of_tokens_are_places_in_the_text(tokenizer: Tokenizer) -> None:
    """Each byte of a character is a token, and a control token is no part of the text."""

    async def work(local: Local) -> None:
        ids = {tokenizer.token_bytes(index): index for index in reversed(range(tokenizer.vocab_size))}
        (control,) = tokenizer.encode("<|im_start|>", add_special=False)
        said = [*(ids[bytes([byte])] for byte in "a\u20ac".encode()), control, ids[b"b"], ids[b"c"], ids[b"d"]]
        following = {crc32(np.array([5, *said[:at]]).tobytes()): token for at, token in enumerate(said)}
        local.engine.choose = lambda value: following.get(value, 0)
        asked: Any = {"prompt": [5], "max_tokens": 8, "logprobs": 0, **GREEDY}
        for stop, text, expected in (
            (None, "a\u20acbcd", [0, 1, 1, 1, 2, 2, 3, 4]),
            ("bcd", "a\u20ac", [0, 1, 1, 1, 2, 2, 2, 2]),
        ):
            made = (await local.client.completions.create(stop=stop, **asked)).choices[0]
            assert (made.text, made.logprobs and made.logprobs.text_offset) == (text, expected)
            streamed = ""
            offsets: list[int] = []
            async for chunk in await local.client.completions.create(stop=stop, stream=True, **asked):
                streamed += chunk.choices[0].text
                offsets += (chunk.choices[0].logprobs and chunk.choices[0].logprobs.text_offset) or []
                assert all(offset <= len(streamed) for offset in offsets)
            assert (streamed, offsets) == (text, expected)

    run(work, tokenizer)


def test_an_echo_begins_with_the_prompt_and_its_probabilities(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        ids = tokenizer.encode("once upon a \u20ac", parse_special=False)
        asked: Any = {"prompt": ["once upon a \u20ac", "x"], "echo": True, "logprobs": 2, **GREEDY}
        plain = await local.client.completions.create(prompt=ids, max_tokens=3, **GREEDY)
        for count in (0, 3):
            made = await local.client.completions.create(max_tokens=count, **asked)
            choice = made.choices[0]
            assert choice.text == "once upon a \u20ac" + plain.choices[0].text * bool(count)
            assert (choice.finish_reason, made.usage and made.usage.completion_tokens) == ("length", 2 * count)
            same = await local.client.completions.create(**asked | {"prompt": ids, "max_tokens": count})
            assert (same.choices[0].text, same.choices[0].logprobs) == (choice.text, choice.logprobs)
            told = choice.logprobs
            assert told is not None
            assert told.tokens is not None
            assert told.token_logprobs is not None
            assert told.text_offset is not None
            assert told.top_logprobs is not None
            assert (told.token_logprobs[0], told.top_logprobs[0]) == (None, None)
            assert len(told.tokens) == len(told.token_logprobs) == len(told.text_offset) == len(ids) + count
            for at in range(1, len(ids)):  # as likely as the engine says after those before it, whatever steps they were in
                local.engine.set_table(0, range(16))
                local.engine.memory[:16] = 0
                scores = local.engine.step([Row(0, token, place, True) for place, token in enumerate(ids[:at])])
                assert told.token_logprobs[at] == token_logprob(scores.logits(at - 1), ids[at], 0).logprob
            spans = list(zip(told.text_offset, [*told.text_offset[1:], len(choice.text)], strict=True))
            words = [choice.text[start:end] for start, end in spans[: len(ids)]]
            assert words == [
                tokenizer.decode([token]) if "\ufffd" not in tokenizer.decode([token]) else words[at]
                for at, token in enumerate(ids)
            ]
            text, parts = "", 0
            async for chunk in await local.client.completions.create(max_tokens=count, stream=True, **asked):
                if chunk.choices[0].index == 0:
                    text += chunk.choices[0].text
                    parts += len((chunk.choices[0].logprobs and chunk.choices[0].logprobs.tokens) or [])
            assert (text, parts) == (choice.text, len(told.tokens))
        silent = await local.client.completions.create(prompt="once", max_tokens=0, model=NAME)
        assert (silent.choices[0].text, silent.choices[0].finish_reason, silent.choices[0].logprobs) == ("", "length", None)

    run(work, tokenizer)


@pytest.mark.parametrize(
    ("given", "sampler"),
    [
        ({"temperature": 0.7, "top_p": 0.9, "seed": 5}, Sampler(0.7, top_p=0.9, seed=5)),
        ({"seed": -3, "presence_penalty": 1.5}, Sampler(1.0, seed=2**64 - 3, presence_penalty=1.5)),
        ({"temperature": 0, "frequency_penalty": 2}, Sampler(0.0, frequency_penalty=2)),
        ({"temperature": 1.5, "top_p": 0}, Sampler(0.0)),
        ({"temperature": 1.5, "top_p": 0, "frequency_penalty": 2}, Sampler(0.0, frequency_penalty=2)),
        ({"temperature": 0, "logit_bias": {"44": 100, "45": -100}}, Sampler(0.0, logit_bias={44: 100, 45: -math.inf})),
        ({"temperature": 1, "seed": 1, "extra_body": {"top_k": 4, "min_p": 0.1}}, Sampler(1.0, top_k=4, min_p=0.1, seed=1)),
        (
            {"seed": 1, "extra_body": {"typical_p": 0.5, "repetition_penalty": 1.5}},
            Sampler(1.0, typical_p=0.5, repetition_penalty=1.5, seed=1),
        ),
    ],
)
def test_settings_of_the_sampler_count(tokenizer: Tokenizer, given: Any, sampler: Sampler) -> None:
    """The answer is the one that the scheduler gives with that sampler."""

    async def work(local: Local) -> None:
        made = await local.client.completions.create(model=NAME, prompt=[5, 6, 7], max_tokens=12, **given)
        again = await local.client.completions.create(model=NAME, prompt=[5, 6, 7], max_tokens=12, **given)
        tokens: list[int] = []
        for _ in range(12):
            local.engine.set_table(0, range(8))
            rows = [Row(0, token, at, True) for at, token in enumerate([5, 6, 7, *tokens])]
            scores = local.engine.step(rows)
            tokens.append(sampler.sample(scores.logits(len(rows) - 1), [5, 6, 7], tokens))
        assert made.choices[0].text == again.choices[0].text == tokenizer.decode(tokens)

    run(work, tokenizer)


def test_each_of_n_answers_is_drawn_with_the_next_seed(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        three = await local.client.completions.create(model=NAME, prompt=[5], n=3, seed=7, max_tokens=8)
        single = [await local.client.completions.create(model=NAME, prompt=[5], seed=seed, max_tokens=8) for seed in (7, 8, 9)]
        assert [choice.text for choice in three.choices] == [one.choices[0].text for one in single]
        assert len({choice.text for choice in three.choices}) == 3

    run(work, tokenizer)


def test_an_answer_has_the_form_that_is_asked_for(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        schema = {"type": "object", "properties": {"x": {"enum": [1, "a"]}}, "required": ["x"], "additionalProperties": False}
        form: Any = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema, "strict": True}}
        made = await local.client.chat.completions.create(messages=CHAT, response_format=form, max_tokens=40, **GREEDY)
        assert json.loads(made.choices[0].message.content or "")["x"] in (1, "a")
        assert made.choices[0].finish_reason == "stop"
        anything: Any = {"type": "json_object"}
        begun = await local.client.chat.completions.create(messages=CHAT, response_format=anything, max_tokens=4, **GREEDY)
        assert (begun.choices[0].message.content or "").startswith("{")
        free: Any = {"type": "text"}
        plain = await local.client.chat.completions.create(messages=CHAT, response_format=free, max_tokens=4, **GREEDY)
        assert plain.choices[0].message.content == local.alone(local.service.served.chat(CHAT, variables={}), 4)

    run(work, tokenizer)


def test_texts_become_vectors_in_both_encodings(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        made = await local.client.embeddings.create(model=NAME, input=["a", "the"])  # the client asks for base64
        assert [one.embedding for one in made.data] == [[1.0] * 4, [3.0] * 4]
        ids = await local.client.embeddings.create(model=NAME, input=[[5, 6], [7]])
        assert [one.embedding for one in ids.data] == [[2.0] * 4, [1.0] * 4]
        one = await local.client.embeddings.create(model=NAME, input=[5, 6, 7])
        assert ([one.data[0].embedding], one.usage.prompt_tokens) == ([[3.0] * 4], 3)
        plain = await local.client.embeddings.create(model=NAME, input="the", encoding_format="float")
        assert plain.data[0].embedding == [3.0] * 4
        assert made.usage.prompt_tokens == len(tokenizer.encode("a")) + len(tokenizer.encode("the"))

    run(work, tokenizer)


def test_embeddings_and_answers_run_side_by_side(tokenizer: Tokenizer) -> None:
    order: list[str] = []

    def embed(text: str) -> Any:
        order.append("text")
        return np.zeros(2, np.float32)

    async def work(local: Local) -> None:
        def step(rows: object) -> None:
            order.append("step")
            time.sleep(0.002)

        local.engine.before_step = step
        answer = asyncio.create_task(local.client.completions.create(prompt=[5], max_tokens=100, **GREEDY))
        while not order:
            await asyncio.sleep(0.001)
        await local.client.embeddings.create(model=NAME, input=["a"] * 10)
        assert not answer.done()
        assert order.count("text") == 10
        assert ("text", "text") not in pairwise(order)
        assert (await answer).choices[0].text == local.alone([5], 100)

    run(work, tokenizer, embed=embed)


def test_the_model_is_listed(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        listed = [model async for model in local.client.models.list()]
        assert [(model.id, model.object) for model in listed] == [(NAME, "model")]
        assert (await local.client.models.retrieve(NAME)).id == NAME
        with pytest.raises(openai.NotFoundError, match="there is no model other; allowed: tiny"):
            await local.client.models.retrieve("other")

    run(work, tokenizer)


def test_a_path_with_a_slash_at_its_end_is_the_one_without(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        for path in ("/health", "/metrics", "/v1/models", f"/v1/models/{NAME}"):
            plain, slashed = await local.http.get(path), await local.http.get(path + "/")
            assert (slashed.status_code, slashed.headers["content-type"]) == (200, plain.headers["content-type"])
            assert path == "/metrics" or slashed.content == plain.content
        body = {"prompt": [5], "max_tokens": 2, "temperature": 0}
        plain, slashed = await local.post("/v1/completions", body), await local.post("/v1/completions/", body)
        assert slashed.json()["choices"] == plain.json()["choices"]
        assert (await local.http.get("/nothing/")).status_code == 404

    run(work, tokenizer)


def test_what_is_counted_adds_up(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        made = [await local.client.completions.create(prompt=[5, at], max_tokens=3, n=2, **GREEDY) for at in range(4)]
        text = (await local.http.get("/metrics")).text
        numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        answered = sum(one.usage.completion_tokens for one in made if one.usage)
        assert float(numbers["ptxrun_answer_tokens_total"]) == answered == 24
        assert float(numbers["ptxrun_prompt_tokens_total"]) == 16
        assert float(numbers['ptxrun_answers_total{stopped="length"}']) == 8
        assert float(numbers['ptxrun_requests_total{endpoint="/v1/completions",status="200"}']) == 4
        assert float(numbers["ptxrun_steps_total"]) > 0
        assert float(numbers["ptxrun_places_taken"]) == 0

    run(work, tokenizer)


REFUSED: list[tuple[str, Any, str, str | None]] = [
    ("completions", {}, "prompt is missing; allowed: text, token ids", "prompt"),
    ("completions", {"prompt": 5}, "prompt is 5; allowed: text, token ids", "prompt"),
    ("completions", {"prompt": []}, "prompt is a list of 0; allowed: text, token ids", "prompt"),
    ("completions", {"prompt": ["a", 5]}, r"prompt\[1\] is 5; allowed for prompt: text, token ids", "prompt"),
    ("completions", {"prompt": [[5], "a"]}, r"prompt\[1\] is 'a'; allowed for prompt", "prompt"),
    ("completions", {"prompt": [[5], []]}, r"prompt\[1\] has no tokens", "prompt"),
    ("completions", {"prompt": "\ud800"}, "the text is not Unicode", "prompt"),
    ("completions", {"prompt": [5, "a"]}, "token 1 of prompt is 'a'", "prompt"),
    ("completions", {"prompt": [VOCABULARY]}, f"the vocabulary has ids 0 to {VOCABULARY - 1}", "prompt"),
    ("completions", {"prompt": "a", "max_token": 5}, "there is no parameter max_token; allowed: .*max_tokens", "max_token"),
    ("completions", {"prompt": "a", "max_tokens": -1}, "max_tokens is -1; allowed: a whole number of at least 0", "max_tokens"),
    ("completions", {"prompt": "a", "max_tokens": CONTEXT + 1}, "the prompt has 2 tokens and the answer may", "max_tokens"),
    ("completions", {"prompt": [5] * (CONTEXT + 1)}, f"the prompt has 257 tokens; allowed: up to {CONTEXT}", "prompt"),
    ("completions", {"prompt": "a", "temperature": 3}, "temperature is 3; allowed: a finite number from 0 to 2", "temperature"),
    ("completions", {"prompt": "a", "temperature": True}, "temperature is True", "temperature"),
    ("completions", {"prompt": "a", "top_p": -0.1}, "top_p is -0.1; allowed: a finite number from 0 to 1", "top_p"),
    ("completions", {"prompt": "a", "top_p": 1.1}, "top_p is 1.1; allowed: a finite number from 0 to 1", "top_p"),
    ("completions", {"prompt": "a", "typical_p": 0}, "typical_p is 0.0; allowed: above 0", "typical_p"),
    (
        "completions",
        {"prompt": "a", "repetition_penalty": 0},
        "repetition_penalty is 0.0; allowed: above 0",
        "repetition_penalty",
    ),
    ("completions", {"prompt": "a", "min_p": 2}, "min_p is 2; allowed: a finite number from 0 to 1", "min_p"),
    ("completions", {"prompt": "a", "top_k": -1}, "top_k is -1; allowed", "top_k"),
    (
        "completions",
        {"prompt": "a", "presence_penalty": 2.1},
        "presence_penalty is 2.1; allowed: .* -2 to 2",
        "presence_penalty",
    ),
    ("completions", {"prompt": "a", "frequency_penalty": -3}, "frequency_penalty is -3; allowed", "frequency_penalty"),
    ("completions", {"prompt": "a", "seed": 1.5}, "seed is 1.5; allowed", "seed"),
    ("completions", {"prompt": "a", "n": 129}, "n is 129; allowed: a whole number from 1 to 128", "n"),
    ("completions", {"prompt": "a", "n": 0}, "n is 0; allowed", "n"),
    ("completions", {"prompt": ["a"] * 100, "n": 2}, "100 prompts with n 2 are too many; allowed: up to 128 answers", "n"),
    ("completions", {"prompt": "a", "n": 30}, "the request asks for 30 answers at once; allowed: up to 20", "n"),
    ("completions", {"prompt": "a", "stop": ""}, "stop is ''; allowed: text of at least one character", "stop"),
    ("completions", {"prompt": "a", "stop": ["x"] * 17}, "stop is a list; allowed", "stop"),
    ("completions", {"prompt": "a", "echo": 1}, "echo is 1; allowed: true or false", "echo"),
    ("completions", {"prompt": "a", "best_of": 4}, "best_of is not supported", "best_of"),
    ("completions", {"prompt": "a", "suffix": "b"}, "suffix is not supported", "suffix"),
    ("completions", {"prompt": "a", "logprobs": 21}, "logprobs is 21; allowed: a whole number from 0 to 20", "logprobs"),
    ("completions", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias names token x; allowed", "logit_bias"),
    ("completions", {"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias is 101; allowed: numbers from -100", "logit_bias"),
    ("completions", {"prompt": "a", "stream": 1}, "stream is 1; allowed: true or false", "stream"),
    ("completions", {"prompt": "a", "stream_options": {}}, "stream_options goes with stream: true", "stream_options"),
    ("completions", {"prompt": "a", "model": "other"}, "there is no model other; allowed: tiny", "model"),
    ("completions", ["a"], "the body is a list; allowed: a JSON object", None),
    ("chat/completions", {}, "messages is missing", "messages"),
    ("chat/completions", {"messages": []}, "messages is a list of 0; allowed", "messages"),
    ("chat/completions", {"messages": ["a"]}, r"messages\[0\] is 'a'; allowed: a JSON object", "messages[0]"),
    (
        "chat/completions",
        {"messages": [{"role": "boss", "content": "a"}]},
        "role is 'boss'; allowed: system",
        "messages[0].role",
    ),
    ("chat/completions", {"messages": [{"role": "user"}]}, "content is None; allowed: text", "messages[0].content"),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "is of type image_url; allowed",
        "messages[0].content[0]",
    ),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "color": "red"}]}]},
        r"there is no parameter messages\[0\]\.content\[0\]\.color; allowed: type, text",
        "messages[0].content[0].color",
    ),
    ("chat/completions", {"messages": [{"role": "user", "content": []}]}, "allowed: text, or a list", "messages[0].content"),
    ("chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}, "the text is not Unicode", "messages"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a " * 400}]}, "allowed: up to 256", "messages"),
    ("chat/completions", {"messages": CHAT, "max_tokens": 0}, "max_tokens is 0; allowed: .* at least 1", "max_tokens"),
    ("chat/completions", {"messages": CHAT, "top_logprobs": 21, "logprobs": True}, "from 0 to 20", "top_logprobs"),
    ("chat/completions", {"messages": CHAT, "max_completion_tokens": 999}, "the answer may have 999", "max_completion_tokens"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a", "x": 1}]}, "there is no parameter", "messages[0].x"),
    (
        "chat/completions",
        {"messages": CHAT, "max_tokens": 1, "max_completion_tokens": 2},
        "differ; give one",
        "max_completion_tokens",
    ),
    ("chat/completions", {"messages": CHAT, "top_logprobs": 2}, "top_logprobs goes with logprobs: true", "top_logprobs"),
    (
        "chat/completions",
        {"messages": CHAT, "reasoning_effort": "low"},
        "reasoning_effort is not supported",
        "reasoning_effort",
    ),
    ("chat/completions", {"messages": CHAT, "store": True}, "store is not supported: nothing is stored", "store"),
    ("chat/completions", {"messages": CHAT, "functions": [{}]}, "functions is not supported: it is deprecated", "functions"),
    (
        "chat/completions",
        {"messages": CHAT, "response_format": {"type": "xml"}},
        "type is 'xml'; allowed: text",
        "response_format.type",
    ),
    (
        "chat/completions",
        {"messages": CHAT, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}},
        "the grammar cannot be used: .*objekt",
        "response_format",
    ),
    ("chat/completions", {"messages": CHAT, "tool_choice": "required"}, "there are no tools to choose from", "tool_choice"),
    ("embeddings", {"input": [[1, VOCABULARY]]}, "the vocabulary has ids 0 to", "input"),
    ("embeddings", {"input": [1, 2.5]}, "token 1 of input.* is 2.5", "input"),
    ("embeddings", {"input": [True]}, r"input\[0\] is True; allowed for input: text, token ids", "input"),
    ("embeddings", {"input": [[]]}, r"input\[0\] has no tokens", "input"),
    ("embeddings", {"input": "a", "dimensions": 2}, "dimensions is not supported", "dimensions"),
    ("embeddings", {"input": []}, "input is a list of 0; allowed: text", "input"),
    ("embeddings", {"input": ["a", "a " * 400]}, r"input\[1\] has \d+ tokens; allowed: 1 to 256", "input"),
    (
        "embeddings",
        {"input": "a", "encoding_format": "hex"},
        "encoding_format is 'hex'; allowed: float, base64",
        "encoding_format",
    ),
]


def test_what_cannot_be_is_said_in_openais_shape_and_changes_nothing(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        for path, body, said, param in REFUSED:
            response = await local.post(f"/v1/{path}", body)
            assert response.status_code in (400, 404), (body, response.text)
            error = response.json()["error"]
            assert re.search(said, error["message"]), error
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == "invalid_request_error"
            assert error["param"] == param, error
        assert local.engine.steps == []
        assert local.service.places.taken == 0

    run(work, tokenizer)


def of_schema(schema: Any) -> dict[str, Any]:
    return {"messages": CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def of_tool(parameters: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
    return {"messages": CHAT, "tools": [tool], "tool_choice": "required"}


HOSTILE: list[tuple[Any, str]] = [
    (False, "no value conforms"),
    ({"type": "string", "minLength": 5, "maxLength": 3}, "minLength \\(5\\) is greater than maxLength"),
    ({"enum": []}, "Unsatisfiable"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible types"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "leads back to itself"),
    ({"type": "string", "pattern": "("}, "unclosed group"),
    ({"type": "array", "uniqueItems": True}, "cannot be held to uniqueItems"),
]
NOTHING_LEFT: dict[str, Any] = {"logit_bias": {str(token): -100 for token in range(VOCABULARY)}}


def test_what_no_answer_can_follow_is_the_requests_fault(tokenizer: Tokenizer) -> None:
    (quote,) = tokenizer.encode('"', add_special=False)
    no_quotes = {str(index): -100 for index in range(VOCABULARY) if tokenizer.token_bytes(index).startswith(b'"')}
    cases = [("chat/completions", of_schema(schema), said, "response_format") for schema, said in HOSTILE]
    cases += [("chat/completions", of_tool(schema), said, "tools") for schema, said in HOSTILE[1:]]
    cases += [("completions", {"prompt": [5], **NOTHING_LEFT}, "logit_bias leaves no token to choose", "logit_bias")]
    cases += [("chat/completions", {"messages": CHAT, **NOTHING_LEFT}, "logit_bias leaves no token", "logit_bias")]
    cases += [("chat/completions", of_schema({"const": "a"}) | {"logit_bias": no_quotes}, "leaves no token", "logit_bias")]
    assert str(quote) in no_quotes

    async def work(local: Local) -> None:
        for path, body, said, param in cases:
            response = await local.post(f"/v1/{path}", body)
            error = response.json()["error"]
            assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
            assert re.search(said, error["message"]), error
        assert (await local.post("/v1/completions", {"prompt": [5], "max_tokens": 1})).status_code == 200

    run(work, tokenizer, engine=FakeEngine(vocab=VOCABULARY, context=512, pages=512, page_len=4, rows=64))


@pytest.mark.slow
def test_a_fault_of_the_request_in_the_middle_of_a_stream_is_not_the_servers(tokenizer: Tokenizer) -> None:
    parts = [{"type": "boolean"}, {"type": "string", "pattern": "^((a{100}){100}){100}$"}]
    late = of_schema({"type": "array", "prefixItems": parts, "minItems": 2})

    async def work(local: Local) -> None:
        local.engine.before_step = lambda rows: time.sleep(0.01)
        response = await local.post("/v1/chat/completions", late | {"stream": True})
        *events, last = [json.loads(event[6:]) for event in response.text.split("\n\n") if event.startswith("data: {")]
        assert (response.status_code, events[0]["choices"][0]["delta"]["role"]) == (200, "assistant")
        assert (last["error"]["type"], last["error"]["param"]) == ("invalid_request_error", "response_format")
        assert "the grammar cannot be followed" in last["error"]["message"]
        assert (await local.post("/v1/chat/completions", late)).status_code == 400

    run(work, tokenizer)


def test_parameters_that_only_say_who_asks_are_taken(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        made = await local.client.chat.completions.create(
            messages=CHAT, max_tokens=2, user="me", metadata={"a": "b"}, service_tier="auto", modalities=["text"], **GREEDY
        )
        assert made.choices[0].message.content == local.alone(local.service.served.chat(CHAT, variables={}), 2)

    run(work, tokenizer)
