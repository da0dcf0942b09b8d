"""A GPU that is open: its context and stream, the thread that owns it, the check of the driver's answers, and the launches that
may be at fault when an answer is a fault. What the GPU is used for is in cuda.py."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from executor.base.errors import DeviceError, DeviceFailed
from executor.device.allocations import Allocations
from executor.device.cuda_context import LAUNCH_HISTORY, PrimaryContext
from executor.device.cuda_event import EventPool
from executor.device.cuda_gpu import GpuFacts
from executor.device.cuda_stream import CurrentStream
from executor.device.owner import OwnerThread

_current = threading.local()  # .context: the PrimaryContext that is current on this thread


class OpenGpu:
    """The state of an open GPU that every call to the driver needs. `cuda` is cuda.bindings.driver.

    It retains the GPU's primary context, which the subclass leaves when it closes; errors as PrimaryContext.join. `closed`,
    `frees`, `waits`, `owner` and `allocations` are those of protocol.Device."""

    closed = True  # until it is open

    def __init__(self, cuda: Any, facts: GpuFacts) -> None:
        self.ordinal, self.name = facts.ordinal, facts.name
        self.frees = 0
        self.waits = 0
        self.owner = OwnerThread(self.name)
        self.allocations = Allocations(self.name)
        self._cuda = cuda
        self._gpu = facts.handle
        self._launched: deque[object] = deque(maxlen=LAUNCH_HISTORY)  # since the last wait
        self._launches = 0
        self._cooperative = False  # whether blocks of one of them wait for each other
        self._peers = False  # whether one of them waits for other devices
        self._context, self._handle = PrimaryContext.join(cuda, facts.ordinal, facts.handle, self, self.name)
        self._events = EventPool(cuda, self._checked)
        self._stream = CurrentStream(cuda, self._events, self._checked, self.name)

    @property
    def failed(self) -> bool:
        """Whether a fault has broken the device."""
        return bool(self._context.cause)

    def enter(self, doing: str, *, immediate: bool = False) -> None:
        """Pass the checks of the owner, and make this device's context the current one of the thread."""
        if self.closed:
            raise DeviceError(f"{self.name} is closed; {doing} needs an open device")
        self.owner.check(doing, immediate=immediate)
        if cause := self._context.cause:
            raise DeviceFailed(f"{self.name} has failed and refuses {doing}; it failed with: {cause}", cause)
        if getattr(_current, "context", None) is not self._context:
            self._checked(self._cuda.cuCtxSetCurrent(self._handle), "entering the context")
            _current.context = self._context

    def enter_anew(self, doing: str, *, immediate: bool = False) -> None:
        """`enter`, where a library that was called since may have made its own context the thread's current one."""
        self._forget_current()
        self.enter(doing, immediate=immediate)

    def checked_stream(self, handle: int) -> int:
        """A caller's stream, if work can go there; errors as CurrentStream.checked."""
        return self._stream.checked(handle, self._handle)

    def synchronize(self) -> None:
        """Wait for all work of the stream."""
        self.enter("waiting")
        self.waits += 1
        self._checked(self._cuda.cuStreamSynchronize(self._stream.handle), "waiting for the work")
        self._launched.clear()
        self._cooperative = self._peers = False
        self.owner.run_deferred()

    def _note_launch(self, work: object) -> None:
        self._launched.append(work)
        self._launches += 1

    def _wait_for(self, launches: int, event: Any) -> None:
        """Wait for the event of a fetch, which comes after so many launches of the device."""
        self.enter("waiting for a copy")
        self.waits += 1
        self._checked(self._cuda.cuEventSynchronize(event), "waiting for a copy")
        while len(self._launched) > self._launches - launches:
            self._launched.popleft()
        self.owner.run_deferred()

    def _checked(self, result: tuple[Any, ...], doing: str) -> Any:
        """The values of a driver call. Raises DeviceError with the driver's words and what was being done; DeviceFailed from a
        fault on."""
        status, *values = result
        if status:
            doing = f"{doing} on {self.name}"
            raise self._failure(status, doing)
        return values[0] if len(values) == 1 else tuple(values)

    def _failure(self, status: Any, doing: str) -> DeviceError:
        return self._context.failure(status, doing, self._launched, self.name, cooperative=self._cooperative, peers=self._peers)

    @staticmethod
    def _forget_current() -> None:
        """Another context may be current on this thread than the one that was made so last."""
        _current.context = None
