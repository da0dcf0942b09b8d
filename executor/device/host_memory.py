"""Memory of a device that the host sees as arrays: what the emulator and a dry run have in common."""

from __future__ import annotations

import ctypes
import platform
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import DeviceError
from executor.device.allocations import Allocations
from executor.device.owner import OwnerThread
from executor.device.protocol import BytesCopied, DeviceMemory, ReadInto, checked_bytes, copying


class HostMemory(DeviceMemory):
    """Copies and fills; where the bytes are, and whether they may be written, is what a subclass adds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self.frees = 0
        self.owner = OwnerThread(name)
        self.allocations = Allocations(name)

    @abstractmethod
    def view(self, pointer: int, nbytes: int, doing: str, *, write: bool = False) -> NDArray[np.uint8]:
        """The bytes of a range, of which `write` says that they will be overwritten. DeviceError where that is not allowed."""

    def released(self, base: int) -> None:
        """The allocation that started here is gone."""

    def free(self, pointer: int, ticket: int | None = None) -> None:
        self.enter("freeing")
        if ticket is None:
            self.frees += 1
        elif self.allocations.ticket(pointer) != ticket:
            return
        self.allocations.remove(pointer)
        self.released(pointer)

    def upload(self, pointer: int, array: NDArray[Any], progress: BytesCopied | None = None) -> None:
        self.enter("uploading", immediate=True)
        self.upload_from(pointer, checked_bytes(array), copying(array), progress)

    def upload_from(self, pointer: int, nbytes: int, read: ReadInto, progress: BytesCopied | None = None) -> None:
        self.enter("uploading", immediate=True)
        read(0, self.view(pointer, nbytes, "upload", write=True))
        if progress is not None:
            progress(nbytes)

    def download(self, pointer: int, array: NDArray[Any]) -> None:
        self.enter("downloading", immediate=True)
        nbytes = checked_bytes(array, writable=True)
        array.reshape(-1).view(np.uint8)[:] = self.view(pointer, nbytes, "download")

    def fill(self, pointer: int, nbytes: int, byte: int = 0) -> None:
        self.enter("filling memory", immediate=True)
        self.view(pointer, nbytes, "fill", write=True)[:] = byte

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        self.enter("copying", immediate=True)
        content = self.view(source, nbytes, "copy")
        self.view(destination, nbytes, "copy to", write=True)[:] = content

    def enter(self, doing: str, *, immediate: bool = False) -> None:
        """Pass the checks that every use needs."""
        if self.closed:
            raise DeviceError(f"{self.name} is closed; {doing} needs an open device")
        self.owner.check(doing, immediate=immediate)


def host_bytes(pointer: int, nbytes: int) -> NDArray[np.uint8]:
    """Memory of the host as an array, which does not keep it."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))


def cpu_name() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
