"""Large uploads through two pinned buffers: while the GPU fetches one, the CPU fills the other. Belongs to cuda.py."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.device.protocol import BytesCopied
from executor.errors import DeviceError

CHUNK = 16 << 20
"""Bytes of each of the two buffers: long enough for full PCIe speed, short enough for a lively progress bar."""


class Staging:
    """Pinned memory of one device; `cuda` is cuda.bindings.driver, `stream` the device's stream."""

    def __init__(self, cuda: Any, stream: Any, name: str) -> None:
        self._cuda = cuda
        self._stream = stream
        self._name = name
        self._pointers = [int(self._checked(cuda.cuMemHostAlloc(CHUNK, 0))) for _ in range(2)]
        self._events = [self._checked(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING.value)) for _ in range(2)]
        self._arrays = [np.ctypeslib.as_array((ctypes.c_uint8 * CHUNK).from_address(pointer)) for pointer in self._pointers]

    def upload(self, pointer: int, array: NDArray[Any], progress: BytesCopied | None) -> None:
        """Copy a C-contiguous array; returns when its last byte has left the array."""
        source = array.reshape(-1).view(np.uint8)
        for number, start in enumerate(range(0, source.size, CHUNK)):
            half = number % 2
            chunk = source[start : start + CHUNK]
            self._checked(self._cuda.cuEventSynchronize(self._events[half]))  # returns at once if never recorded
            self._arrays[half][: chunk.size] = chunk
            self._checked(
                self._cuda.cuMemcpyHtoDAsync(pointer + start, self._pointers[half], chunk.size, self._stream),
            )
            self._checked(self._cuda.cuEventRecord(self._events[half], self._stream))
            if progress is not None:
                progress(chunk.size)

    def close(self) -> list[tuple[Any, ...]]:
        """Give the memory back; returns the driver's answers."""
        answers = [self._cuda.cuEventDestroy(event) for event in self._events]
        return answers + [self._cuda.cuMemFreeHost(pointer) for pointer in self._pointers]

    def _checked(self, result: tuple[Any, ...]) -> Any:
        status, *values = result
        if status:
            _, name = self._cuda.cuGetErrorName(status)
            raise DeviceError(f"uploading to {self._name}: {name.decode() if name else int(status)}")
        return values[0] if values else None
