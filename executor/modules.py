"""Kernel types -> loaded kernels: emits each text once, loads each distinct text once, keeps compiled code on disk."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from executor.device.protocol import Device, LoadedKernel
from executor.disk_cache import DiskCache, trim
from executor.profile import settings
from ptxgen.kernels.kernel_type import KernelType
from ptxgen.module import Emitted, emit

Progress = Callable[[int, int], None]
"""Called with how many kernels are loaded, and how many there are."""

_log = logging.getLogger(__name__)


@dataclass
class Counts:
    """What loading has cost so far. memory_hits: asked again for a kernel, or for other kernels of the same text; disk_hits:
    code found on disk; misses: code compiled; emissions: texts written."""

    emissions: int = 0
    memory_hits: int = 0
    disk_hits: int = 0
    misses: int = 0
    emit_seconds: float = 0.0
    load_seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.misses} compiled, {self.disk_hits} from disk, {self.memory_hits} from memory"


class Modules:
    """The loaded kernels of one device.

    cache_dir: where compiled code is kept (default: what the environment says, see executor.profile; None there or
    `limit_bytes` 0 for nowhere). The key of an entry is the text itself with the GPU and the versions of the toolchain.
    """

    def __init__(self, device: Device, cache_dir: Path | None = None, limit_bytes: int | None = None) -> None:
        chosen = settings()
        limit = chosen.cache_limit_bytes if limit_bytes is None else limit_bytes
        folder = cache_dir or chosen.cache_dir
        self.device = device
        self.counts = Counts()
        self.disk = DiskCache(folder / "kernels" / device.kind, limit) if folder is not None and limit > 0 else None
        self._by_kernel: dict[KernelType, LoadedKernel] = {}
        self._by_text: dict[str, LoadedKernel] = {}

    def load(self, kernel: KernelType) -> LoadedKernel:
        """The loaded form of a kernel type. Raises AuthorError or AssembleError if the kernel is wrong, DeviceError if it does
        not load."""
        loaded = self._by_kernel.get(kernel)
        if loaded is not None:
            self.counts.memory_hits += 1
            return loaded
        start = time.perf_counter()
        emitted = emit(kernel, self.device.target, lines=self.device.wants_lines)
        self.counts.emissions += 1
        self.counts.emit_seconds += time.perf_counter() - start
        loaded = self._by_text.get(emitted.text)
        if loaded is None:
            loaded = self._by_text[emitted.text] = self._load(emitted)
        else:
            self.counts.memory_hits += 1
        self._by_kernel[kernel] = loaded
        return loaded

    def preload(self, kernels: Sequence[KernelType], progress: Progress | None = None) -> None:
        """Load all of them now, so that no launch has to wait (and none loads during a graph capture)."""
        for done, kernel in enumerate(kernels, 1):
            self.load(kernel)
            if progress is not None:
                progress(done, len(kernels))

    def _load(self, emitted: Emitted) -> LoadedKernel:
        start = time.perf_counter()
        device, disk = self.device, self.disk
        key = f"{device.build}\0{hashlib.sha256(emitted.text.encode()).hexdigest()}"
        image = disk.get(key) if disk is not None else None
        found = image is not None
        if image is None:
            image = device.compile(emitted.text)
            if image is not None and disk is not None:
                disk.put(key, image)
        loaded, own = device.load(emitted.text, emitted.entry, image, disk.folder if disk is not None else None)
        if disk is not None and image is None and not own:
            trim(disk.folder, disk.limit_bytes)  # the device may have written there itself
        if found or own:
            self.counts.disk_hits += 1
        else:
            self.counts.misses += 1
        seconds = time.perf_counter() - start
        self.counts.load_seconds += seconds
        _log.debug("%s loaded in %.1f ms (%s)", emitted.kernel, seconds * 1e3, "from disk" if found or own else "compiled")
        return loaded
