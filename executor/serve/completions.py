"""`/v1/completions`: prompts, text or token ids, and what continues them."""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

from executor.base.arguments import tokens
from executor.model.scheduling.token_sequence import Usage
from executor.serve.answers import News
from executor.serve.delivery import delivered
from executor.serve.endpoint import Events
from executor.serve.errors import ApiError, blamed
from executor.serve.fields import Fields
from executor.serve.parameters import MOST_CHOICES, MOST_LOGPROBS, Asked, common
from executor.serve.service import Served, Service
from executor.serve.wire import FINISH, text_logprobs, usage_of

DEFAULT_TOKENS: Final = 16
_UNSUPPORTED: Final = {
    "best_of": ((1,), "answers are not ranked; ask for n"),
    "echo": ((False,), "the prompt is not repeated"),
    "suffix": (("",), "no model that is served fills gaps"),
}


async def complete(service: Service, body: Any, events: Events) -> dict[str, Any] | None:
    """Continue each prompt by `n` answers; choice i * n + j is answer j to prompt i."""
    fields = Fields(body)
    asked = common(fields, service.served, ("max_tokens",), DEFAULT_TOKENS)
    given = fields.required("prompt", "text, token ids, or a list of texts or of lists of token ids")
    logprobs = fields.whole("logprobs", None, 0, MOST_LOGPROBS)
    fields.only(_UNSUPPORTED)
    fields.finish()
    prompts = _prompts(given)
    if len(prompts) * asked.n > MOST_CHOICES:
        raise ApiError(
            f"{len(prompts)} prompts with n {asked.n} are too many; allowed: up to {MOST_CHOICES} answers", param="n"
        )
    with service.places.taking(len(prompts) * asked.n):
        ids = await service.on_host(lambda: [_ids(prompt, service.served) for prompt in prompts])
        options = [
            (one, asked.options(len(one), choice, service.served) | {"logprobs": logprobs})
            for one in ids
            for choice in range(asked.n)
        ]
        answer = _Answer(service.served, asked, logprobs is not None)
        return await delivered(service, asked, options, answer, events)


class _Answer:
    """What has come so far, choice by choice."""

    def __init__(self, served: Served, asked: Asked, logprobs: bool) -> None:
        self._served = served
        self._asked = asked
        self._logprobs = logprobs
        self._texts: dict[int, list[str]] = {}
        self._offsets: dict[int, int] = {}
        self._probabilities: dict[int, list[Any]] = {}
        self._finish: dict[int, str] = {}
        self._usage: dict[int, Usage] = {}
        self.head: dict[str, Any] = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": served.fingerprint,
        }

    def opening(self) -> list[dict[str, Any]]:
        """None: nothing is said of a choice before its text."""
        return []

    def add(self, news: News) -> list[dict[str, Any]]:
        """Keep what is new; the chunks of a stream that say it."""
        at = news.index
        if news.end is not None:
            self._finish[at], self._usage[at] = FINISH[news.end.stopped], news.end.usage
        if not self._asked.stream:
            self._texts.setdefault(at, []).append(news.text)
            self._probabilities.setdefault(at, []).extend(news.logprobs)
            return []
        if not news.text and not news.logprobs and news.end is None:
            return []
        logprobs = None
        if self._logprobs:
            offset = self._offsets.get(at, 0)
            logprobs = text_logprobs(self._served.tokenizer, news.logprobs, offset)
            self._offsets[at] = offset + sum(map(len, logprobs["tokens"]))
        return [self._chunk(at, news.text, logprobs)]

    def whole(self) -> dict[str, Any]:
        """The answer that is no stream."""
        choices = []
        for at in sorted(self._usage):
            tokens = self._probabilities.get(at, [])
            logprobs = text_logprobs(self._served.tokenizer, tokens, 0) if self._logprobs else None
            choices.append(self._choice(at, "".join(self._texts.get(at, ())), logprobs))
        return self.head | {"choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Of all choices; a prompt counts once."""
        used = [self._usage[at] for at in sorted(self._usage)]
        return usage_of(used[:: self._asked.n], used)

    def _chunk(self, at: int, text: str, logprobs: Any) -> dict[str, Any]:
        chunk = self.head | {"choices": [self._choice(at, text, logprobs)]}
        return chunk | {"usage": None} if self._asked.include_usage else chunk

    def _choice(self, at: int, text: str, logprobs: Any) -> dict[str, Any]:
        return {"index": at, "text": text, "logprobs": logprobs, "finish_reason": self._finish.get(at)}


def _prompts(given: Any) -> list[str | list[int]]:
    """One or several."""
    if isinstance(given, str) or (isinstance(given, list) and given and _is_token(given[0])):
        return [given]
    if not isinstance(given, list) or not given or not all(isinstance(one, str | list) for one in given):
        raise ApiError("prompt is neither text, nor token ids, nor a list of texts or of lists of token ids", param="prompt")
    return given


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ids(prompt: str | list[int], served: Served) -> list[int]:
    """Control tokens are not looked for in a text."""
    with blamed("prompt"):
        if isinstance(prompt, str):
            ids = served.tokenizer.encode(prompt, parse_special=False)
        else:
            ids = tokens("prompt", prompt, served.tokenizer.vocab_size)
    if not ids:
        raise ApiError("prompt has no tokens; allowed: at least one", param="prompt")
    return ids
