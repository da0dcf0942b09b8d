"""Several devices as one, each of which does the same on memory of its own: what a model runs on whose matrices are split.
Which bytes are whose is for those to say who fill the memory (ReadOwn), and what kernels of one store into another's memory is
theirs (`peers`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from numpy.typing import NDArray

from executor.base.errors import DeviceError
from executor.device.allocations import ALIGNMENT, Allocations
from executor.device.gather_choice import choose
from executor.device.gathers import NcclGather
from executor.device.group import DeviceGroup
from executor.device.no_sharing import NoSharing
from executor.device.parameters import ParameterBlock
from executor.device.protocol import (
    NCCL_GATHER,
    BytesCopied,
    Device,
    DeviceGraph,
    DeviceLaunch,
    Event,
    Fetch,
    Grid,
    LoadedKernel,
    MemoryUse,
    Node,
    ReadInto,
    ReadOwn,
)

if TYPE_CHECKING:
    from executor.device.cuda import CudaDevice
    from executor.device.nccl import NcclGroup

FIRST_ADDRESS: Final = 1 << 60
"""Addresses of the devices together begin here, where no memory of any of them is."""
MOST_RANKS: Final = 8
RANK: Final = "rank"
"""The scalar of a launch that has to do with other ranks: which one it is."""


class SeveralDevices(DeviceGroup, Device):
    """The ranks 0, 1, ... as one device: an allocation has as many bytes on each, at an address that is none of theirs;
    uploads, fills, copies, kernels and graphs are done by all, in one order; what is read is read from rank 0. See
    protocol.Device.

    They must be of one kind and one GPU model, and belong to this from now on: it closes them. `gathers` says by what they
    gather. A fault of one, or a launch that not all of them have started, is the end of all (DeviceGroup): everything but
    `free` and `close` is a DeviceFailed from then on."""

    def __init__(self, devices: Sequence[Device], gathers: str | int | None = None) -> None:
        """gathers: as `choose` of gather_choice.py takes it."""
        super().__init__(devices)
        first = devices[0]
        self.frees = 0
        self.waits = 0
        self.reason = ""
        self.target, self.code_target, self.card = first.target, first.code_target, first.card
        self.wants_lines, self.sanitize = first.wants_lines, first.sanitize
        self.allocations = Allocations(self.name)
        self._next = FIRST_ADDRESS
        self.gathers = choose(devices, gathers)
        if self.gathers.nccl:
            from executor.device.nccl import NcclGroup

            self._nccl = NcclGroup(cast("Sequence[CudaDevice]", devices))
        self._capturing: list[tuple[Any, ...]] = []  # the graphs that hold gathers of NCCL's

    def reach(self, other: Device) -> None:
        raise DeviceError(f"{self.name} reach each other, and not {other.name}")

    @property
    def build(self) -> str:
        return self.devices[0].build

    @property
    def sharing(self) -> NoSharing:
        return NoSharing(self)

    def describe(self) -> dict[str, Any]:
        several = {"name": self.name, "devices": [device.name for device in self.devices], "gathers": str(self.gathers)}
        return self.devices[0].describe() | several

    def memory(self) -> MemoryUse:
        """Of the rank that has least free."""
        return min(self.each("reading memory", lambda _, device: device.memory()), key=lambda use: use.free)

    def peers(self, pointer: int) -> tuple[int, ...]:
        """As protocol.DeviceMemory. DeviceError where kernels must not use these addresses: NCCL alone gathers."""
        if not self.gathers.peers:
            raise DeviceError(f"kernels on {self.name} cannot use each other's memory: they gather by {self.gathers}")
        return self.of_ranks(pointer)

    def of_ranks(self, pointer: int) -> tuple[int, ...]:
        """Where each rank has what is at an address, for the host."""
        return tuple(self._own(pointer, rank) for rank in range(self.ranks))

    def alloc(self, nbytes: int, name: str = "") -> int:
        self.owner.run_deferred()
        return self._allocated(nbytes, lambda _, device: device.alloc(nbytes, name))

    def alloc_read_only(self, nbytes: int, read: ReadInto, name: str = "") -> int | None:
        if self.kind == "cuda":
            return None

        def placed(rank: int, device: Device) -> int:
            pointer = device.alloc_read_only(nbytes, _own_bytes(read, rank), name)
            assert pointer is not None
            return pointer

        return self._allocated(nbytes, placed)

    def free(self, pointer: int, ticket: int | None = None) -> None:
        if not self.cause:
            self._enter("freeing")
        if ticket is None:
            self.frees += 1
        elif self.allocations.ticket(pointer) != ticket:
            return
        bases = self.allocations.check(pointer, 1, "free")[1]
        self.allocations.remove(pointer)
        for device, base in zip(self.devices, bases, strict=True):
            self._give_back(partial(device.free, base))

    def upload(self, pointer: int, array: NDArray[Any], progress: BytesCopied | None = None) -> None:
        self.allocations.check(pointer, array.nbytes, "upload")
        self.each(
            "uploading",
            lambda rank, device: device.upload(self._own(pointer, rank), array, self._of_last(rank, progress)),
            immediate=True,
        )

    def upload_from(self, pointer: int, nbytes: int, read: ReadInto, progress: BytesCopied | None = None) -> None:
        self.allocations.check(pointer, nbytes, "upload")

        def upload(rank: int, device: Device) -> None:
            device.upload_from(self._own(pointer, rank), nbytes, _own_bytes(read, rank), self._of_last(rank, progress))

        self.each("uploading", upload, immediate=True)

    def download(self, pointer: int, array: NDArray[Any]) -> None:
        self.allocations.check(pointer, array.nbytes, "download")
        self.first("downloading", lambda device: device.download(self._own(pointer, 0), array))
        self.waits += 1

    def fill(self, pointer: int, nbytes: int, byte: int = 0) -> None:
        """Waits until all ranks have: a kernel of one that is ahead may store into the memory of others (flags, what is
        gathered), and is ordered after its own rank's work alone."""
        self.allocations.check(pointer, nbytes, "fill")
        self.each("filling memory", lambda rank, device: device.fill(self._own(pointer, rank), nbytes, byte), immediate=True)
        self.each("filling memory", lambda _, device: device.synchronize())
        self.waits += 1

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        self.allocations.check(source, nbytes, "copy")
        self.allocations.check(destination, nbytes, "copy to")
        self.each(
            "copying",
            lambda rank, device: device.copy(self._own(destination, rank), self._own(source, rank), nbytes),
            immediate=True,
        )

    def compile(self, text: str) -> bytes | None:
        return self.devices[0].compile(text)

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
        def load(_: int, device: Device) -> tuple[LoadedKernel, bool]:
            return device.load(text, entry, image, cache_dir, dynamic_shared, cooperative, shared_room)

        loaded = self.each("loading a kernel", load)
        first, own = loaded[0]
        return replace(first, handle=tuple(kernel for kernel, _ in loaded), module=None), own

    def most_blocks(self, kernel: LoadedKernel, block: Grid) -> int:
        return min(self.each("counting blocks", lambda rank, device: device.most_blocks(kernel.handle[rank], block)))

    def unload(self, kernel: LoadedKernel) -> None:
        for device, own in zip(self.devices, kernel.handle, strict=True):
            self._give_back(partial(device.unload, own))

    def launch(
        self, kernel: LoadedKernel, grid: Grid, block: Grid, parameters: ParameterBlock, work: object | None = None
    ) -> None:
        said = work or kernel.entry
        if kernel is NCCL_GATHER:
            self._start(f"launching {said}", [partial(self._gathering.all_gather, self._gather(parameters))])
            return
        launches = [
            DeviceLaunch(device, kernel.handle[rank], grid, block, self._of_rank(parameters, rank), said)
            for rank, device in enumerate(self.devices)
        ]
        if parameters.ranks > 1:
            self._start(f"launching {said}", [lambda: self.devices[0].launch_together(launches)])
        else:
            self._start(f"launching {said}", [partial(_launch, launch) for launch in launches])

    def make_graph(self, nodes: Sequence[Node]) -> Any:
        captured: dict[int, tuple[Any, ...]] = {}

        def of_rank(rank: int, device: Device) -> Any:
            return device.make_graph(
                [
                    node._replace(captured=captured[number][rank])
                    if number in captured
                    else node._replace(kernel=node.kernel.handle[rank], parameters=self._of_rank(node.parameters, rank))
                    for number, node in enumerate(nodes)
                ]
            )

        try:
            for number, node in enumerate(nodes):
                if node.kernel is NCCL_GATHER:
                    captured[number] = self._captured(node)
            graph = tuple(self.each("making a graph", of_rank))
        finally:
            for graphs in captured.values():
                self._gathering.drop(graphs)
        if captured:
            self._capturing.append(graph)
        return graph

    def launch_graph(self, graph: Any, work: object | None = None) -> None:
        said = work or "a graph"
        graphs = [DeviceGraph(device, own, said) for device, own in zip(self.devices, graph, strict=True)]
        self._start(f"launching {said}", [lambda: self.devices[0].launch_graphs_together(graphs)])

    def free_graph(self, graph: Any) -> None:
        if graph in self._capturing:
            self._capturing.remove(graph)
        for device, own in zip(self.devices, graph, strict=True):
            self._give_back(partial(device.free_graph, own))

    def launch_together(self, launches: Sequence[DeviceLaunch]) -> None:
        raise DeviceError(f"{self.name} are all ranks of their launches themselves")

    def launch_graphs_together(self, graphs: Sequence[DeviceGraph]) -> None:
        raise DeviceError(f"{self.name} are all ranks of their launches themselves")

    def fetch(self, pointer: int, array: NDArray[Any]) -> Fetch:
        self.allocations.check(pointer, array.nbytes, "fetch")
        return _Fetched(self, self.first("fetching", lambda device: device.fetch(self._own(pointer, 0), array)))

    def record(self) -> Event:
        """One of each rank."""
        return tuple(self.each("recording an event", lambda _, device: device.record()))

    def elapsed(self, start: Any, end: Any) -> float:
        """The longest of the ranks'."""
        return max(self.each("timing", lambda rank, device: device.elapsed(start[rank], end[rank])))

    def synchronize(self) -> None:
        self.each("waiting", lambda _, device: device.synchronize())
        self.waits += 1

    def close(self) -> None:
        if self.closed:
            return
        self.owner.check("closing")
        self._close_nccl()
        self.closed = True
        self.frees += 1
        for base in self.allocations.bases():
            self.allocations.remove(base)
        for device in self.devices:
            device.close()

    def _of_rank(self, parameters: ParameterBlock, rank: int) -> ParameterBlock:
        """The parameters of a launch as one rank has them."""
        own = parameters.moved(partial(self._own, rank=rank))
        if own.has(RANK):
            own.set(RANK, rank)
        return own

    @property
    def _gathering(self) -> NcclGroup:
        assert self._nccl is not None  # NCCL_GATHER is loaded in no other case
        return self._nccl

    def _gather(self, parameters: ParameterBlock) -> NcclGather:
        """What the parameters of a gather of NCCL's say: `x` and `y` of executor/launch/nccl_all_gather.py."""
        of = {argument.name: argument for argument in parameters.arrays}
        return NcclGather(self.of_ranks(of["x"].pointer), self.of_ranks(of["y"].pointer), of["x"].array.nbytes)

    def _captured(self, node: Node) -> tuple[Any, ...]:
        """A gather of NCCL's, as a graph of each rank."""
        doing = f"capturing {node.kernel.entry}"
        self._enter(doing)
        try:
            return self._gathering.captured(self._gather(node.parameters))
        except DeviceError as error:
            self._fail(doing, error)

    def _close_nccl(self) -> None:
        """Before the devices, and after all that holds gathers of it."""
        if self._nccl is None:
            return
        with suppress(DeviceError):
            self.synchronize()
        for graph in [*self._capturing]:
            self.free_graph(graph)
        self._nccl.close()

    def _allocated(self, nbytes: int, of_rank: Callable[[int, Device], int]) -> int:
        bases: list[int] = []
        try:
            self.each("allocating", lambda rank, device: bases.append(of_rank(rank, device)))
        except BaseException:
            for device, base in zip(self.devices, bases, strict=False):
                with suppress(DeviceError):
                    device.free(base)
            raise
        pointer = self._next
        self._next += -(-nbytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        self.allocations.add(pointer, nbytes, tuple(bases))
        return pointer

    def _own(self, pointer: int, rank: int) -> int:
        """Where a rank has what is at an address. One that is of a rank already stays."""
        if pointer < FIRST_ADDRESS:
            return pointer
        base, bases = self.allocations.check(pointer, 1, "find")
        own: int = bases[rank]
        return own + pointer - base

    def _of_last(self, rank: int, progress: BytesCopied | None) -> BytesCopied | None:
        """Called with the bytes when all have them."""
        return progress if rank == self.ranks - 1 else None


@dataclass(frozen=True)
class _Fetched(Fetch):
    """From rank 0."""

    device: SeveralDevices
    coming: Fetch

    def to_numpy(self) -> NDArray[Any]:
        return self.device.first("waiting for a copy", lambda _: self.coming.to_numpy())


def _launch(launch: DeviceLaunch) -> None:
    device, kernel, grid, block, parameters, work = launch
    device.launch(kernel, grid, block, parameters, work)


def _own_bytes(read: ReadInto, rank: int) -> ReadInto:
    return read.of(rank) if isinstance(read, ReadOwn) else read
