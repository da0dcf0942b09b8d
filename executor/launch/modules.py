"""Kernel types -> loaded kernels: emits each text once (or takes it from a bundle), loads each distinct text once, keeps
compiled code on disk."""

from __future__ import annotations

import hashlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from executor.base.disk_cache import DiskCache, trim
from executor.base.environment import settings
from executor.base.errors import BundleError, DeviceError, DeviceFailed
from executor.device.protocol import NCCL_GATHER, Device, LoadedKernel
from executor.launch.bundle import Bundle, Packed
from executor.launch.nccl_all_gather import NcclAllGather
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.toolchain.module import emit

Progress = Callable[[int, int], None]
"""Called with how many kernels are loaded, and how many there are."""
Compile = Callable[[str], bytes | None]
"""Device.compile, or what has its answer."""
Form = tuple[KernelType, bool, bool]
"""A kernel, whether it may be dependent, and whether it leaves stamps."""

_log = logging.getLogger(__name__)


@dataclass
class Counts:
    """What loading has cost so far. memory_hits: asked again for a kernel, or for other kernels of the same text; disk_hits:
    code found on disk; misses: code compiled; emissions: texts written; bundle_hits: machine code of a bundle."""

    emissions: int = 0
    memory_hits: int = 0
    disk_hits: int = 0
    misses: int = 0
    bundle_hits: int = 0
    emit_seconds: float = 0.0
    load_seconds: float = 0.0

    def __str__(self) -> str:
        bundled = f"{self.bundle_hits} from the bundle, " if self.bundle_hits else ""
        return f"{bundled}{self.misses} compiled, {self.disk_hits} from disk, {self.memory_hits} from memory"


