"""The stream that a device's work goes to: its own, or for some time one of the caller's. Belongs to cuda.py."""

from __future__ import annotations

from typing import Any

from executor.base.errors import DeviceError, LaunchError
from executor.device.cuda_event import Check, EventPool
from executor.device.stream_handle import stream_handle


class CurrentStream:
    """`cuda` is cuda.bindings.driver; the device's context must be the current one of the thread. What goes from one stream to
    another has the order in which it was started, and the host waits for none of it."""

    def __init__(self, cuda: Any, events: EventPool, check: Check, name: str) -> None:
        self.handle: Any = None
        """Where work goes; None until it is open."""
        self._cuda = cuda
        self._events = events
        self._check = check
        self._name = name
        self._made: Any = None
        self._kept: object = None  # a caller's may end with its last reference

    def open(self, given: object | None, context: Any) -> None:
        """Make a stream, or take the caller's, which must outlive the device."""
        if given is not None:
            self.handle = self.checked(stream_handle(given), context)
            self._kept = given
            return
        flags = self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        self.handle = self._made = self._check(self._cuda.cuStreamCreate(flags), "making a stream")

    def checked(self, handle: int, context: Any) -> int:
        """A caller's stream, if work of the device can go there: DeviceError for one of another GPU or context, LaunchError for
        one that is being captured."""
        cuda, doing = self._cuda, f"looking at stream {handle:#x}"
        if self._check(cuda.cuStreamGetCtx(handle), doing) != context:
            raise DeviceError(f"stream {handle:#x} is of another GPU or context; {self._name} needs one of its primary context")
        if self._check(cuda.cuStreamIsCapturing(handle), doing) != cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
            raise LaunchError(
                f"stream {handle:#x} is being captured by another library, of whose replays the executor would not know; "
                "capture with executor.capture(), and replay on the stream"
            )
        return handle

    def use(self, handle: Any) -> Any:
        """Have work go to another stream, after all that was started before; returns the one before."""
        before = self.handle
        if int(handle) != int(before):
            self.order(before, handle)
            self.handle = handle
        return before

    def order(self, before: Any, after: Any) -> None:
        """What stream `after` starts from now on waits for what stream `before` has started."""
        event = self._events.take()  # back in the pool at once: a wait keeps to the record before it, whatever comes later
        self._check(self._cuda.cuEventRecord(event.handle, before), "marking a stream")
        self._check(self._cuda.cuStreamWaitEvent(after, event.handle, 0), "ordering streams")

    def close(self) -> list[tuple[Any, ...]]:
        """Destroy the stream that was made; returns the driver's answers. A caller's stays."""
        self._kept = None
        return [] if self._made is None else [self._cuda.cuStreamDestroy(self._made)]
