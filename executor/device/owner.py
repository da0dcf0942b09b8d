"""The one thread that a device belongs to, and the calls that wait until that thread uses the device next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from executor.base.errors import DeviceError, LaunchError


class OwnerThread:
    """`ident`: the identifier of the owning thread, at first the one that opened the device. `capturing`: launches are being
    recorded, so nothing may happen immediately."""

    __slots__ = ("_deferred", "_device", "_running", "capturing", "ident")

    def __init__(self, device: str) -> None:
        self.ident = get_ident()
        self.capturing = False
        self._device = device
        self._running = False
        self._deferred: deque[Callable[[], None]] = deque()

    def check(self, doing: str, *, immediate: bool = False) -> None:
        """Raises DeviceError on any other thread; LaunchError for what happens immediately during a capture."""
        if get_ident() != self.ident:
            raise DeviceError(
                f"{self._device} belongs to {_thread_name(self.ident)}, and {doing} was attempted on "
                f"{_thread_name(get_ident())}; give each thread an executor of its own, or call take_over() on the new thread "
                "when the old one is done"
            )
        if immediate and self.capturing:
            raise LaunchError(
                f"{doing} on {self._device} happens at once, which cannot be captured; do this outside the capture"
            )

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In the block things may happen immediately during a capture, too: to memory that is new, so that no launch which was
        recorded can be meant to come before."""
        capturing, self.capturing = self.capturing, False
        try:
            yield
        finally:
            self.capturing = capturing

    def take_over(self) -> None:
        """From now on the device belongs to the calling thread. DeviceError while a kernel runs for another one."""
        if self._running and get_ident() != self.ident:
            raise DeviceError(
                f"{self._device} is running a kernel for {_thread_name(self.ident)}; take it over when that has ended"
            )
        self.ident = get_ident()

    @contextmanager
    def running(self) -> Iterator[None]:
        """In the block the device uses its memory without holding Python's lock, so no other thread may take it over."""
        self._running = True
        try:
            yield
        finally:
            self._running = False

    def defer(self, call: Callable[[], None]) -> None:
        """Have the owner make this call when the device next gives out or takes back memory, or waits. May be called on any
        thread at any time, even by the garbage collector in the middle of anything."""
        self._deferred.append(call)

    def run_deferred(self) -> None:
        """Make the deferred calls; only the owner may."""
        while self._deferred:
            self._deferred.popleft()()


def _thread_name(ident: int) -> str:
    names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
    return f"thread {names[0] if names else ident}"
