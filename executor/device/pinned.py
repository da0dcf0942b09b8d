"""Copies through pinned memory: large uploads, of which the GPU fetches one part while the CPUs fill the next, and small
downloads. Belongs to cuda.py. `cuda` is cuda.bindings.driver, `stream` says where the device's work goes; `check` takes a
driver's answer and what was being done, and gives the values or raises."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

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


class UploadStaging:
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
    """A page of pinned memory with bytes on their way into it. It is used again when the last reference has gone."""

    __slots__ = ("_idle", "pointer")

    def __init__(self, pointer: int, idle: list[int]) -> None:
        self.pointer = pointer
        self._idle = idle

    def __del__(self) -> None:
        # An earlier copy may still be under way: the next one into the page comes after it on the stream.
        self._idle.append(self.pointer)


class FetchSlot(NamedTuple):
    """Where a fetch goes: as many bytes of the device, from there to a page, and an event that says when they are there."""

    device: int
    page: int
    event: Any


class SlotInUse:
    """A slot that has bytes on their way. It is used again when the last reference has gone; who does so waits for those that
    have not `come`, as far as anybody knows."""

    __slots__ = ("_idle", "come", "slot")

    def __init__(self, slot: FetchSlot, idle: list[tuple[FetchSlot, bool]]) -> None:
        self.slot = slot
        self.come = False
        self._idle = idle

    def __del__(self) -> None:
        self._idle.append((self.slot, self.come))


class PinnedFetch(Fetch):
    """A fetch through a slot. wait: waits for its event."""

    def __init__(self, used: SlotInUse, array: NDArray[Any], wait: Callable[[Any], None]) -> None:
        self._used: SlotInUse | None = used
        self._array = array
        self._wait = wait

    def to_numpy(self) -> NDArray[Any]:
        if self._used is not None:
            self._wait(self._used.slot.event)
            self._used.come = True
            ctypes.memmove(self._array.ctypes.data, self._used.slot.page, self._array.nbytes)
            self._used = None
        return self._array


class Readback:
    """The pages of one device's small downloads, as many as are held at once: from pageable memory the driver would copy once
    more and wait itself."""

    def __init__(self, cuda: Any, stream: CurrentStream, check: Check) -> None:
        self._cuda = cuda
        self._stream = stream
        self._check = check
        self._pages: list[int] = []
        self._idle: list[int] = []

    def start(self, pointer: int, nbytes: int) -> Page:
        """Copy at most PAGE bytes, when the stream has come so far."""
        page = Page(self._idle.pop() if self._idle else self._made(), self._idle)
        self._check(self._cuda.cuMemcpyDtoHAsync(page.pointer, pointer, nbytes, self._stream.handle), "downloading")
        return page

    def close(self) -> list[tuple[Any, ...]]:
        """Give the memory back; returns the driver's answers."""
        return [self._cuda.cuMemFreeHost(page) for page in self._pages]

    def _made(self) -> int:
        self._pages.append(int(self._check(self._cuda.cuMemHostAlloc(PAGE, 0), "pinning memory")))
        return self._pages[-1]


class Fetches:
    """The slots of one device's fetches, as many as are held at once. What the stream does after one waits for a copy on the
    device alone, and not for that to the host, which is in a stream beside it, so the next step starts earlier."""

    def __init__(self, cuda: Any, stream: CurrentStream, check: Check) -> None:
        self._cuda = cuda
        self._stream = stream
        self._check = check
        self._beside: Any = None
        self._slots: list[FetchSlot] = []
        self._idle: list[tuple[FetchSlot, bool]] = []

    def start(self, pointer: int, nbytes: int) -> SlotInUse:
        """Copy at most PAGE bytes as they are when the stream has come so far."""
        cuda, check, stream = self._cuda, self._check, self._stream
        slot, come = self._idle.pop() if self._idle else (self._made(), True)
        used = SlotInUse(slot, self._idle)
        if not come:
            stream.order(self._beside, stream.handle)
        check(cuda.cuMemcpyDtoDAsync(slot.device, pointer, nbytes, stream.handle), "fetching")
        stream.order(stream.handle, self._beside)
        check(cuda.cuMemcpyDtoHAsync(slot.page, slot.device, nbytes, self._beside), "fetching")
        check(cuda.cuEventRecord(slot.event, self._beside), "marking a copy")
        return used

    def close(self) -> list[tuple[Any, ...]]:
        """Wait for all, and give memory and stream back; returns the driver's answers."""
        cuda = self._cuda
        answers = [] if self._beside is None else [cuda.cuStreamSynchronize(self._beside), cuda.cuStreamDestroy(self._beside)]
        for slot in self._slots:
            answers += [cuda.cuEventDestroy(slot.event), cuda.cuMemFreeHost(slot.page), cuda.cuMemFree(slot.device)]
        return answers

    def _made(self) -> FetchSlot:
        cuda, check = self._cuda, self._check
        if self._beside is None:
            flags = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING.value
            self._beside = check(cuda.cuStreamCreate(flags), "making a stream")
        with ExitStack() as undo:
            device = int(check(cuda.cuMemAlloc(PAGE), "allocating"))
            undo.callback(cuda.cuMemFree, device)
            page = int(check(cuda.cuMemHostAlloc(PAGE, 0), "pinning memory"))
            undo.callback(cuda.cuMemFreeHost, page)
            event = check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING.value), "making an event")
            undo.pop_all()
        self._slots.append(FetchSlot(device, page, event))
        return self._slots[-1]
