"""Large uploads through pinned buffers: while the GPU fetches one, the CPUs fill the next. Belongs to cuda.py."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.device.cuda_event import Check
from executor.device.protocol import BytesCopied

CHUNK = 16 << 20
"""Bytes of a buffer: long enough for full PCIe speed, short enough for a lively progress bar."""
BUFFERS = 2
COPIERS = 4
"""Most threads that fill a buffer. One is held up by the page faults of a mapped file long before memory is."""


class Staging:
    """Pinned memory of one device; `cuda` is cuda.bindings.driver, `stream` the device's stream. `check` takes a driver's
    answer and what was being done, and gives the values or raises."""

    def __init__(self, cuda: Any, stream: Any, check: Check, name: str) -> None:
        self._cuda = cuda
        self._stream = stream
        self._check = check
        self._doing = f"uploading to {name}"
        self._turn = 0
        self._pointers: list[int] = []
        self._events: list[Any] = []
        self._copiers = min(COPIERS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(self._copiers, thread_name_prefix="upload")
        try:
            flags = cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
            for _ in range(BUFFERS):
                self._pointers.append(int(check(cuda.cuMemHostAlloc(CHUNK, 0), f"pinning memory for {name}")))
                self._events.append(check(cuda.cuEventCreate(flags), "making an event"))
        except BaseException:
            self.close()
            raise
        self._arrays = [np.ctypeslib.as_array((ctypes.c_uint8 * CHUNK).from_address(pointer)) for pointer in self._pointers]

    def upload(self, pointer: int, array: NDArray[Any], progress: BytesCopied | None) -> None:
        """Copy a C-contiguous array; returns when its last byte has left the array."""
        source = array.reshape(-1).view(np.uint8)
        try:
            for start in range(0, source.size, CHUNK):
                chunk = source[start : start + CHUNK]
                self._send(pointer + start, chunk)
                if progress is not None:
                    progress(chunk.size)
        except BaseException:
            # An interrupt may have come between a copy and its event: then only an idle stream says that the buffer is free.
            self._cuda.cuStreamSynchronize(self._stream)
            raise

    def _send(self, pointer: int, chunk: NDArray[np.uint8]) -> None:
        cuda, turn = self._cuda, self._turn
        self._check(cuda.cuEventSynchronize(self._events[turn]), self._doing)  # returns at once if never recorded
        self._fill(self._arrays[turn], chunk)
        self._check(cuda.cuMemcpyHtoDAsync(pointer, self._pointers[turn], chunk.size, self._stream), self._doing)
        self._check(cuda.cuEventRecord(self._events[turn], self._stream), self._doing)
        self._turn = (turn + 1) % BUFFERS

    def _fill(self, buffer: NDArray[np.uint8], chunk: NDArray[np.uint8]) -> None:
        """Copy with several threads: NumPy lets go of the interpreter lock meanwhile."""
        part = -(-chunk.size // self._copiers)

        def copy(start: int) -> None:
            end = min(start + part, chunk.size)
            buffer[start:end] = chunk[start:end]

        list(self._pool.map(copy, range(0, chunk.size, part)))

    def close(self) -> list[tuple[Any, ...]]:
        """Give the memory back; returns the driver's answers."""
        self._pool.shutdown()
        answers = [self._cuda.cuEventDestroy(event) for event in self._events]
        return answers + [self._cuda.cuMemFreeHost(pointer) for pointer in self._pointers]
