"""What is new of an answer, as the chunk that Dynamo's frontend makes text of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dynamo.common.backend.engine import GenerateChunk

from executor.model.logprobs import TokenLogprob
from executor.model.scheduling.token_sequence import Stopped, Usage
from executor.serve.answers import News
from executor.text.tokenizer import Tokenizer

FINISH: Final[dict[Stopped, str]] = {
    "eos": "stop", "stop": "stop", "grammar": "stop", "length": "length", "context": "length", "cancelled": "cancelled",
}  # fmt: skip
"""Dynamo's words for what ended an answer; one that has failed has an error instead."""


def chunk_of(news: News, tokenizer: Tokenizer, *, with_logprobs: bool) -> GenerateChunk | None:
    """None where only text is new, which the frontend makes itself."""
    ids = [piece.token for piece in news.pieces if piece.token is not None]
    if not ids and news.end is None:
        return None
    chunk: GenerateChunk = {"token_ids": ids, "index": news.index}
    if with_logprobs and ids:
        chunk["log_probs"] = [one.logprob for one in news.logprobs]
        chunk["top_logprobs"] = [_top(one, tokenizer) for one in news.logprobs]
    if news.end is not None:
        chunk["finish_reason"] = FINISH[news.end.stopped]
        chunk["completion_usage"] = _usage(news.end.usage)
    return chunk


def _top(one: TokenLogprob, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The likeliest tokens of a place and the one that was taken, whose rank is not known where it is none of them."""
    likeliest: Sequence[tuple[int, float]] = one.top
    if one.token not in {token for token, _ in likeliest}:
        likeliest = [*likeliest, (one.token, one.logprob)]
    return [_candidate(rank, token, value, tokenizer) for rank, (token, value) in enumerate(likeliest, 1)]


def _candidate(rank: int, token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token, skip_special=False)
    text = raw.decode("utf-8", "replace")
    return {"rank": rank, "token_id": token, "token": text, "logprob": logprob, "bytes": list(raw)}


def _usage(used: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.answer_tokens,
        "total_tokens": used.prompt_tokens + used.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_prompt_tokens},
    }
