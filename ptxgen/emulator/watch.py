"""Has compiled code that runs for long come back to Python now and then: signal handlers run, and a launch can be stopped,
between two calls of it. What a launch does then is workers.py's and together.py's."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable

from ptxgen.emulator.layout import ContextWord
from ptxgen.emulator.scratch import Scratch

Run = Callable[[int, int, int], int]
"""A kernel's @run: address of a context, first block, last block -> FINISHED, PAUSED or what went wrong."""

_INTERVAL = 0.1
"""Seconds after which a call pauses, or a little more: where a warp next jumps backwards or has had its turn."""
_IDLE_TICKS = 20


class TimeLimit:
    """How long a launch may take from now on, in seconds; None for as long as it takes."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._started = time.perf_counter()

    @property
    def passed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started

    @property
    def is_over(self) -> bool:
        """Whether the launch has had its time."""
        return self.seconds is not None and self.passed >= self.seconds


def call(run: Run, scratch: Scratch, first: int, last: int) -> int:
    """Run blocks first..last-1, or go on with them, until they end, one stops the launch, or the time for a pause has come
    (PAUSED). Pauses change nothing of what the kernel does."""
    context = scratch.context
    context[ContextWord.LIMIT] = context[ContextWord.QUANTUM]
    _watch.running[id(scratch)] = context
    try:
        if _watch.is_idle:
            _watch.wake()
        return run(scratch.address, first, last)
    finally:
        _watch.running.pop(id(scratch), None)


class _Watch:
    """A thread that asks the calls under way to pause, every _INTERVAL; it sleeps while there are none."""

    def __init__(self) -> None:
        self.running: dict[int, ctypes.Array[ctypes.c_int64]] = {}
        self.is_idle = True
        self._woken = threading.Event()
        self._started = False

    def wake(self) -> None:
        """There is something to watch."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._serve, name="ptx watch", daemon=True).start()
        self._woken.set()

    def _serve(self) -> None:
        idle = _IDLE_TICKS
        while True:
            if idle >= _IDLE_TICKS:
                self.is_idle = True  # in this order: who adds a call after the look below sees it
                if not self.running:
                    self._woken.wait()
                self._woken.clear()
                self.is_idle, idle = False, 0
            time.sleep(_INTERVAL)
            contexts = list(self.running.values())
            for context in contexts:
                context[ContextWord.LIMIT] = 0
            idle = 0 if contexts else idle + 1


def _no_thread() -> None:
    global _watch
    _watch = _Watch()


_watch = _Watch()
os.register_at_fork(after_in_child=_no_thread)  # a child has none of its parent's threads
