"""Who may use a device at this moment, and what waits until it is used next. What is done with it is the device's business."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from executor.base.errors import DeviceError, LaunchError


class Gate:
    """`thread`: the identifier of the one thread that the device belongs to, at first the one that opened it. `capturing`: that
    launches are being recorded, so that nothing may happen at once."""

    __slots__ = ("_later", "_name", "_running", "capturing", "thread")

    def __init__(self, name: str) -> None:
        self.thread = get_ident()
        self.capturing = False
        self._name = name
        self._running = False
        self._later: deque[Callable[[], None]] = deque()

    def check(self, doing: str, *, at_once: bool = False) -> None:
        """Raises DeviceError on a thread that is not the device's, LaunchError for what happens `at_once` while a capture is
        under way."""
        if get_ident() != self.thread:
            raise DeviceError(
                f"{self._name} belongs to {_words(self.thread)}, and {doing} was asked for on {_words(get_ident())}; give each "
                "thread an executor of its own, or call take_over() on the new thread when the old one is done"
            )
        if at_once and self.capturing:
            raise LaunchError(
                f"{doing} on {self._name} happens at once, which a graph cannot hold; do this outside the capture"
            )

    def take_over(self) -> None:
        """From now on the device belongs to the calling thread. DeviceError while a kernel runs for another one."""
        if self._running and get_ident() != self.thread:
            raise DeviceError(f"{self._name} is running a kernel for {_words(self.thread)}; wait for its end to take it over")
        self.thread = get_ident()

    @contextmanager
    def running(self) -> Iterator[None]:
        """In the block the device uses its memory without holding Python's lock, so nobody may take it over."""
        self._running = True
        try:
            yield
        finally:
            self._running = False

    def later(self, do: Callable[[], None]) -> None:
        """Do this when the device next gives out or takes back memory, or waits. May be called on any thread, at any time: by
        the garbage collector in the middle of anything."""
        self._later.append(do)

    def settle(self) -> None:
        """Do what was left for later; the device's own thread calls this."""
        while self._later:
            self._later.popleft()()


def _words(ident: int) -> str:
    names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
    return f"thread {names[0] if names else ident}"
