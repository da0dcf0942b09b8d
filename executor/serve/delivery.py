"""How what is new of a request's answers reaches the client: chunk by chunk, or all of it at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from executor.serve.answers import News
from executor.serve.endpoint import Events
from executor.serve.errors import blamed
from executor.serve.parameters import AnswerParameters
from executor.serve.service import Service


class Answer(Protocol):
    """What has come so far of a request's choices, in the words of its endpoint."""

    @property
    def head(self) -> dict[str, Any]:
        """What every chunk begins with."""

    def opening(self) -> list[dict[str, Any]]:
        """The chunks of a stream before anything has come."""

    def add(self, news: News, /) -> list[dict[str, Any]]:
        """Keep what is new; the chunks of a stream that say it."""

    def whole(self) -> dict[str, Any]:
        """The answer that is no stream."""

    def usage(self) -> dict[str, Any]:
        """Of all choices."""


async def delivered(
    service: Service,
    asked: AnswerParameters,
    prompts: Sequence[tuple[Sequence[int], Mapping[str, Any]]],
    answer: Answer,
    events: Events,
    grammar: str | None = None,
) -> dict[str, Any] | None:
    """Have the prompts answered, as Service.answers, and streamed if that was asked for; else what the answer is as a whole.
    grammar: the parameter that says what an answer must be. ApiError 400 for what the request makes impossible, also in the
    middle of an answer."""
    with blamed(asked.limit or asked.prompt, grammar=grammar):
        return await _delivered(service, asked, prompts, answer, events)


async def _delivered(
    service: Service,
    asked: AnswerParameters,
    prompts: Sequence[tuple[Sequence[int], Mapping[str, Any]]],
    answer: Answer,
    events: Events,
) -> dict[str, Any] | None:
    start = time.monotonic()
    begun = False
    async with service.answers(prompts) as answers:
        if asked.stream and (opening := answer.opening()):
            await events.send(*opening)
        async for news in answers:
            if not begun:
                service.metrics.first_token(time.monotonic() - start)
                begun = True
            if news.end is not None:
                service.finished(news.end)
            chunks = answer.add(news)
            if asked.stream and chunks:
                await events.send(*chunks)
    if not asked.stream:
        return answer.whole()
    if asked.include_usage:
        await events.send(answer.head | {"choices": [], "usage": answer.usage()})
    await events.finish()
    return None
