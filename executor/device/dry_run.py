"""Memory of a dry run: a model is laid out in it to see what it needs, on any machine and without reading its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.device.allocations import ALIGNMENT, Allocations
from executor.device.owner import OwnerThread
from executor.device.protocol import BytesCopied, DeviceMemory, ReadInto, checked_bytes


class DryRunMemory(DeviceMemory):
    """Addresses with nothing behind them but what the host puts there: an allocation takes room when it is first written, and
    read-only memory is read when it is first looked at."""

    sharing = None

    def __init__(self) -> None:
        self.name = "a dry run"
        self.closed = False
        self.frees = 0
        self.owner = OwnerThread(self.name)
        self.allocations = Allocations(self.name)
        self._next = ALIGNMENT
        self._contents: dict[int, NDArray[np.uint8]] = {}  # of what was written or looked at, by start

    def alloc(self, nbytes: int, name: str = "") -> int:
        return self._add(nbytes, None)

    def alloc_read_only(self, nbytes: int, read: ReadInto, name: str = "") -> int:
        return self._add(nbytes, read)

    def free(self, pointer: int, ticket: int | None = None) -> None:
        if ticket is None:
            self.frees += 1
        elif self.allocations.ticket(pointer) != ticket:
            return
        self.allocations.remove(pointer)
        self._contents.pop(pointer, None)

    def written(self, pointer: int) -> bool:
        """Whether the host has put anything into the allocation that starts here."""
        return pointer in self._contents

    def upload(self, pointer: int, array: NDArray[Any], progress: BytesCopied | None = None) -> None:
        nbytes = checked_bytes(array)
        self._bytes(pointer, nbytes, "upload")[:] = array.reshape(-1).view(np.uint8)
        if progress is not None:
            progress(nbytes)

    def upload_from(self, pointer: int, nbytes: int, read: ReadInto, progress: BytesCopied | None = None) -> None:
        read(0, self._bytes(pointer, nbytes, "upload"))
        if progress is not None:
            progress(nbytes)

    def download(self, pointer: int, array: NDArray[Any]) -> None:
        nbytes = checked_bytes(array, writable=True)
        array.reshape(-1).view(np.uint8)[:] = self._bytes(pointer, nbytes, "download")

    def fill(self, pointer: int, nbytes: int, byte: int = 0) -> None:
        self._bytes(pointer, nbytes, "fill")[:] = byte

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        self._bytes(destination, nbytes, "copy to")[:] = self._bytes(source, nbytes, "copy")

    def _add(self, nbytes: int, read: ReadInto | None) -> int:
        base = self._next
        self._next += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.allocations.add(base, nbytes, (nbytes, read))
        return base

    def _bytes(self, pointer: int, nbytes: int, doing: str) -> NDArray[np.uint8]:
        base, (whole, read) = self.allocations.check(pointer, nbytes, doing)
        if base not in self._contents:
            self._contents[base] = np.zeros(whole, np.uint8)
            if read is not None:
                read(0, self._contents[base])
        return self._contents[base][pointer - base :][:nbytes]
