"""The one thread that the device belongs to while the server runs: it takes calls from the event loop out of a queue, runs the
scheduler's steps, and hands back what each step made, all of it at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from executor.device.owner import OwnerThread
from executor.model.logprobs import TokenLogprob
from executor.model.scheduling.request import Request
from executor.model.scheduling.scheduler import Scheduler
from executor.model.scheduling.status import SchedulerStatus
from executor.model.scheduling.token_sequence import AnswerPiece, Stopped, Usage
from ptxgen.errors import PtxGenError

MOST_CALLS: Final = 1024
"""Calls between two steps, so that a flood of them cannot stop those who are answered."""
PACE: Final = 3e-4
"""Seconds between two times that what is new is handed back, for each answer that runs: to send it takes the event loop a share
of them, and the steps wait for Python's lock meanwhile. So a few streams get each token by itself, 256 get some 13 times a
second what has come."""

_log = logging.getLogger(__name__)


class WorkerStopped(PtxGenError):
    """Nothing is answered any more."""


@dataclass(frozen=True)
class End:
    """Why an answer has ended and what it took. error: if it has failed, or was refused."""

    stopped: Stopped
    usage: Usage
    error: Exception | None = None


@dataclass(frozen=True)
class Update:
    """What is new of an answer: pieces, probabilities of their tokens and of those of the prompt, which come first, if asked
    for, and how it ended. The first update of an answer that was taken into the scheduler's queue has nothing."""

    pieces: Sequence[AnswerPiece] = ()
    logprobs: Sequence[TokenLogprob] = ()
    prompt_logprobs: Sequence[TokenLogprob] = ()
    end: End | None = None


class UpdateReceiver(Protocol):
    """Who waits for an answer, on the event loop."""

    def receive(self, update: Update, /) -> None:
        """Something new of it."""


Deliver = Callable[[Sequence[tuple[UpdateReceiver, Update]]], None]
"""Takes the updates of a step over to the event loop: may be called on any thread."""
Embed = Callable[[str | Sequence[int]], NDArray[np.float32]]
"""A text, or token ids, as a vector."""

STOPPED: Final = "the server is shutting down"
NOTHING_USED: Final = Usage(0, 0, 0, 0, 0, 0)


@dataclass(eq=False)
class _Running:
    """An answer that the scheduler has; seen, told: how many pieces and probabilities were handed back."""

    receiver: UpdateReceiver
    request: Request
    seen: int = 0
    told: int = 0


@dataclass
class _Embedding:
    """Texts, or token ids, that become vectors, one between two steps."""

    texts: Sequence[str | Sequence[int]]
    done: Callable[[NDArray[np.float32] | Exception], None]
    wanted: Callable[[], bool]
    vectors: list[NDArray[np.float32]] = field(default_factory=list)


