"""JSON as it goes over the wire, and what all answers have in it: usage, ends, probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from executor.model.logprobs import TokenLogprob
from executor.model.scheduling.token_sequence import Stopped, Usage
from executor.text.tokenizer import Tokenizer

FINISH: Final[dict[Stopped, str]] = {
    "eos": "stop",
    "stop": "stop",
    "grammar": "stop",
    "length": "length",
    "context": "length",
}
"""OpenAI's words for what ended an answer."""

LEAST: Final = -9999.0
"""Stands for the logarithm of a probability of 0, which JSON cannot hold; OpenAI's number."""


def as_json(value: object) -> bytes:
    """UTF-8 in one line. A lone surrogate, which only an echo of a request can have, is escaped."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def usage_of(prompts: Iterable[Usage], answers: Iterable[Usage]) -> dict[str, Any]:
    """The tokens of a request. prompts: a usage for each prompt, however many answers it got."""
    prompts = list(prompts)
    prompt, answered = sum(one.prompt_tokens for one in prompts), sum(one.answer_tokens for one in answers)
    cached = sum(one.cached_prompt_tokens for one in prompts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answered,
        "total_tokens": prompt + answered,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """As chat completions have them."""
    return {
        "content": [
            _token(tokenizer, one.token, one.logprob) | {"top_logprobs": [_token(tokenizer, *top) for top in one.top]}
            for one in tokens
        ],
        "refusal": None,
    }


def text_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[TokenLogprob], length: int, first: int | None = None
) -> dict[str, Any]:
    """As completions have them: a token itself is among the likeliest ones, though it may not be one. length: characters of the
    text; what a stop string has cut off begins at its end. first: a token before all of them, which nothing comes before, so
    that it has no probability."""
    alone = [] if first is None else [first]
    listed = [dict(one.top) | {one.token: one.logprob} for one in tokens]
    tops = [{token_text(tokenizer, token): max(logprob, LEAST) for token, logprob in top.items()} for top in listed]
    return {
        "tokens": [token_text(tokenizer, token) for token in (*alone, *(one.token for one in tokens))],
        "token_logprobs": [*(None for _ in alone), *(max(one.logprob, LEAST) for one in tokens)],
        "top_logprobs": [*(None for _ in alone), *tops],
        "text_offset": [*(0 for _ in alone), *(min(one.start, length) for one in tokens)],
    }


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as it is written, control tokens included; one that is no text as OpenAI spells its bytes."""
    raw = tokenizer.token_bytes(token, skip_special=False)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token, skip_special=False)
    return {"token": raw.decode(errors="replace"), "logprob": max(logprob, LEAST), "bytes": list(raw)}
