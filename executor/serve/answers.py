"""The answers of one request, as the event loop sees them while the worker makes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from executor.model.logprobs import TokenLogprob
from executor.model.scheduling.token_sequence import AnswerPiece
from executor.serve.worker import End, Update


@dataclass(frozen=True)
class News:
    """What is new of one answer of a request: several updates may have become one. index: of the answer, from 0."""

    index: int
    pieces: Sequence[AnswerPiece]
    logprobs: Sequence[TokenLogprob]
    prompt_logprobs: Sequence[TokenLogprob]
    end: End | None

    @property
    def text(self) -> str:
        """What it adds to the text."""
        return "".join(piece.text for piece in self.pieces)


class AnswerReceiver:
    """Takes the updates of one answer."""

    def __init__(self, answers: Answers, index: int) -> None:
        self._answers = answers
        self.index = index
        self.pieces: list[AnswerPiece] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: Sequence[TokenLogprob] = ()
        self.end: End | None = None
        self.accepted = False
        self.waits = False
        """Whether something is new."""

    def receive(self, update: Update) -> None:
        """Keep it until somebody asks."""
        self.accepted = True
        self.pieces += update.pieces
        self.logprobs += update.logprobs
        self.prompt_logprobs = update.prompt_logprobs or self.prompt_logprobs
        self.end = update.end
        self.waits = self.waits or bool(update.pieces) or update.end is not None
        self._answers.wake()

    def news(self) -> News:
        """What has come since the last time."""
        news = News(self.index, self.pieces, self.logprobs, self.prompt_logprobs, self.end)
        self.pieces, self.logprobs, self.prompt_logprobs, self.waits = [], [], (), False
        return news


class Answers:
    """`receivers`: one for each answer, which the worker fills; `async for` gives what is new of them until all have ended."""

    def __init__(self, count: int) -> None:
        self.receivers = [AnswerReceiver(self, index) for index in range(count)]
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Something is new."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def accepted(self) -> None:
        """Wait until the scheduler has taken all of them. Raises what it says of one that can never run."""
        while not all(receiver.accepted for receiver in self.receivers):
            await self._wait()
        for receiver in self.receivers:
            if receiver.end is not None and receiver.end.error is not None:
                raise receiver.end.error

    async def __aiter__(self) -> AsyncIterator[News]:
        ended = 0
        while True:
            new = [receiver for receiver in self.receivers if receiver.waits]
            for receiver in new:
                news = receiver.news()
                ended += news.end is not None
                yield news
            if ended == len(self.receivers):
                return
            if not new:
                await self._wait()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