class Modules:
    """The loaded kernels of one device. They stay loaded until `close`, or until neither this nor a plan made with it is
    referenced any more: there are as many as distinct texts.

    cache_dir: where compiled code is kept (default: what the environment says; None there or
    `limit_bytes` 0 for nowhere). The key of an entry is the text itself with the GPU and the versions of the toolchain.
    bundle: where all texts come from; then none is written here, and a kernel that it lacks is a BundleError.
    """

    def __init__(
        self, device: Device, cache_dir: Path | None = None, limit_bytes: int | None = None, bundle: Bundle | None = None
    ) -> None:
        if bundle is not None and not bundle.runs_on(device.target, emulated=device.kind == "emulator"):
            raise BundleError(f"was written for {bundle.target}, and {device.name} is {device.target}", bundle.folder)
        chosen = settings()
        limit = chosen.cache_limit_bytes if limit_bytes is None else limit_bytes
        folder = cache_dir or chosen.cache_dir
        self.device = device
        self.bundle = bundle
        self.counts = Counts()
        self.disk = DiskCache(folder, limit, "kernels", device.kind) if folder is not None and limit > 0 else None
        self._by_kernel: dict[Form, LoadedKernel] = {}
        self._by_text: dict[str, LoadedKernel] = {}
        self._end = weakref.finalize(self, _dropped, device, self._by_text)
        self._end.atexit = False

    @property
    def fused(self) -> bool:
        """Whether there are kernels that do several operations at once. A bundle has none: its launches are for programs that
        batch them, each by itself."""
        return self.bundle is None

    @property
    def stamps(self) -> bool:
        """Whether there are stamped forms, by which the launches of a graph are timed. A bundle has none: they are written; nor
        has what NCCL launches."""
        return self.bundle is None and not self.device.gathers.nccl

    def load(self, kernel: KernelType, *, dependent: bool = False, stamped: bool = False) -> LoadedKernel:
        """The loaded form of a kernel type. dependent: so that it may start before the launch before it has ended; stamped:
        with the times of a launch in one more argument (ptxgen/dsl/stamps.py); a bundle has no such forms. Raises AuthorError
        or AssembleError if the kernel is wrong, ArgumentError if it has no such form, DeviceError if it does not load,
        BundleError if the bundle lacks it."""
        return self._form((kernel, dependent, stamped), None, self.device.compile)

    @property
    def loaded(self) -> int:
        """How many texts are loaded."""
        return len(self._by_text)

    def close(self) -> None:
        """Unload all kernels: nothing that was prepared with them may be launched again. Kernels can be loaded afterwards."""
        if not self.device.closed:
            _unload(self.device, self._by_text)
        self._by_kernel.clear()

    def preload(self, kernels: Sequence[KernelType], progress: Progress | None = None, *, dependent: bool = False) -> None:
        """Load all of them now, so that no launch has to wait (and none loads during a graph capture); dependent: as for
        `load`. Code that is not kept is compiled side by side. An exception, Ctrl-C too, does not wait for compilations under
        way."""
        coming: dict[str, Future[bytes | None]] = {}
        written: dict[Form, Packed] = {}
        pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "ptxgen-compile")

        def compiled(text: str) -> bytes | None:
            return coming[text].result() if text in coming else self.device.compile(text)

        try:
            written_here = [k for k in kernels if self.bundle is None and not isinstance(k, NcclAllGather)]
            for form in ((kernel, dependent, False) for kernel in written_here):
                if form not in self._by_kernel and form not in written:
                    packed = written[form] = self._emitted(*form)
                    if packed.text not in self._by_text and packed.text not in coming and not self._is_kept(packed):
                        coming[packed.text] = pool.submit(self.device.compile, packed.text)
            for done, kernel in enumerate(kernels, 1):
                form = kernel, dependent, False
                self._form(form, written.get(form), compiled)
                if progress is not None:
                    progress(done, len(kernels))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _form(self, form: Form, packed: Packed | None, compiled: Compile) -> LoadedKernel:
        """As `load`. packed: the text, if it was written already."""
        kernel, dependent, stamped = form
        if isinstance(kernel, NcclAllGather):
            return self._nccl_gather(kernel, stamped)
        loaded = self._by_kernel.get(form)
        if loaded is not None:
            self.counts.memory_hits += 1
            return loaded
        if self.bundle is not None and (dependent or stamped):
            lacking = "that is dependent" if dependent else "with stamps, by which launches are timed"
            raise BundleError(f"has no {kernel.name} {lacking}", self.bundle.folder)
        if packed is None:
            packed = self._emitted(*form) if self.bundle is None else self.bundle.kernel(kernel)
        loaded = self._by_text.get(packed.text)
        if loaded is None:
            loaded = self._by_text[packed.text] = self._load(kernel, packed, compiled)
        else:
            self.counts.memory_hits += 1
        self._by_kernel[form] = loaded
        return loaded

    def _nccl_gather(self, kernel: NcclAllGather, stamped: bool) -> LoadedKernel:
        if not self.device.gathers.nccl:
            raise DeviceError(f"{self.device.name} cannot launch {kernel}: it gathers by {self.device.gathers}, not by NCCL")
        if stamped:
            raise ArgumentError(f"{kernel} has no form with stamps: its code is NCCL's, so launches are timed one by one")
        return NCCL_GATHER

    def _emitted(self, kernel: KernelType, dependent: bool, stamped: bool) -> Packed:
        start = time.perf_counter()
        emitted = emit(kernel, self.device.target, lines=self.device.wants_lines, dependent=dependent, stamped=stamped)
        self.counts.emissions += 1
        self.counts.emit_seconds += time.perf_counter() - start
        launch = kernel.launch()
        return Packed(emitted.entry, emitted.text, None, launch.dynamic_shared, launch.cooperative, launch.shared_room)

    def _load(self, kernel: KernelType, packed: Packed, compiled: Compile) -> LoadedKernel:
        start = time.perf_counter()
        loaded, source = self._from_bundle(packed) or self._from_text(packed, compiled)
        seconds = time.perf_counter() - start
        self.counts.load_seconds += seconds
        _log.debug("%s loaded in %.1f ms (%s)", kernel, seconds * 1e3, source)
        return loaded

    def _from_bundle(self, packed: Packed) -> tuple[LoadedKernel, str] | None:
        """The bundle's machine code, None if there is none for this device."""
        device, bundle = self.device, self.bundle
        if bundle is None or packed.cubin is None or device.kind != "cuda" or not bundle.has_code_for(device.code_target):
            return None
        loaded, _ = device.load(packed.text, packed.entry, packed.cubin, None, *packed.launched)
        self.counts.bundle_hits += 1
        return loaded, "machine code of the bundle"

    def _from_text(self, packed: Packed, compiled: Compile) -> tuple[LoadedKernel, str]:
        device, disk = self.device, self.disk
        folder = disk.folder if disk is not None and disk.usable else None
        key = self._key(packed)
        kept = self._kept(disk, key, packed) if disk is not None else None
        if kept is not None:
            self.counts.disk_hits += 1
            return kept, "from disk"
        image = compiled(packed.text)
        if image is not None and disk is not None:
            disk.put(key, image)
        loaded, own = device.load(packed.text, packed.entry, image, folder, *packed.launched)
        if disk is not None and folder is not None and image is None and not own:
            trim(disk.folder, disk.limit_bytes)  # the device may have written there itself
        if own:
            self.counts.disk_hits += 1
            return loaded, "from disk"
        self.counts.misses += 1
        return loaded, "compiled"

    def _key(self, packed: Packed) -> str:
        """What compiled code is kept under."""
        return f"{self.device.build}\0{hashlib.sha256(packed.text.encode()).hexdigest()}"

    def _is_kept(self, packed: Packed) -> bool:
        return self.disk is not None and self.disk.get(self._key(packed)) is not None

    def _kept(self, disk: DiskCache, key: str, packed: Packed) -> LoadedKernel | None:
        """The kernel from the code on disk. None if there is none, or the device refuses it: whatever put it there, it goes."""
        image = disk.get(key)
        if image is None:
            return None
        try:
            loaded, _ = self.device.load(packed.text, packed.entry, image, disk.folder, *packed.launched)
            return loaded
        except DeviceFailed:
            raise
        except DeviceError as error:
            _log.warning("code of %s on disk is refused and will be made again: %s", packed.entry, error)
            disk.remove(key)
            return None


def _dropped(device: Device, kernels: dict[str, LoadedKernel]) -> None:
    """The kernels are no longer referenced. May run on any thread, at any time."""
    if not device.closed and kernels:
        device.owner.defer(partial(_unload, device, kernels))


def _unload(device: Device, kernels: dict[str, LoadedKernel]) -> None:
    while kernels:
        device.unload(kernels.popitem()[1])
