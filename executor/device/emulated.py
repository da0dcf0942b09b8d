"""The CPU emulator as a device: memory is host memory, a launch returns when the kernel has ended. Execution is
ptxgen.emulator's."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from executor.device.allocations import ALIGNMENT, Allocations
from executor.device.protocol import BytesCopied, Grid, LoadedKernel, Memory, checked_bytes
from executor.errors import DeviceError, SanitizerError
from executor.parameters import ParameterBlock
from executor.profile import settings
from ptxgen.emulator import MemoryMap, compile_module
from ptxgen.target import Target

ADOPTED_ALIGNMENT = 16
"""Bytes. Kernels load 16 bytes at once; an array that starts elsewhere has to be copied."""
UNNAMED = "a buffer without a name"


class EmulatedDevice:
    """PTX on the CPU. See protocol.Device.

    target: what text is emitted for; sm_90 by default, so that the emulator runs the very text of a current GPU.
    sanitize: check every access; findings of a launch raise SanitizerError. workers: threads (default: see executor.profile).
    seed: shuffles the order in which warps run.
    """

    kind: Literal["emulator"] = "emulator"
    stream = None

    def __init__(
        self, target: Target | None = None, *, sanitize: bool = False, workers: int | None = None, seed: int | None = None
    ) -> None:
        self.target = target or Target(90)
        self.sanitize = sanitize
        self.seed = seed
        self.workers = settings().emulator_workers if workers is None else workers
        self.name = f"emulator ({self.target}{', sanitizer' if sanitize else ''})"
        self.wants_lines = sanitize
        self.reason = ""
        self.frees = 0
        self.closed = False
        self._allocations = Allocations(self.name)
        self._map = MemoryMap() if sanitize else None

    @property
    def build(self) -> str:
        return f"emulator {self.target}"

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "target": str(self.target),
            "cpu": _cpu(),
            "workers": self.workers,
            "memory_bytes": self.memory().total,
            "llvmlite": version("llvmlite"),
            "numpy": version("numpy"),
        }

    def memory(self) -> Memory:
        page = os.sysconf("SC_PAGE_SIZE")
        free, total = os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
        return Memory(free, total, self._allocations.total)

    def alloc(self, nbytes: int, name: str = "") -> int:
        self._enter("allocating")
        if nbytes <= 0:
            raise DeviceError(f"{self.name}: cannot allocate {nbytes} bytes")
        try:
            block = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError) as error:
            raise DeviceError(f"{self.name}: no room for {nbytes} bytes") from error
        base = -(-block.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._allocations.add(base, nbytes, block)
        if self._map is not None:
            self._map.add(base, nbytes, name or UNNAMED, initialised=False)
        return base

    def free(self, pointer: int) -> None:
        self._enter("freeing")
        self._allocations.remove(pointer)
        self.frees += 1
        if self._map is not None:
            self._map.remove(pointer)

    def adopt(self, array: NDArray[Any], name: str = "") -> int | None:
        self._enter("adopting an array")
        nbytes = checked_bytes(array)
        base = array.ctypes.data
        if base % ADOPTED_ALIGNMENT:
            return None
        self._allocations.add(base, nbytes, array)
        if self._map is not None:
            self._map.add(base, nbytes, name or UNNAMED, read_only=not array.flags.writeable)
        return base

    def upload(self, pointer: int, array: NDArray[Any], progress: BytesCopied | None = None) -> None:
        self._enter("uploading")
        nbytes = checked_bytes(array)
        self._writable(pointer, nbytes, "upload")
        ctypes.memmove(pointer, array.ctypes.data, nbytes)
        if progress is not None:
            progress(nbytes)

    def download(self, pointer: int, array: NDArray[Any]) -> None:
        self._enter("downloading")
        nbytes = checked_bytes(array, writable=True)
        self._allocations.check(pointer, nbytes, "download")
        ctypes.memmove(array.ctypes.data, pointer, nbytes)

    def fill(self, pointer: int, nbytes: int, byte: int = 0) -> None:
        self._enter("filling memory")
        self._writable(pointer, nbytes, "fill")
        ctypes.memset(pointer, byte, nbytes)

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        self._enter("copying")
        self._allocations.check(source, nbytes, "copy")
        self._writable(destination, nbytes, "copy to")
        ctypes.memmove(destination, source, nbytes)

    def compile(self, text: str) -> bytes | None:
        return None

    def load(
        self, text: str, entry: str, image: bytes | None = None, cache_dir: Path | None = None
    ) -> tuple[LoadedKernel, bool]:
        self._enter("loading a kernel")
        kernel = compile_module(text, sanitize=self.sanitize, cache_dir=cache_dir).kernel(entry)
        return LoadedKernel(entry, kernel, shared_bytes=kernel.shared_bytes), kernel.from_cache

    def launch(self, kernel: LoadedKernel, grid: Grid, block: Grid, parameters: ParameterBlock) -> None:
        if self.closed:
            self._enter("launching")
        findings = kernel.handle.launch(
            grid, block, parameters.tobytes(), memory=self._map, workers=self.workers, seed=self.seed
        )
        if findings:
            raise SanitizerError(kernel.entry, findings)

    def record(self) -> float:
        self._enter("recording an event")
        return time.perf_counter()

    def elapsed(self, start: Any, end: Any) -> float:
        return float(end) - float(start)

    def synchronize(self) -> None:
        self._enter("waiting")

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.frees += 1
        for base in self._allocations.bases():
            self._allocations.remove(base)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enter(self, doing: str) -> None:
        if self.closed:
            raise DeviceError(f"{self.name} is closed; {doing} needs an open device")

    def _writable(self, pointer: int, nbytes: int, doing: str) -> None:
        """Check the range before it is written, and note that it holds something from now on."""
        base, owner = self._allocations.check(pointer, nbytes, doing)
        if not owner.flags.writeable:
            raise DeviceError(
                f"{self.name}: cannot {doing} {nbytes} bytes at {pointer:#x}, which is a read-only array of the host"
            )
        if self._map is not None:
            self._map.mark_written(base, pointer - base, nbytes)


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor()
    return platform.processor()
