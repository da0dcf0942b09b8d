"""`/v1/completions`: prompts, text or token ids, and what continues them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from executor.model.logprobs import TokenLogprob
from executor.model.scheduling.token_sequence import Usage
from executor.serve.answers import News
from executor.serve.delivery import delivered
from executor.serve.endpoint import Events
from executor.serve.errors import ApiError
from executor.serve.fields import RequestFields
from executor.serve.inputs import Text, ids_of, texts_of
from executor.serve.parameters import MOST_CHOICES, MOST_LOGPROBS, AnswerParameters, common
from executor.serve.service import Served, Service
from executor.serve.wire import FINISH, text_logprobs, usage_of
from executor.text.tokenizer import Tokenizer

DEFAULT_TOKENS: Final = 16
_UNSUPPORTED: Final = {"suffix": (("",), "no model that is served fills gaps")}
_UNRANKED: Final = "best_of is not supported beyond n: answers are not ranked; ask for n"
_ALLOWED: Final = f"text, token ids, or a list of up to {MOST_CHOICES} texts or lists of token ids"


async def complete(service: Service, body: Any, events: Events) -> dict[str, Any] | None:
    """Continue each prompt by `n` answers; choice i * n + j is answer j to prompt i."""
    served, fields = service.served, RequestFields(body)
    asked = common(fields, served, "prompt", {"max_tokens": 0}, DEFAULT_TOKENS)
    given = fields.required("prompt", _ALLOWED)
    logprobs = fields.whole("logprobs", None, 0, MOST_LOGPROBS)
    echo = fields.flag("echo")
    if fields.whole("best_of", asked.n, 1) not in (1, asked.n):
        raise ApiError(_UNRANKED, param="best_of", code="unsupported_parameter")
    fields.only(_UNSUPPORTED)
    fields.finish()
    prompts = texts_of("prompt", given, MOST_CHOICES, _ALLOWED)
    if len(prompts) * asked.n > MOST_CHOICES:
        raise ApiError(
            f"{len(prompts)} prompts with n {asked.n} are too many; allowed: up to {MOST_CHOICES} answers", param="n"
        )
    with service.places.taking(len(prompts) * asked.n):
        many = [f"prompt[{at}]" for at in range(len(prompts))] if len(prompts) > 1 else ["prompt"]
        ids = await service.on_host(
            lambda: [ids_of(name, prompt, served, "prompt") for name, prompt in zip(many, prompts, strict=True)]
        )
        least = None if asked.max_tokens else 0  # with no answer, something must be wanted of the prompt
        probabilities = {"logprobs": logprobs, "prompt_logprobs": logprobs if echo and logprobs is not None else least}
        options = [(one, asked.options(len(one), choice, served) | probabilities) for one in ids for choice in range(asked.n)]
        echoes = [_Echo.of(served.tokenizer, prompt, one) for prompt, one in zip(prompts, ids, strict=True)] if echo else []
        answer = _Answer(served, asked, logprobs is not None, len(options), echoes)
        return await delivered(service, asked, options, answer, events)


@dataclass(frozen=True)
class _Echo:
    """A prompt that an answer begins with. first: its first token, which nothing makes likely; starts: where its tokens begin
    in the text."""

    text: str
    first: int
    starts: Sequence[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, prompt: Text, ids: Sequence[int]) -> _Echo:
        """A text is itself, token ids are the text that people read."""
        stream, text, starts = tokenizer.stream(), "", []
        for token in ids:
            text += stream.push(token)
            starts.append(stream.start)
        text += stream.finish()
        if not isinstance(prompt, str):
            return cls(text, ids[0], starts)
        added = len(text) - len(prompt) if text.endswith(prompt) else 0  # a space that the vocabulary puts before a text
        return cls(prompt, ids[0], [max(start - added, 0) for start in starts])


@dataclass
class _Choice:
    """One answer so far. text, logprobs: what has not been sent; length: characters of all its text; ended: its word for why,
    and what it took."""

    echo: _Echo | None
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    length: int = 0
    begun: bool = False
    finish: str | None = None
    usage: Usage | None = None

    def add(self, news: News) -> None:
        """Keep what is new, after the echo."""
        echo = 0 if self.echo is None else len(self.echo.text)
        if self.echo is not None and not self.begun:
            self._add(self.echo.text)
            starts = zip(news.prompt_logprobs, self.echo.starts[1:], strict=False)
            self.logprobs += [replace(one, start=start) for one, start in starts]
        self.begun = True
        self._add(news.text)
        self.logprobs += [replace(one, start=echo + one.start) for one in news.logprobs]
        if news.end is not None:
            self.finish, self.usage = FINISH[news.end.stopped], news.end.usage

    def certain(self) -> list[TokenLogprob]:
        """The probabilities of tokens that begin in the text so far, or of all once it has ended: they are not kept."""
        count = len(self.logprobs)
        if self.finish is None:
            count = next((at for at, one in enumerate(self.logprobs) if one.start > self.length), count)
        certain, self.logprobs = self.logprobs[:count], self.logprobs[count:]
        return certain

    def _add(self, text: str) -> None:
        self.text += text
        self.length += len(text)


class _Answer:
    """What has come so far, choice by choice."""

    def __init__(self, served: Served, asked: AnswerParameters, logprobs: bool, count: int, echoes: Sequence[_Echo]) -> None:
        self._served = served
        self._asked = asked
        self._logprobs = logprobs
        self._choices = [_Choice(echoes[at // asked.n] if echoes else None) for at in range(count)]
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
        choice = self._choices[news.index]
        is_first = not choice.begun
        choice.add(news)
        if not self._asked.stream:
            return []
        certain = choice.certain()
        if not choice.text and not certain and choice.finish is None:
            return []
        chunk = self.head | {"choices": [self._choice(news.index, certain, is_first)]}
        choice.text = ""
        return [chunk | {"usage": None} if self._asked.include_usage else chunk]

    def whole(self) -> dict[str, Any]:
        """The answer that is no stream."""
        choices = [self._choice(at, choice.certain(), is_first=True) for at, choice in enumerate(self._choices)]
        return self.head | {"choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Of all choices; a prompt counts once."""
        used = [choice.usage for choice in self._choices if choice.usage is not None]
        return usage_of(used[:: self._asked.n], used)

    def _choice(self, at: int, logprobs: Sequence[TokenLogprob], is_first: bool) -> dict[str, Any]:
        choice, told = self._choices[at], None
        if self._logprobs:
            first = choice.echo.first if choice.echo is not None and is_first else None
            told = text_logprobs(self._served.tokenizer, logprobs, choice.length, first)
        return {"index": at, "text": choice.text, "logprobs": told, "finish_reason": choice.finish}
