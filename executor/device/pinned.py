"""Copies through pinned memory: large uploads, of which the GPU fetches one part while the CPUs fill the next, and small
downloads. Belongs to cuda.py. `cuda` is cuda.bindings.driver, `stream` says where the device's work goes; `check` takes a
driver's answer and what was being done, and gives the values or raises."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.device.cuda_event import Check
from executor.device.cuda_stream import CurrentStream
from executor.device.protocol import MOST_FETCHED, BytesCopied, Fetch, ReadInto

CHUNK = 16 << 20
"""Bytes of an upload's buffer: long enough for full PCIe speed, short enough for a lively progress bar."""
BUFFERS = 2
ONE_THREAD_BELOW = 1 << 20
"""Bytes below which one thread has filled a buffer before others have begun."""
COPIERS = 4
"""Most threads that fill a buffer. One is held up by the system's copy out of its page cache long before memory is."""
PAGE = MOST_FETCHED
"""Bytes of a small download. A token or a flag has 4; what is larger is bound by the copy itself."""


class Staging:
    """The buffers of one device's large uploads."""

    def __init__(self, cuda: Any, stream: CurrentStream, check: Check) -> None:
        self._cuda = cuda
        self._stream = stream
        self._check = check
        self._turn = 0
        self._pointers: list[int] = []
        self._events: list[Any] = []
        self._copiers = min(COPIERS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(self._copiers, thread_name_prefix="upload")
        try:
            flags = cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
            for _ in range(BUFFERS):
                self._pointers.append(int(check(cuda.cuMemHostAlloc(CHUNK, 0), "pinning memory")))
                self._events.append(check(cuda.cuEventCreate(flags), "making an event"))
        except BaseException:
            self.close()
            raise
        self._arrays = [np.ctypeslib.as_array((ctypes.c_uint8 * CHUNK).from_address(pointer)) for pointer in self._pointers]

    def upload(self, pointer: int, nbytes: int, read: ReadInto, progress: BytesCopied | None) -> None:
        """Copy what `read` gives; returns when it has given its last byte."""
        try:
            for start in range(0, nbytes, CHUNK):
                size = min(CHUNK, nbytes - start)
                self._send(pointer + start, start, size, read)
                if progress is not None:
                    progress(size)
        except BaseException:
            # An interrupt may have come between a copy and its event: then only an idle stream says that the buffer is free.
            self._cuda.cuStreamSynchronize(self._stream.handle)
            raise

    def _send(self, pointer: int, start: int, size: int, read: ReadInto) -> None:
        cuda, turn = self._cuda, self._turn
        self._check(cuda.cuEventSynchronize(self._events[turn]), "uploading")  # returns at once if never recorded
        self._fill(self._arrays[turn][:size], start, read)
        self._check(cuda.cuMemcpyHtoDAsync(pointer, self._pointers[turn], size, self._stream.handle), "uploading")
        self._check(cuda.cuEventRecord(self._events[turn], self._stream.handle), "uploading")
        self._turn = (turn + 1) % BUFFERS

    def _fill(self, buffer: NDArray[np.uint8], start: int, read: ReadInto) -> None:
        """Read with several threads: the system and NumPy release the interpreter lock meanwhile."""
        if buffer.size < ONE_THREAD_BELOW:
            read(start, buffer)
            return
        part = -(-buffer.size // self._copiers)

        def fill(at: int) -> None:
            read(start + at, buffer[at : at + part])

        list(self._pool.map(fill, range(0, buffer.size, part)))

    def close(self) -> list[tuple[Any, ...]]:
        """Give the memory back; returns the driver's answers."""
        self._pool.shutdown()
        answers = [self._cuda.cuEventDestroy(event) for event in self._events]
        return answers + [self._cuda.cuMemFreeHost(pointer) for pointer in self._pointers]


class Page:
    """A page of a Readback with bytes on their way into it, and an event that may say when they are there. It is used again
    when the last reference has gone."""

    __slots__ = ("_idle", "event", "pointer")

    def __init__(self, pointer: int, event: Any, idle: list[tuple[int, Any]]) -> None:
        self.pointer = pointer
        self.event = event
        self._idle = idle

    def __del__(self) -> None:
        # A copy that nobody waited for may be under way still: the next one into the page comes after it on the stream.
        self._idle.append((self.pointer, self.event))


class PinnedFetch(Fetch):
    """A fetch through a page. wait: waits for its event."""

    def __init__(self, page: Page, array: NDArray[Any], wait: Callable[[Page], None]) -> None:
        self._page: Page | None = page
        self._array = array
        self._wait = wait

    def to_numpy(self) -> NDArray[Any]:
        if self._page is not None:
            self._wait(self._page)
            ctypes.memmove(self._array.ctypes.data, self._page.pointer, self._array.nbytes)
            self._page = None
        return self._array


class Readback:
    """The pages of one device's small downloads, as many as are held at once: from pageable memory the driver would copy once
    more and wait itself."""

    def __init__(self, cuda: Any, stream: CurrentStream, check: Check) -> None:
        self._cuda = cuda
        self._stream = stream
        self._check = check
        self._pages: list[int] = []
        self._events: list[Any] = []
        self._idle: list[tuple[int, Any]] = []

    def start(self, pointer: int, nbytes: int) -> Page:
        """Copy at most PAGE bytes, when the stream has come so far."""
        page = Page(*(self._idle.pop() if self._idle else self._made()), self._idle)
        self._check(self._cuda.cuMemcpyDtoHAsync(page.pointer, pointer, nbytes, self._stream.handle), "downloading")
        return page

    def mark(self, page: Page) -> None:
        """Have the page's event say when what was started last is there."""
        self._check(self._cuda.cuEventRecord(page.event, self._stream.handle), "marking a copy")

    def close(self) -> list[tuple[Any, ...]]:
        """Give the memory back; returns the driver's answers."""
        answers = [self._cuda.cuEventDestroy(event) for event in self._events]
        return answers + [self._cuda.cuMemFreeHost(page) for page in self._pages]

    def _made(self) -> tuple[int, Any]:
        self._pages.append(int(self._check(self._cuda.cuMemHostAlloc(PAGE, 0), "pinning memory")))
        flags = self._cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
        self._events.append(self._check(self._cuda.cuEventCreate(flags), "making an event"))
        return self._pages[-1], self._events[-1]
