"""The CPU emulator as a device: memory is host memory, a launch returns when the kernel has ended. Execution is
ptxgen.emulator's."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from executor.base.environment import settings
from executor.base.errors import DeviceError, SanitizerError
from executor.device.allocations import ALIGNMENT, BorrowedMemory
from executor.device.emulated_launch import EmulatedLaunch, Overlapping, overlapping
from executor.device.host_memory import HostMemory, cpu_name, host_bytes
from executor.device.limits import require_shared
from executor.device.parameters import ArrayArgument, ParameterBlock
from executor.device.protocol import (
    Device,
    DeviceGraph,
    DeviceLaunch,
    Fetch,
    Grid,
    LoadedKernel,
    MemorySharing,
    MemoryUse,
    Node,
    ReadInto,
)
from ptxgen.emulator import MOST_BLOCKS, REDZONE, MemoryMap, Touched, compile_module, launch_overlapping, launch_together
from ptxgen.gpus.gpu import Gpu, newest_for
from ptxgen.gpus.occupancy import occupancy
from ptxgen.target import Target

UNNAMED = "a buffer without a name"


class EmulatedDevice(HostMemory, Device):
    """PTX on the CPU. See protocol.Device.

    target: what text is emitted for; by default that of `card`, the GPU whose limits count (default: the environment's, else
    one of sm_90, so that the emulator runs the very text of a current GPU).
    sanitize: check every access; findings of a launch raise SanitizerError. workers: threads (default: the
    environment's). seed: shuffles the order in which warps run. seconds: how long a launch may take (default: the
    environment's, which is as long as it takes unless it says so: launches of a model are slow here, and end). overlaps: the
    launches of a graph overlap where they are dependent, in an order that the seed chooses (ptxgen/emulator/overlapping.py).
    """

    kind: Literal["emulator"] = "emulator"

    def __init__(
        self,
        target: Target | None = None,
        *,
        sanitize: bool = False,
        workers: int | None = None,
        seed: int | None = None,
        seconds: float | None = None,
        overlaps: bool = False,
        card: Gpu | None = None,
    ) -> None:
        limits = card or (settings().device_limits if target is None else None)
        self.card = limits or newest_for(target or Target(90))
        self.code_target = self.target = target or self.card.target
        what = [limits.title] if limits else []
        super().__init__(f"emulator ({', '.join([*what, str(self.target), *(['sanitizer'] if sanitize else [])])})")
        self.sanitize = sanitize
        self.seed = seed
        self.overlaps = overlaps
        self.workers = settings().emulator_workers if workers is None else workers
        self.seconds = settings().emulator_seconds if seconds is None else seconds
        self.wants_lines = sanitize
        self.reason = ""
        self.waits = 0
        self._map = MemoryMap() if sanitize else None
        self._reaches = False  # whether it runs kernels together with other devices
        self._touched: dict[Touched, None] = {}  # if so: what launches have touched since it last did, if sanitised

    @property
    def build(self) -> str:
        return f"emulator {self.target}"

    @property
    def sharing(self) -> EmulatorSharing:
        return EmulatorSharing(self)

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "target": str(self.target),
            "cpu": cpu_name(),
            "workers": self.workers,
            "memory_bytes": self.memory().total,
            "llvmlite": version("llvmlite"),
            "numpy": version("numpy"),
        }

    def memory(self) -> MemoryUse:
        self.enter("reading memory")
        self.owner.run_deferred()
        page = os.sysconf("SC_PAGE_SIZE")
        free, total = os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
        return MemoryUse(free, total, self.allocations.total)

    def alloc(self, nbytes: int, name: str = "") -> int:
        self.enter("allocating")
        if nbytes <= 0:
            raise DeviceError(f"{self.name}: cannot allocate {nbytes} bytes")
        self.owner.run_deferred()
        try:
            block = np.empty(nbytes + ALIGNMENT + REDZONE, np.uint8)
        except (MemoryError, ValueError) as error:
            raise self.no_room(nbytes, name) from error
        base = -(-block.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.allocations.add(base, nbytes, block)
        if self._map is not None:
            self._map.add(base, nbytes, name or UNNAMED, initialised=False)
        return base

    def released(self, base: int) -> None:
        if self._map is not None:
            self._map.remove(base)

    def alloc_read_only(self, nbytes: int, read: ReadInto, name: str = "") -> int | None:
        pointer = self.alloc(nbytes, name)
        try:
            read(0, host_bytes(pointer, nbytes))
        except BaseException:
            self.free(pointer)
            raise
        _, block = self.allocations.check(pointer, nbytes, "place")
        block.flags.writeable = False
        if self._map is not None:
            self._map.remove(pointer)
            self._map.add(pointer, nbytes, name or UNNAMED, read_only=True)
        return pointer

    def download(self, pointer: int, array: NDArray[Any]) -> None:
        super().download(pointer, array)
        self.waits += 1

    def view(self, pointer: int, nbytes: int, doing: str, *, write: bool = False) -> NDArray[np.uint8]:
        base, keeper = self.allocations.check(pointer, nbytes, doing)
        if write:
            if keeper.read_only if isinstance(keeper, BorrowedMemory) else not keeper.flags.writeable:
                raise DeviceError(f"{self.name}: cannot {doing} {nbytes} bytes at {pointer:#x}, which is read-only")
            self.mark_written(base, pointer, nbytes)
        return host_bytes(pointer, nbytes)

    def compile(self, text: str) -> bytes | None:
        return None

    def load(
        self, text: str, entry: str, image: bytes | None = None, cache_dir: Path | None = None, dynamic_shared: int = 0,
        cooperative: bool = False, shared_room: int = 0,
    ) -> tuple[LoadedKernel, bool]:  # fmt: skip
        self.enter("loading a kernel")
        kernel = compile_module(text, sanitize=self.sanitize, cache_dir=cache_dir).kernel(entry)
        require_shared(self.name, self.card, entry, kernel.shared_bytes + dynamic_shared)
        loaded = LoadedKernel(
            entry, kernel, shared_bytes=kernel.shared_bytes, dynamic_shared=dynamic_shared, cooperative=cooperative
        )
        return loaded, kernel.from_cache

    def most_blocks(self, kernel: LoadedKernel, block: Grid) -> int:
        shared = kernel.shared_bytes + kernel.dynamic_shared
        fitting = occupancy(self.card.multiprocessor, block[0] * block[1] * block[2], kernel.registers, shared)
        return min(MOST_BLOCKS, fitting.blocks * self.card.multiprocessors)

    def unload(self, kernel: LoadedKernel) -> None:
        self.enter("unloading a kernel")  # its code goes with the last reference

    def launch(
        self, kernel: LoadedKernel, grid: Grid, block: Grid, parameters: ParameterBlock, work: object | None = None
    ) -> None:
        self.enter("launching", immediate=True)
        self._run(EmulatedLaunch(kernel, grid, block, parameters.tobytes(), self._arrays(parameters), work=work))

    def reach(self, other: Device) -> None:
        self.enter("reaching another device")
        if not isinstance(other, EmulatedDevice) or other.sanitize != self.sanitize:
            raise DeviceError(
                f"{self.name} cannot run kernels together with {other.name}; both are emulated, or sanitised, or none"
            )
        self._reaches = other._reaches = True

    def launch_together(self, launches: Sequence[DeviceLaunch]) -> None:
        group: list[tuple[EmulatedDevice, EmulatedLaunch]] = []
        for device, kernel, grid, block, parameters, work in launches:
            assert isinstance(device, EmulatedDevice)  # as protocol.py says
            device.enter("launching", immediate=True)
            group.append(
                (device, EmulatedLaunch(kernel, grid, block, parameters.tobytes(), device._arrays(parameters), work=work))
            )
        _run_together(group)

    def launch_graphs_together(self, graphs: Sequence[DeviceGraph]) -> None:
        waiting: list[tuple[EmulatedDevice, list[EmulatedLaunch]]] = []
        for device, graph, _ in graphs:
            assert isinstance(device, EmulatedDevice)
            device.enter("launching a graph", immediate=True)
            waiting.append((device, [*graph]))
        while any(left for _, left in waiting):
            group: list[tuple[EmulatedDevice, EmulatedLaunch]] = []
            for device, left in waiting:  # each up to where it waits for the others
                while left and left[0].ranks == 1:
                    device._run(left.pop(0))
                if left:
                    group.append((device, left.pop(0)))
            if group:
                _run_together(group)

    def make_graph(self, nodes: Sequence[Node]) -> Any:
        self.enter("making a graph")
        return [
            EmulatedLaunch(
                kernel, grid, block, parameters.tobytes(), self._arrays(parameters), dependent, ranks=ranks, after=after
            )
            for kernel, grid, block, parameters, after, dependent, ranks, _ in nodes
        ]

    def launch_graph(self, graph: Any, work: object | None = None) -> None:
        self.enter("launching a graph", immediate=True)
        if self.overlaps:
            for part in overlapping(graph, self.seed or 0):
                self._run_overlapping(part)
        else:
            for launch in graph:
                self._run(launch)

    def _run_overlapping(self, part: Overlapping) -> None:
        if len(part.launches) == 1:
            self._run(part.launches[0])
            return
        launches = [one.among(self._memory_for(one), dependent=one.dependent and len(one.after) == 1) for one in part.launches]
        for one in part.launches:
            self._note(one)
        with self.owner.running():
            findings = launch_overlapping(launches, part.after, seed=self.seed or 0, seconds=self.seconds)
        if findings:
            raise SanitizerError("; ".join(dict.fromkeys(one.kernel.entry for one in part.launches)), findings)

    def free_graph(self, graph: Any) -> None:
        self.enter("freeing a graph")

    def _arrays(self, parameters: ParameterBlock) -> tuple[ArrayArgument, ...]:
        return parameters.arrays if self.sanitize else ()

    def _run(self, launch: EmulatedLaunch) -> None:
        kernel = launch.kernel
        self._note(launch)
        with self.owner.running():
            findings = kernel.handle.launch(
                launch.grid, launch.block, launch.parameters, shared=kernel.dynamic_shared, memory=self._memory_for(launch),
                workers=self.workers, seed=self.seed, seconds=self.seconds, dependent=launch.dependent,
                cooperative=kernel.cooperative,
            )  # fmt: skip
        if findings:
            raise SanitizerError(str(launch.work or kernel.entry), findings)

    def _note(self, launch: EmulatedLaunch) -> None:
        """Remember what a launch touches for those of other devices."""
        if self._reaches:
            for _, array, pointer in launch.arrays:
                self._touched[Touched(pointer, array.nbytes, array.direction != "in")] = None

    def fetch(self, pointer: int, array: NDArray[Any]) -> Fetch:
        super().download(pointer, array)
        return _Fetched(self, array)

    def record(self) -> float:
        self.enter("recording an event")
        return time.perf_counter()

    def elapsed(self, start: Any, end: Any) -> float:
        return float(end) - float(start)

    def synchronize(self) -> None:
        self.enter("waiting")
        self.owner.run_deferred()
        self.waits += 1

    def close(self) -> None:
        if self.closed:
            return
        self.owner.check("closing")
        self.closed = True
        self.frees += 1
        for base in self.allocations.bases():
            self.allocations.remove(base)

    def mark_written(self, base: int, pointer: int, nbytes: int) -> None:
        """Tell the sanitiser that these bytes of the allocation at `base` hold something from now on."""
        if self._map is not None and base in self._map.allocations:
            self._map.mark_written(base, pointer - base, nbytes)

    def _memory_for(self, launch: EmulatedLaunch) -> MemoryMap | None:
        """What a launch may touch; None where nothing is checked."""
        return launch.memory(self._visible_memory()) if self.sanitize else None

    def _visible_memory(self) -> MemoryMap:
        """All that the sanitiser knows, and what is borrowed at the moment."""
        assert self._map is not None
        borrowed = self.allocations.borrowed
        if not borrowed:
            return self._map
        memory_map = MemoryMap(dict(self._map.allocations))
        for memory in sorted(borrowed, key=lambda memory: memory.nbytes):  # of those that start together the longest stays
            if not self.allocations.owns(memory.pointer, memory.nbytes):
                # Memory that is writable as one of several arrays is writable: the checks see addresses, not buffers.
                read_only = all(other.read_only for other in borrowed if other.overlaps(memory))
                memory_map.add(memory.pointer, memory.nbytes, memory.name or UNNAMED, read_only=read_only)
        return memory_map


def _run_together(group: Sequence[tuple[EmulatedDevice, EmulatedLaunch]]) -> None:
    """Run launches of several devices to their end. What each device has done before is over for the others as soon as its
    launch has told them in this one, and not before."""
    first = group[0][0]
    launches = [
        launch.among(device._memory_for(launch), dependent=launch.dependent, earlier=tuple(device._touched))
        for device, launch in group
    ]
    with ExitStack() as running:
        for device, _ in group:
            running.enter_context(device.owner.running())
        findings = launch_together(launches, seed=first.seed, seconds=first.seconds)
    for device, _ in group:
        device._touched.clear()
    if findings:
        works = dict.fromkeys(str(launch.work or launch.kernel.entry) for _, launch in group)
        raise SanitizerError("; ".join(works), findings)


class EmulatorSharing(MemorySharing):
    """Memory of the host needs no order between streams: a launch has ended when it returns."""

    dlpack_device = (1, 0)

    @property
    def stream(self) -> None:
        return None

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device

    def borrow(self, memory: BorrowedMemory) -> None:
        self._device.enter("borrowing memory")
        if self._device.allocations.owns(memory.pointer, memory.nbytes):  # our own memory comes back through another library
            self.note_write(memory.pointer, memory.nbytes)
        self._device.allocations.borrow(memory)

    def give_back(self, memory: BorrowedMemory) -> None:
        if self._device.allocations.give_back(memory):
            self._device.frees += 1

    def hold(self, pointer: int) -> object:
        self._device.enter("sharing memory")
        return self._device.allocations.check(pointer, 1, "share")[1]

    def note_write(self, pointer: int, nbytes: int) -> None:
        self._device.enter("noting a write")
        base, _ = self._device.allocations.check(pointer, nbytes, "note a write of")
        self._device.mark_written(base, pointer, nbytes)

    def wait_for(self, stream: int) -> None:
        self._device.enter("waiting for a stream")

    def make_wait(self, stream: int) -> None:
        self._device.enter("making a stream wait")

    def use(self, stream: int) -> None:
        self._device.enter("changing the stream", immediate=True)

    def use_again(self, before: Any) -> None:
        pass


@dataclass(frozen=True)
class _Fetched(Fetch):
    device: EmulatedDevice
    array: NDArray[Any]

    def to_numpy(self) -> NDArray[Any]:
        self.device.enter("waiting for a copy")
        self.device.waits += 1
        return self.array
