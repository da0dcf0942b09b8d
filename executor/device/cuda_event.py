"""Events of one device, used again: a program that keeps recording has only as many as it holds at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[[tuple[Any, ...], str], Any]
"""Takes a driver's answer and what was being done; gives the values or raises."""


class CudaEvent:
    """An event of an EventPool, which reuses it after the last reference has gone."""

    __slots__ = ("_idle", "handle")

    def __init__(self, handle: Any, idle: list[Any]) -> None:
        self.handle = handle
        self._idle = idle

    def __del__(self) -> None:
        self._idle.append(self.handle)


class EventPool:
    """`cuda` is cuda.bindings.driver; the device's context must be the current one of the thread that takes or closes."""

    def __init__(self, cuda: Any, check: Check) -> None:
        self._cuda = cuda
        self._check = check
        self._made: list[Any] = []
        self._idle: list[Any] = []

    def take(self) -> CudaEvent:
        """An unused event that can be timed. It keeps its last record: record it before waiting for it."""
        try:
            handle = self._idle.pop()
        except IndexError:
            handle = self._check(self._cuda.cuEventCreate(0), "making an event")
            self._made.append(handle)
        return CudaEvent(handle, self._idle)

    def close(self) -> list[tuple[Any, ...]]:
        """Destroy all events, held or not; returns the driver's answers."""
        answers = [self._cuda.cuEventDestroy(handle) for handle in self._made]
        self._made.clear()
        return answers
