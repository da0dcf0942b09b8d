"""What the endpoints share: the model that is served, places for answers, the worker, and what is counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import DeviceError, ModelError, OutOfMemory
from executor.device.owner import OwnerThread
from executor.model.scheduling.scheduler import Scheduler
from executor.serve.answers import AnswerReceiver, Answers
from executor.serve.errors import ApiError
from executor.serve.limits import RequestPlaces, ServerLimits
from executor.serve.metrics import Metrics
from executor.serve.worker import STOPPED, Embed, End, Update, Worker, WorkerStopped
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError

Result = TypeVar("Result")
HOST_THREADS: Final = 4
"""Render conversations and prepare grammars, beside the event loop."""


@dataclass(frozen=True)
class Served:
    """The model. name: what requests call it; created: of its file, seconds since 1970; context: most tokens of a prompt and
    its answer; fingerprint: of all that an answer depends on beside the request; chat: the token ids of a conversation with
    tools and variables of the template, as LanguageModel.chat_ids."""

    name: str
    created: int
    context: int
    fingerprint: str
    tokenizer: Tokenizer
    chat: Callable[..., list[int]]


class Service:
    """Belongs to the event loop's thread; the worker's thread has the scheduler."""

    def __init__(self, served: Served, scheduler: Scheduler, owner: OwnerThread, embed: Embed, limits: ServerLimits) -> None:
        self.served = served
        self.limits = limits
        self.places = RequestPlaces(limits)
        self.worker = Worker(scheduler, owner, embed, self._deliver)
        self.metrics = Metrics(lambda: self.worker.status, lambda: self.places.taken)
        self.draining = False
        self._cut_off = False
        self._host = ThreadPoolExecutor(HOST_THREADS, thread_name_prefix="ptxrun-host")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[AnswerReceiver] = set()

    def start(self) -> None:
        """Begin, on the event loop."""
        self._loop = asyncio.get_running_loop()
        self.worker.start()

    def stop(self, seconds: float) -> bool:
        """End the worker, whose answers fail. Whether it has ended within so many seconds."""
        self._host.shutdown(wait=False, cancel_futures=True)
        return self.worker.stop(seconds)

    @property
    def trouble(self) -> str:
        """Why no new request is answered, empty if it is."""
        if known := self.worker.failure or (STOPPED if self.draining else ""):
            return known
        seconds = self.worker.busy_seconds
        return f"the device has not ended a step for {seconds:.0f} s" if seconds > self.limits.step_seconds else ""

    def require_ready(self) -> None:
        """ApiError 503 where no new request is answered."""
        if self.trouble:
            raise ApiError(self.trouble, status=503, code="unavailable")

    def cut(self) -> None:
        """End what is still being answered, and what is about to be: it has been waited for long enough."""
        self._cut_off = True
        for receiver in list(self._waiting):
            self.worker.cancel(receiver)

    async def on_host(self, work: Callable[[], Result]) -> Result:
        """Have something done beside the event loop, a few at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._host, work)

    @asynccontextmanager
    async def answers(self, prompts: Sequence[tuple[Sequence[int], Mapping[str, Any]]]) -> AsyncIterator[Answers]:
        """Submit prompts, each with options of Scheduler.submit; in the block their answers come. What has not ended with the
        block is cancelled. Raises what the scheduler says of what can never run."""
        if self._cut_off:
            raise ApiError(STOPPED, status=503, code="unavailable")
        answers = Answers(len(prompts))
        start = time.monotonic()
        try:
            for receiver, (prompt, options) in zip(answers.receivers, prompts, strict=True):
                self._waiting.add(receiver)
                self.worker.submit(receiver, prompt, options)
            await answers.accepted()
            yield answers
            self.places.answered(time.monotonic() - start)
        finally:
            for receiver in answers.receivers:
                self._waiting.discard(receiver)
                if receiver.end is None:
                    self.worker.cancel(receiver)

    async def embed(self, texts: Sequence[str | Sequence[int]]) -> NDArray[np.float32]:
        """f32[len(texts), hidden] of texts or of token ids. Raises what the model says of one that is too long or has no
        tokens."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[NDArray[np.float32] | Exception] = loop.create_future()

        def settle(result: NDArray[np.float32] | Exception) -> None:
            if not found.done():
                found.set_result(result)

        def done(result: NDArray[np.float32] | Exception) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result)

        self.worker.embed(texts, done, lambda: not found.done())
        result = await found
        if isinstance(result, Exception):
            raise result
        return result

    def finished(self, end: End) -> End:
        """The end of an answer. Raises what made it fail, ApiError where the server ended it."""
        if end.error is not None:
            raise end.error
        if end.stopped == "cancelled":
            raise ApiError(self.trouble or "the answer was cancelled", status=503, code="unavailable")
        return end

    def _deliver(self, updates: Sequence[tuple[Any, Update]]) -> None:
        def receive() -> None:
            for receiver, update in updates:
                receiver.receive(update)
                if update.end is not None:
                    self.metrics.ended(update.end)

        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(receive)


def api_error(error: Exception) -> ApiError:
    """The error that a client gets for one of the executor: 400 if the request caused it, else the server's."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ArgumentError):
        return ApiError(str(error))
    if isinstance(error, WorkerStopped | OutOfMemory | DeviceError):
        return ApiError(str(error), status=503, code="unavailable")
    if isinstance(error, ModelError):
        return ApiError(str(error), status=500, code="model_error")
    return ApiError("the server has failed at this request; its log says how", status=500)
