"""What every device offers. A GPU (cuda.py) and the CPU emulator (emulated.py) implement it; nothing else talks to either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from executor.parameters import ParameterBlock
from ptxgen.target import Target

Grid = tuple[int, int, int]
BytesCopied = Callable[[int], None]
"""Called during a long copy with the number of bytes copied since the last call."""


@dataclass(frozen=True)
class LoadedKernel:
    """An entry that a device can launch. `handle` is the device's own; sizes in bytes; registers are 0 where there are none."""

    entry: str
    handle: Any
    shared_bytes: int = 0
    local_bytes: int = 0
    registers: int = 0


@dataclass(frozen=True)
class Memory:
    """Bytes of device memory: free and total of the machine, allocated by this device object."""

    free: int
    total: int
    allocated: int


class Event(Protocol):
    """A moment in the device's work."""


class Device(Protocol):
    """One GPU or the emulator. All work goes to one stream in order; copies to the host wait for it.

    Pointers are plain integers. Every method but `close` raises DeviceError on a closed device, and for a pointer that this
    device did not give out or has taken back.
    """

    name: str
    target: Target
    """What kernels are emitted for."""
    reason: str
    """Why `open_device` took this device."""
    wants_lines: bool
    """Whether text should carry `.loc` lines (the sanitiser names the author's line)."""
    frees: int
    """Counts `free` and `close`: while it stands still, every pointer seen alive is alive."""
    closed: bool

    @property
    def kind(self) -> Literal["cuda", "emulator"]: ...

    @property
    def build(self) -> str:
        """GPU and toolchain versions that compiled code depends on; part of every cache key."""

    @property
    def stream(self) -> Any:
        """The device's stream handle; None on the emulator."""

    def describe(self) -> dict[str, Any]:
        """Name, target, versions, memory: what a result file says about the machine."""

    def memory(self) -> Memory: ...

    def alloc(self, nbytes: int, name: str = "") -> int:
        """A pointer to `nbytes` (> 0) of memory on a 256-byte boundary, contents undefined. Raises DeviceError when there is
        no room."""

    def free(self, pointer: int) -> None:
        """Give back what `alloc` or `adopt` gave. A second time is a DeviceError."""

    def adopt(self, array: NDArray[Any], name: str = "") -> int | None:
        """A pointer to the array's own memory where the device can read it (the emulator), else None. The array is kept alive
        until `free`; a read-only array must not be written by a kernel."""

    def upload(self, pointer: int, array: NDArray[Any], progress: BytesCopied | None = None) -> None:
        """Copy a C-contiguous array to the device; the array may be changed when this returns."""

    def download(self, pointer: int, array: NDArray[Any]) -> None:
        """Fill a C-contiguous, writable array from the device, after all work before."""

    def fill(self, pointer: int, nbytes: int, byte: int = 0) -> None: ...

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy within the device; the ranges must not overlap."""

    def compile(self, text: str) -> bytes | None:
        """Code for `load` that may be kept on disk; None if the device keeps or makes its own."""

    def load(
        self, text: str, entry: str, image: bytes | None = None, cache_dir: Path | None = None
    ) -> tuple[LoadedKernel, bool]:
        """The kernel `entry` of a PTX text, and whether its code came from `cache_dir`. `image` is what `compile` gave for the
        text."""

    def launch(self, kernel: LoadedKernel, grid: Grid, block: Grid, parameters: ParameterBlock) -> None:
        """Start a kernel. Only executor/launch.py calls this: nothing is checked here."""

    def record(self) -> Event:
        """Mark this moment of the stream."""

    def elapsed(self, start: Event, end: Event) -> float:
        """Seconds of device time between two moments; waits for the second."""

    def synchronize(self) -> None:
        """Wait for all work; reports what went wrong in it."""

    def close(self) -> None:
        """Free everything. A second time does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def checked_bytes(array: NDArray[Any], *, writable: bool = False) -> int:
    """Size of a host array in bytes. Raises ValueError unless it is C-contiguous (and writable where asked)."""
    if not array.flags.c_contiguous or (writable and not array.flags.writeable):
        raise ValueError(
            f"host array of {array.dtype}{list(array.shape)} must be C-contiguous{' and writable' if writable else ''}"
        )
    return int(np.prod(array.shape, dtype=np.int64)) * array.itemsize
