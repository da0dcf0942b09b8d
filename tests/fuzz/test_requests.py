"""Requests with odd values in every place: none is the server's fault, and what is refused is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from executor.text.tokenizer import Tokenizer
from tests.executor.serve.conftest import model_file
from tests.executor.serve.local import Local, run, tokenizer_of

ODD: list[Any] = [
    True, False, 0, 1, -1, 0.5, 1e308, 10**18, 2**64, 10**400, float("nan"), float("inf"), "", "a", "\ud800", [], [None], ["a"],
    [[]], [0], [5, 6], [[5], ["a"]], [1.5], [True], {}, {"a": 1}, {"type": "text"}, {"type": []}, {"5": -100},
    {"5": 1e400}, {"": {}},
]  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/embeddings": {"input": "a"},
}
FUNCTION = {"name": "f", "description": "does", "parameters": {"type": "object", "properties": {"x": {"type": "null"}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NESTED: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": "b"}]},
    {
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "a", "tool_call_id": "c"},
        ]
    },
    {"tools": [{"type": "function", "function": FUNCTION | {"strict": True}}], "tool_choice": "required"},
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": FUNCTION["parameters"], "strict": True},
        }
    },
    {"stream": True, "stream_options": {"include_usage": True}, "stop": ["a"], "logit_bias": {"5": 1}},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(model_file(tmp_path_factory.mktemp("served")))


def places(value: Any) -> list[tuple[Any, ...]]:
    """The keys that lead to each value in another."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, one in items for path in [(key,), *((key, *rest) for rest in places(one))]]


def changed(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = changed(copy[key], tuple(rest), odd) if rest else odd
    return copy


async def ask(local: Local, path: str, body: Any) -> None:
    response = await local.post(path, body)
    text = response.text
    errors = [json.loads(event[6:]) for event in text.split("\n\n") if event.startswith('data: {"error"')]
    errors += [response.json()] if response.status_code != 200 else []
    assert response.status_code in (200, 400, 404), (body, text)
    for error in errors:
        assert error["error"]["type"] == "invalid_request_error", (body, text)
        assert error["error"]["param"], (body, text)


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=() if path == "/v1/embeddings" else pytest.mark.slow) for path in NEEDED]
)
def test_an_odd_value_of_any_parameter_is_answered_or_refused_by_name(path: str, tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        # Conversations are not rendered: a process for each takes longer than all else.
        object.__setattr__(local.service.served, "chat", lambda *_, **__: [5, 6])
        said = (await local.post(path, {**NEEDED[path], "nonsense": 1})).json()["error"]["message"]
        for name in said.partition("allowed: ")[2].split(", "):
            for odd in ODD:
                await ask(local, path, {**NEEDED[path], name: odd})

    run(work, tokenizer)


@pytest.mark.slow
def test_an_odd_value_inside_a_parameter_is_answered_or_refused_by_name(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        object.__setattr__(local.service.served, "chat", lambda *_, **__: [5, 6])
        for body in NESTED:
            for path in places(body):
                for odd in ODD:
                    await ask(local, "/v1/chat/completions", NEEDED["/v1/chat/completions"] | changed(body, path, odd))

    run(work, tokenizer)
