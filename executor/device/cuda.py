"""A GPU through the CUDA driver API (cuda.bindings.driver): one primary context, one stream, checked calls. Why
not through cuda-core: docs/design-records/cuda-core.md."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
from collections import deque
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from executor.base.environment import settings
from executor.base.errors import DeviceError, NoPeerAccess
from executor.device.cuda_context import driver_message
from executor.device.cuda_event import CudaEvent
from executor.device.cuda_gpu import GpuFacts, assembly_target, driver
from executor.device.cuda_graph import CudaGraph
from executor.device.cuda_module import CudaModules
from executor.device.open_gpu import OpenGpu
from executor.device.parameters import ParameterBlock
from executor.device.pinned import PAGE, Fetches, PinnedFetch, Readback, UploadStaging
from executor.device.protocol import (
    BytesCopied,
    Device,
    DeviceGraph,
    DeviceLaunch,
    Fetch,
    Grid,
    LoadedKernel,
    MemoryUse,
    Node,
    ReadInto,
    checked_bytes,
    copying,
)
from executor.device.sharing import CudaSharing
from ptxgen.gpus.occupancy import occupancy
from ptxgen.toolchain.assemble import UnsupportedTarget, assemble, toolchain

STAGED_FROM = (64 << 10) + 1
"""Bytes from which an upload goes through pinned memory: of so many from pageable memory CUDA may wait for all work before."""

_dropped: deque[CudaDevice] = deque()
"""Devices without references that were not closed."""
_log = logging.getLogger(__name__)


class CudaDevice(OpenGpu, Device):
    """GPU number `ordinal`. See protocol.Device. stream: where its work goes, as stream_handle takes it, instead of one that is
    made; it must outlive the device.

    Devices on one GPU share its context, so a fault breaks all of them: each refuses from then on with the first cause. When
    all are closed, the GPU can be opened again in the same process (cuda_context.PrimaryContext says what CUDA allows). One
    without references is closed when the next one is opened, or when any allocates.
    """

    kind: Literal["cuda"] = "cuda"
    wants_lines = False
    sanitize = False

    def __init__(self, ordinal: int = 0, stream: object | None = None) -> None:
        _close_dropped()
        cuda = driver()
        facts = GpuFacts.read(cuda, ordinal, settings().device_limits)
        super().__init__(cuda, facts)
        self.whole, self.card, self.code_target, self.target = facts.whole, facts.card, facts.gpu, facts.target
        self.driver_version = facts.driver_version
        self.reason = ""
        self._modules = CudaModules(cuda, self._checked, self.name, self.whole, self.card)
        self._staging: UploadStaging | None = None
        self._pages: Readback | None = None
        self._fetches: Fetches | None = None
        self._graphs: list[CudaGraph] = []
        self._sharing = CudaSharing(self, cuda, self._stream, self._events, self._checked)
        self.closed = False
        try:
            self.enter("opening")
            self._stream.open(stream, self._handle)
        except BaseException:
            self.close()
            raise

    @property
    def build(self) -> str:
        return f"{self.code_target} {toolchain()} driver {self.driver_version}"

    @property
    def limited(self) -> bool:
        """Whether it has the limits of another GPU (PTXGEN_DEVICE_LIMITS)."""
        return self.card is not self.whole

    @property
    def sharing(self) -> CudaSharing:
        return self._sharing

    def describe(self) -> dict[str, Any]:
        memory = self.memory()
        return {
            "name": self.name,
            "product": self.card.product,
            "kind": self.kind,
            "gpu": str(self.target if self.limited else self.code_target),
            "target": str(self.target),
            "multiprocessors": self.card.multiprocessors,
            "clock_mhz": self.whole.clock_mhz,
            "memory_bytes": memory.total,
            "cuda_driver": f"{self.driver_version // 1000}.{self.driver_version % 1000 // 10}",
            "assembler": toolchain(),
            "cuda_bindings": version("cuda-bindings"),
        }

    def memory(self) -> MemoryUse:
        self.enter("reading memory")
        self.owner.run_deferred()
        free, total = self._checked(self._cuda.cuMemGetInfo(), "reading how much memory is free")
        return MemoryUse(int(free), int(total), self.allocations.total)

    def alloc(self, nbytes: int, name: str = "") -> int:
        _close_dropped()
        self.enter("allocating")
        if nbytes <= 0:
            raise DeviceError(f"{self.name}: cannot allocate {nbytes} bytes")
        self.owner.run_deferred()
        self._sharing.release_finished()
        status, pointer = self._cuda.cuMemAlloc(nbytes)
        if status == self._cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            self._take_back()
            status, pointer = self._cuda.cuMemAlloc(nbytes)
        if status == self._cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise self.no_room(nbytes, name)
        base = int(self._checked((status, pointer), f"allocating {nbytes} bytes"))
        self.allocations.add(base, nbytes)
        return base

    def free(self, pointer: int, ticket: int | None = None) -> None:
        if not self.failed:
            self.enter("freeing")
        if ticket is not None and self.allocations.ticket(pointer) != ticket:
            return
        self.allocations.remove(pointer)
        if ticket is None:
            self.frees += 1
        if self.failed:
            return  # the memory goes with the context
        self._sharing.release_finished()
        if not self._sharing.defer_free(pointer):
            self._checked(self._cuda.cuMemFree(pointer), "freeing memory")

    def alloc_read_only(self, nbytes: int, read: ReadInto, name: str = "") -> None:
        return None

    def upload(self, pointer: int, array: NDArray[Any], progress: BytesCopied | None = None) -> None:
        nbytes = checked_bytes(array)
        if nbytes >= STAGED_FROM:
            self.upload_from(pointer, nbytes, copying(array), progress)
            return
        self.enter("uploading", immediate=True)
        self.allocations.check(pointer, nbytes, "upload")
        # From pageable memory the driver has taken its copy when this returns.
        copied = self._cuda.cuMemcpyHtoDAsync(pointer, array.ctypes.data, nbytes, self._stream.handle)
        self._checked(copied, "uploading")
        if progress is not None:
            progress(nbytes)

    def upload_from(self, pointer: int, nbytes: int, read: ReadInto, progress: BytesCopied | None = None) -> None:
        self.enter("uploading", immediate=True)
        self.allocations.check(pointer, nbytes, "upload")
        if self._staging is None:
            self._staging = UploadStaging(self._cuda, self._stream, self._checked)
        self._staging.upload(pointer, nbytes, read, progress)

    def download(self, pointer: int, array: NDArray[Any]) -> None:
        self.enter("downloading", immediate=True)
        nbytes = checked_bytes(array, writable=True)
        self.allocations.check(pointer, nbytes, "download")
        if nbytes <= PAGE:
            page = self._readback.start(pointer, nbytes)
            self.synchronize()
            ctypes.memmove(array.ctypes.data, page.pointer, nbytes)
            return
        copied = self._cuda.cuMemcpyDtoHAsync(array.ctypes.data, pointer, nbytes, self._stream.handle)
        self._checked(copied, "downloading")
        self.synchronize()

    def fill(self, pointer: int, nbytes: int, byte: int = 0) -> None:
        self.enter("filling memory", immediate=True)
        self.allocations.check(pointer, nbytes, "fill")
        self._checked(self._cuda.cuMemsetD8Async(pointer, byte, nbytes, self._stream.handle), "filling memory")

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        self.enter("copying", immediate=True)
        self.allocations.check(source, nbytes, "copy")
        self.allocations.check(destination, nbytes, "copy to")
        self._checked(self._cuda.cuMemcpyDtoDAsync(destination, source, nbytes, self._stream.handle), "copying")

    def compile(self, text: str) -> bytes | None:
        """Machine code from nvJitLink, or None if it does not know this GPU: then `load` has the driver compile the text."""
        try:
            return assemble(text, assembly_target(text, self.code_target)).cubin
        except UnsupportedTarget as error:
            _log.info("%s: %s; the driver compiles instead", self.name, error)
            return None

    def load(
        self,
        text: str,
        entry: str,
        image: bytes | None = None,
        cache_dir: Path | None = None,
        dynamic_shared: int = 0,
        cooperative: bool = False,
        shared_room: int = 0,
    ) -> tuple[LoadedKernel, bool]:
        self.enter("loading a kernel")
        return self._modules.load(text, entry, image, dynamic_shared, shared_room, cooperative=cooperative), False

    def most_blocks(self, kernel: LoadedKernel, block: Grid) -> int:
        self.enter("counting blocks")
        threads = block[0] * block[1] * block[2]
        answer = self._cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel.handle, threads, kernel.dynamic_shared)
        room = int(self._checked(answer, f"counting the blocks of {kernel.entry} that fit"))
        if self.limited:
            shared = kernel.shared_bytes + kernel.dynamic_shared
            room = min(room, occupancy(self.card.multiprocessor, threads, kernel.registers, shared).blocks)
        return room * min(self.whole.multiprocessors, self.card.multiprocessors)

    def unload(self, kernel: LoadedKernel) -> None:
        if self.failed:
            self._modules.forget(kernel.module)
            return
        self.enter("unloading a kernel")
        self._modules.unload(kernel.module)

    def launch(
        self, kernel: LoadedKernel, grid: Grid, block: Grid, parameters: ParameterBlock, work: object | None = None
    ) -> None:
        self.enter("launching", immediate=True)
        shared, pointers = kernel.dynamic_shared, parameters.pointers
        if kernel.cooperative:
            launched = self._cuda.cuLaunchCooperativeKernel(kernel.handle, *grid, *block, shared, self._stream.handle, pointers)
            self._cooperative = True
        else:
            launched = self._cuda.cuLaunchKernel(kernel.handle, *grid, *block, shared, self._stream.handle, pointers, 0)
        if launched[0]:
            self._checked(launched, f"launching {work or kernel.entry} (grid {grid}, block {block})")
        self._note_launch(work or kernel.entry)

    def reach(self, other: Device) -> None:
        self.enter("reaching another GPU")
        if not isinstance(other, CudaDevice):
            raise DeviceError(f"{self.name} cannot reach the memory of {other.name}, which is no GPU")
        if other.ordinal == self.ordinal:  # devices of one GPU share its context
            return
        other.enter("being reached")
        pair = f"{self.name} and {other.name}"
        asked = self._cuda.cuDeviceCanAccessPeer(self._gpu, other._gpu)
        if not self._checked(asked, f"asking for a way between {pair}"):
            raise NoPeerAccess(
                f"there is no peer access between {pair}: their kernels cannot write each other's memory (no NVLink, and no "
                "PCIe path that allows it; `nvidia-smi topo -p2p w` shows which GPUs have one)"
            )
        self.enter("reaching another GPU")
        (status,) = self._cuda.cuCtxEnablePeerAccess(other._handle, 0)
        if status != self._cuda.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
            self._checked((status,), f"opening the way between {pair}")

    def launch_together(self, launches: Sequence[DeviceLaunch]) -> None:
        for device, kernel, grid, block, parameters, work in launches:
            assert isinstance(device, CudaDevice)  # as protocol.py says
            device.launch(kernel, grid, block, parameters, work)
            device._peers = True

    def launch_graphs_together(self, graphs: Sequence[DeviceGraph]) -> None:
        for device, graph, work in graphs:
            assert isinstance(device, CudaDevice)
            device.launch_graph(graph, work)
            device._peers = True

    def make_graph(self, nodes: Sequence[Node]) -> Any:
        self.enter("making a graph")
        graph = CudaGraph(self._cuda, nodes, self._checked)
        self._graphs.append(graph)
        if any(node.ranks > 1 for node in nodes):
            # Else its first launch does that, while the graph of a rank before waits for it, on whose GPU memory of this one is
            # mapped: it would take longer to come, and whatever the driver waits for then would wait for ever.
            graph.upload(self._stream.handle)
        return graph

    def launch_graph(self, graph: Any, work: object | None = None) -> None:
        self.enter("launching a graph", immediate=True)
        graph.launch(self._stream.handle, work or "a graph")
        self._note_launch(work or "a graph")
        self._cooperative |= graph.cooperative

    def free_graph(self, graph: Any) -> None:
        self._graphs.remove(graph)
        if self.failed:
            return
        self.enter("freeing a graph")
        graph.close()

    def fetch(self, pointer: int, array: NDArray[Any]) -> Fetch:
        self.enter("fetching", immediate=True)
        nbytes = checked_bytes(array, writable=True)
        self.allocations.check(pointer, nbytes, "fetch")
        if nbytes > PAGE:
            raise DeviceError(f"{self.name}: cannot fetch {nbytes} bytes at once; allowed: up to {PAGE}")
        if self._fetches is None:
            self._fetches = Fetches(self._cuda, self._stream, self._checked)
        return PinnedFetch(self._fetches.start(pointer, nbytes), array, partial(self._wait_for, self._launches))

    def record(self) -> CudaEvent:
        self.enter("recording an event")
        event = self._events.take()
        self._checked(self._cuda.cuEventRecord(event.handle, self._stream.handle), "recording an event")
        return event

    def elapsed(self, start: Any, end: Any) -> float:
        self.enter("timing")
        self.waits += 1
        self._checked(self._cuda.cuEventSynchronize(end.handle), "waiting for an event")
        timed = self._cuda.cuEventElapsedTime(start.handle, end.handle)
        return float(self._checked(timed, "reading a time")) / 1e3

    def synchronize(self) -> None:
        super().synchronize()
        self._sharing.release_all()

    def close(self) -> None:
        if self.closed:
            return
        self.owner.check("closing")
        cuda = self._cuda
        self.closed = True
        self.frees += 1
        self._forget_current()
        steps: list[tuple[Any, ...]] = []
        if not self.failed:
            steps += [cuda.cuCtxSetCurrent(self._handle)]
            steps += [cuda.cuStreamSynchronize(self._stream.handle)] if self._stream.handle is not None else []
        for status, *_ in steps:
            if status:  # the last chance to hear of a fault
                self._failure(status, f"closing {self.name}")
        self._launched.clear()
        for pinned in (self._staging, self._pages, self._fetches):
            steps += [] if pinned is None else pinned.close()
        if not self.failed:  # else nothing can be given back but the context, and all goes with it
            held = self._sharing.held()
            steps += [cuda.cuMemFree(base) for base in self.allocations.bases() if base not in held]
            steps += self._sharing.close()
            for graph in self._graphs:
                graph.close()
            steps += self._events.close()
            steps += self._modules.close()
            steps += self._stream.close()
        failed = self.failed
        steps += self._context.leave(self)
        for status, *_ in steps:
            if status and not failed:
                _log.warning("closing %s: %s", self.name, driver_message(cuda, status))
                break

    def __del__(self) -> None:
        """Called on any thread, in the middle of anything, so it is deferred: closing waits and takes locks."""
        if not self.closed and not sys.is_finalizing():  # at its end the process gives all back
            self._context.keep(self)
            _dropped.append(self)

    def _take_back(self) -> None:
        """What only the garbage collector, or launches that have not been waited for, still hold."""
        gc.collect()
        _close_dropped()
        self.enter("allocating")
        if self._launched:
            self.synchronize()
        self.owner.run_deferred()

    @property
    def _readback(self) -> Readback:
        if self._pages is None:
            self._pages = Readback(self._cuda, self._stream, self._checked)
        return self._pages


def _close_dropped() -> None:
    """Close the devices without references, on this thread."""
    while _dropped:
        try:
            device = _dropped.popleft()
        except IndexError:  # another thread took the last one
            return
        device.owner.take_over()
        device.close()
