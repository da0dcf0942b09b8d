"""The answers of a worker while they are made: the event loop's side of the thread that runs the scheduler."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Protocol

from dynamo.common.backend.publisher import ComponentSnapshot

from executor.serve.answers import Answers, News
from executor.serve.metrics import Metrics
from executor.serve.worker import Update, Worker
from ptxgen_dynamo.model import LoadedModel

RANK: Final = 0
"""Of the one data-parallel rank that a worker has."""
AFTERWARDS: Final = 20.0
"""Seconds in which the scheduler's thread must end."""

_log = logging.getLogger(__name__)


class Snapshots(Protocol):
    """What is used of dynamo._core.backend.SnapshotPublisher."""

    def publish(self, rank: int, snapshot: ComponentSnapshot) -> None:
        """What the cache holds, for the router and Dynamo's gauges."""


class Answering:
    """Belongs to the event loop on which it is made; `Worker`'s thread has the scheduler and the device."""

    def __init__(self, loaded: LoadedModel) -> None:
        model = loaded.model
        self._loaded = loaded
        self._loop = asyncio.get_running_loop()
        self._worker = Worker(loaded.scheduler, model.device.owner, model.embed, self._deliver)
        self._running: dict[str, Answers] = {}  # by the request's id
        self._idle = asyncio.Event()
        self._idle.set()
        self._prompt_tokens = self._cached_tokens = 0
        self.metrics = Metrics(lambda: self._worker.status, lambda: len(self._running))
        self.snapshots: Snapshots | None = None
        self._worker.start()

    async def answer(self, request: str, prompt: Sequence[int], options: Mapping[str, Any]) -> AsyncIterator[News]:
        """What is new of the answer to a prompt, with options of Scheduler.submit. It is cancelled if nobody asks for more.
        Raises what the scheduler says of one that has failed, or can never run."""
        begun, first = time.monotonic(), True
        answers = self._running[request] = Answers(1)
        self._idle.clear()
        try:
            self._worker.submit(answers.receivers[0], prompt, options)
            await answers.accepted()
            async for news in answers:
                if first:
                    self.metrics.first_token(time.monotonic() - begun)
                    first = False
                if news.end is not None and news.end.error is not None:
                    raise news.end.error
                yield news
        finally:
            self.cancel(request)
            del self._running[request]
            if not self._running:
                self._idle.set()

    def cancel(self, request: str) -> None:
        """End the answer to a request before the next step, if it has not ended."""
        if answers := self._running.get(request):
            for receiver in answers.receivers:
                if receiver.end is None:
                    self._worker.cancel(receiver)

    async def end(self, seconds: float) -> None:
        """Wait so long for the answers that run, end the thread, and give the device back."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            _log.warning("%d requests are cut off", len(self._running))
        self._loaded.scheduler.pool.observer = None
        if await asyncio.to_thread(self._worker.stop, AFTERWARDS):
            await asyncio.to_thread(self._loaded.close)
        else:
            _log.error("the scheduler's thread has not ended within %g s", AFTERWARDS)

    def _deliver(self, updates: Sequence[tuple[Any, Update]]) -> None:
        """On the worker's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._receive, updates)

    def _receive(self, updates: Sequence[tuple[Any, Update]]) -> None:
        for receiver, update in updates:
            receiver.receive(update)
            if update.end is not None:
                self.metrics.ended(update.end)
                self._prompt_tokens += update.end.usage.prompt_tokens
                self._cached_tokens += update.end.usage.cached_prompt_tokens
        if self.snapshots is not None:
            held, pages = self._worker.status.pages_held, self._loaded.scheduler.pool.pages
            rate = self._cached_tokens / self._prompt_tokens if self._prompt_tokens else None
            self.snapshots.publish(RANK, ComponentSnapshot(held, pages, held / pages, RANK, rate))
