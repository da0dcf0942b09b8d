"""Small downloads through a pinned page: from pageable memory the driver would copy and wait once more by itself. Belongs to
cuda.py."""

from __future__ import annotations

import ctypes
from typing import Any

from numpy.typing import NDArray

from executor.device.cuda_event import Check

PAGE = 64 << 10
"""Bytes. A token or a flag has 4; what is larger is bound by the copy itself."""


class Readback:
    """`cuda` is cuda.bindings.driver, `stream` the device's stream; `check` as in Staging."""

    def __init__(self, cuda: Any, stream: Any, check: Check, name: str) -> None:
        self._cuda = cuda
        self._stream = stream
        self._check = check
        self._doing = f"downloading from {name}"
        self._page = int(check(cuda.cuMemHostAlloc(PAGE, 0), f"pinning memory for {name}"))

    def start(self, pointer: int, nbytes: int) -> None:
        """Copy at most PAGE bytes, when the stream has come so far."""
        self._check(self._cuda.cuMemcpyDtoHAsync(self._page, pointer, nbytes, self._stream), self._doing)

    def finish(self, array: NDArray[Any]) -> None:
        """Fill the array with what was copied; the stream must have been waited for."""
        ctypes.memmove(array.ctypes.data, self._page, array.nbytes)

    def close(self) -> list[tuple[Any, ...]]:
        """Give the memory back; returns the driver's answers."""
        return [self._cuda.cuMemFreeHost(self._page)]