class Worker:
    """Runs a scheduler. `submit`, `cancel` and `embed` may be called on any thread and return at once.

    The thread takes the device over and never gives it back: after `stop` another thread must take it over."""

    def __init__(self, scheduler: Scheduler, owner: OwnerThread, embed: Embed, deliver: Deliver) -> None:
        self._scheduler = scheduler
        self._owner = owner
        self._embed = embed
        self._deliver = deliver
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._running: dict[UpdateReceiver, _Running] = {}
        self._embeddings: list[_Embedding] = []
        self._updates: list[tuple[UpdateReceiver, Update]] = []
        self._stopping = False
        self._due = 0.0  # when what is new is handed back next
        self._began: float | None = None  # when the turn that runs began, which may wait for the device
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ptxrun-worker", daemon=True)
        self.status: SchedulerStatus = scheduler.status()
        """What the scheduler had after the last step."""
        self.failure: str = ""
        """Why nothing can be answered any more."""

    @property
    def busy_seconds(self) -> float:
        """How long the step that runs has taken so far; 0 if none does."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Cancel all answers and end the thread. Whether it has ended within so many seconds."""

        def stop() -> None:
            self._stopping = True

        self._call(stop)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def submit(self, receiver: UpdateReceiver, prompt: Sequence[int], options: Mapping[str, Any]) -> None:
        """Have a prompt answered, with options of Scheduler.submit."""
        self._call(lambda: self._submit(receiver, prompt, options))

    def cancel(self, receiver: UpdateReceiver) -> None:
        """End an answer before the next step, if it has not ended."""
        self._call(lambda: self._cancel(receiver))

    def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        done: Callable[[NDArray[np.float32] | Exception], None],
        wanted: Callable[[], bool],
    ) -> None:
        """Have texts, or token ids, made into vectors: `done` is called on the worker's thread. wanted: whether anybody still
        waits."""
        self._call(lambda: self._embeddings.append(_Embedding(texts, done, wanted)))

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        if self._over.is_set():  # no other thread takes calls any more
            self._refuse_all()

    def _run(self) -> None:
        try:
            self._owner.take_over()
            while not self._stopping:
                self._take_calls()
                self._began = time.monotonic()
                self._turn()
                self._began = None
        except Exception as error:
            _log.exception("the worker has failed")
            self.failure = f"the worker has failed: {error}"
        finally:
            self._began = None
            with suppress(Exception):  # of a scheduler that has failed
                self._scheduler.close()
            self._collect()
            self.failure = self.failure or STOPPED
            self._over.set()
            self._refuse_all()

    def _take_calls(self) -> None:
        """Make the calls that have come; without anything to do, wait for one."""
        wait = not self._running and not self._embeddings
        with suppress(Empty):
            for _ in range(MOST_CALLS):
                self._calls.get(block=wait)()
                wait = False

    def _turn(self) -> None:
        """A step for all answers, and a text for the first who wants vectors."""
        goes_on = bool(self._running) and not self._stopping and self._scheduler.step()
        if not goes_on or time.monotonic() >= self._due:
            self._collect()
            self._due = time.monotonic() + PACE * len(self._running)
        if self._embeddings and not self._stopping:
            self._embed_one(self._embeddings[0])

    def _submit(self, receiver: UpdateReceiver, prompt: Sequence[int], options: Mapping[str, Any]) -> None:
        try:
            if self._over.is_set() or self._scheduler.ended:
                raise WorkerStopped(self.failure or self._scheduler.ended)
            request = self._scheduler.submit(prompt, **options)
        except Exception as error:
            self._deliver([(receiver, Update(end=End("failed", NOTHING_USED, error)))])
            return
        self._running[receiver] = _Running(receiver, request)
        self._updates.append((receiver, Update()))

    def _cancel(self, receiver: UpdateReceiver) -> None:
        if running := self._running.get(receiver):
            running.request.cancel()

    def _collect(self) -> None:
        """Hand back what is new of all answers."""
        for running in list(self._running.values()):
            request = running.request
            pieces = request.after(running.seen)
            ended = request.stopped
            if not pieces and ended is None:
                continue
            logprobs = request.logprobs_after(running.told)
            prompt_logprobs = () if running.seen else request.prompt_logprobs
            running.seen += len(pieces)
            running.told += len(logprobs)
            end = None if ended is None else End(ended, request.usage, request.error)
            if end is not None:
                del self._running[running.receiver]
            self._updates.append((running.receiver, Update(pieces, logprobs, prompt_logprobs, end)))
        self.status = self._scheduler.status()
        if self._scheduler.ended and not self.failure:
            self.failure = self._scheduler.ended
        updates, self._updates = self._updates, []
        if updates:
            self._deliver(updates)

    def _embed_one(self, asked: _Embedding) -> None:
        if not asked.wanted():
            self._embeddings.remove(asked)
            return
        try:
            asked.vectors.append(self._embed(asked.texts[len(asked.vectors)]))
        except Exception as error:
            self._embeddings.remove(asked)
            asked.done(error)
            return
        if len(asked.vectors) == len(asked.texts):
            self._embeddings.remove(asked)
            asked.done(np.stack(asked.vectors))

    def _refuse_all(self) -> None:
        """Tell all who wait still, after the end."""
        with suppress(Empty):
            while True:
                self._calls.get_nowait()()
        for asked in self._embeddings:
            asked.done(WorkerStopped(self.failure))
        self._embeddings.clear()
