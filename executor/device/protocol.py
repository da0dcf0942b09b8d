"""What a device offers, as three roles: memory, a runner of kernels, and memory shared with other libraries. A GPU (cuda.py)
and the CPU emulator (emulated.py) have all three, a dry run (dry_run.py) only memory; nothing else talks to any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import OutOfMemory
from executor.device.allocations import Allocations, BorrowedMemory
from executor.device.gathers import PEERS, Gathers
from executor.device.owner import OwnerThread
from executor.device.parameters import ParameterBlock
from ptxgen.gpus.gpu import Gpu
from ptxgen.target import Target

Grid = tuple[int, int, int]
BytesCopied = Callable[[int], None]
"""Called during a long copy with the number of bytes copied since the last call."""
MOST_FETCHED = 64 << 10
"""Bytes of the largest `fetch`."""
ReadInto = Callable[[int, NDArray[np.uint8]], None]
"""Fills an array with the bytes of something from a start on, wholly, or raises. May be called on several threads at once."""


@dataclass(frozen=True)
class ReadOwn:
    """A ReadInto that gives each of several devices other bytes: those of a rank by `of(rank)`, and the first's as they are."""

    of: Callable[[int], ReadInto]

    def __call__(self, start: int, into: NDArray[np.uint8]) -> None:
        self.of(0)(start, into)


@dataclass(frozen=True)
class LoadedKernel:
    """An entry that a device can launch. `handle`, `module`: the device's own. Sizes in bytes; registers are 0 where there
    are none. dynamic_shared: the shared memory that every launch asks for, beside the static `shared_bytes`; cooperative: its
    blocks wait for each other, so a launch holds them all at once."""

    entry: str
    handle: Any
    shared_bytes: int = 0
    local_bytes: int = 0
    registers: int = 0
    module: Any = None
    dynamic_shared: int = 0
    cooperative: bool = False


NCCL_GATHER: Final = LoadedKernel("ncclAllGather", handle=None)
"""Stands for what has no code of ours (executor/launch/nccl_all_gather.py): only several devices as one launch it."""


class Node(NamedTuple):
    """One launch of a graph. The parameters are copied when the graph is made. after: the numbers of the launches that must
    have ended before; dependent: it may start before the one launch before it has ended, because it waits for it by itself;
    ranks: with how many devices, this one counted, it waits for their launches, so that their graphs are launched with this
    one; captured: a graph of the driver's that is launched in the place of the kernel, of which the graph has a copy."""

    kernel: LoadedKernel
    grid: Grid
    block: Grid
    parameters: ParameterBlock
    after: tuple[int, ...] = ()
    dependent: bool = False
    ranks: int = 1
    captured: Any = None


class DeviceLaunch(NamedTuple):
    """A launch on one of several devices. str(work) says for errors which kernel works on which tensors."""

    device: Device
    kernel: LoadedKernel
    grid: Grid
    block: Grid
    parameters: ParameterBlock
    work: object


class DeviceGraph(NamedTuple):
    """A graph of one of several devices; `work` as in DeviceLaunch."""

    device: Device
    graph: Any
    work: object


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of device memory: free and total of the machine, allocated by this device object."""

    free: int
    total: int
    allocated: int


class Event(Protocol):
    """A moment in the device's work."""


class Fetch(Protocol):
    """Bytes on their way to the host."""

    def to_numpy(self) -> NDArray[Any]:
        """The array that was given to `fetch`, filled: waits for that copy and what came before it, and for nothing later."""


class DeviceMemory(Protocol):
    """Memory with addresses, which are plain integers. It belongs to one thread.

    Every method raises DeviceError on another thread, on a closed device, and for addresses that this device did not give out
    or has taken back; what copies or fills raises LaunchError during a capture.
    """

    name: str
    closed: bool
    frees: int
    """Counts `free` without a ticket and `close`: while it stands still, every pointer seen alive is alive."""
    owner: OwnerThread
    allocations: Allocations
    """What it has given out and borrowed."""
    ranks: int = 1
    """How many devices it is: of several, each has memory of its own at every address (several.py)."""
    gathers: Gathers = PEERS
    """By what several gather."""

    @property
    def sharing(self) -> MemorySharing | None:
        """How others share the memory; None if they cannot."""

    def peers(self, pointer: int) -> tuple[int, ...]:
        """Where each rank has what is at an address, for kernels of any of them; the address itself on a device alone."""
        return (pointer,)

    def alloc(self, nbytes: int, name: str = "") -> int:
        """A pointer to `nbytes` (> 0) of memory on a 256-byte boundary, contents undefined. Raises OutOfMemory when there is
        no room."""

    def alloc_read_only(self, nbytes: int, read: ReadInto, name: str = "") -> int | None:
        """A pointer to memory that holds what `read` gives and that no kernel may write, where such memory can be of any size;
        None on a GPU: there the bytes go to a part of something larger with `upload_from`."""

    def free(self, pointer: int, ticket: int | None = None) -> None:
        """Give back what was allocated; a second time is a DeviceError. With a ticket of `allocations`: only if it is that very
        allocation still, to which no reference is left."""

    def upload(self, pointer: int, array: NDArray[Any], progress: BytesCopied | None = None) -> None:
        """Copy a C-contiguous array to the device; the array may be changed when this returns."""

    def upload_from(self, pointer: int, nbytes: int, read: ReadInto, progress: BytesCopied | None = None) -> None:
        """Fill memory with what `read` gives, piece by piece, without a copy of the whole on the host."""

    def download(self, pointer: int, array: NDArray[Any]) -> None:
        """Fill a C-contiguous, writable array from the device, after all work before."""

    def fill(self, pointer: int, nbytes: int, byte: int = 0) -> None:
        """Set every byte to one value."""

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy within the device; the ranges must not overlap."""


class MemorySharing(Protocol):
    """Memory of the device in the hands of other libraries, and memory of theirs in its own. Errors as DeviceMemory."""

    dlpack_device: tuple[int, int]
    """Where the device's memory is, as `__dlpack_device__` says it: (1, 0) is the host, (2, N) is cuda:N."""

    @property
    def stream(self) -> Any:
        """The handle of the stream that all work goes to; None where a launch returns when it has ended (the emulator)."""

    def borrow(self, memory: BorrowedMemory) -> None:
        """Let copies and kernels use memory of another library. Raises DeviceError for memory that is not where this device's
        is."""

    def give_back(self, memory: BorrowedMemory) -> None:
        """Use it no more; its owner is released when the work that may use it has ended. May be called on any thread, more than
        once, and after `close`."""

    def hold(self, pointer: int) -> object:
        """An object that keeps the memory around the pointer while it lives, even if that is freed or the device closed."""

    def note_write(self, pointer: int, nbytes: int) -> None:
        """Another library wrote these bytes: they are initialised from now on."""

    def wait_for(self, stream: int) -> None:
        """What the device starts from now on waits for all that was started on another stream of the process. The host does not
        wait. Handles are those of the driver: 0 and 1 the legacy default stream, 2 the thread's."""

    def make_wait(self, stream: int) -> None:
        """What is started on that stream from now on waits for all that the device has started."""

    def use(self, stream: int) -> Any:
        """Have all work go to that stream from now on, after all that was started before; returns what `use_again` takes.
        DeviceError for a stream of another device, LaunchError in a capture, the device's or another library's."""

    def use_again(self, before: Any) -> None:
        """As `use`, with what that gave: the stream before. A device that is closed or has failed stays as it is."""


class KernelRunner(Protocol):
    """Loads kernels and runs them on one stream, in order. Errors as DeviceMemory; a launch in a capture is a LaunchError."""

    target: Target
    """What kernels are emitted for."""
    code_target: Target
    """What machine code must be for."""
    card: Gpu
    """The GPU described, as kernels are chosen for it; of the emulator, one that runs code for its target."""
    wants_lines: bool
    """Whether text should carry `.loc` lines (the sanitiser names the author's line)."""
    sanitize: bool
    """Whether every access of a kernel is checked: a launch then raises what it finds."""
    waits: int
    """Counts how often the host has waited for the device."""

    @property
    def build(self) -> str:
        """GPU and toolchain versions that compiled code depends on; part of every cache key."""

    def compile(self, text: str) -> bytes | None:
        """Code for `load` that may be kept on disk; None if the device keeps or makes its own."""

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
        """The kernel `entry` of a PTX text, and whether its code came from `cache_dir`. `image` is what `compile` gave for the
        text; `dynamic_shared` the bytes of shared memory that its launches ask for; `cooperative`: its blocks wait for each
        other; `shared_room`: see LaunchConfig. Raises DeviceError for code that the device refuses; nothing stays loaded
        then."""

    def most_blocks(self, kernel: LoadedKernel, block: Grid) -> int:
        """How many blocks of a kernel it can hold at once."""

    def unload(self, kernel: LoadedKernel) -> None:
        """Give back what `load` gave, once. It must not be launched again."""

    def launch(
        self, kernel: LoadedKernel, grid: Grid, block: Grid, parameters: ParameterBlock, work: object | None = None
    ) -> None:
        """Start a kernel. Only launch/launch.py calls this: nothing is checked here. str(work) says for errors which kernel
        works on which tensors."""

    def reach(self, other: Device) -> None:
        """From now on kernels of this device may use memory of the other, by its addresses. DeviceError that names both where
        that cannot be: they are of two kinds, or the GPUs have no way to each other's memory."""

    def launch_together(self, launches: Sequence[DeviceLaunch]) -> None:
        """Start launches that wait for each other, each on a device of its own, all of this one's kind and this one the first.
        Only launch/launch.py calls this: nothing is checked here."""

    def launch_graphs_together(self, graphs: Sequence[DeviceGraph]) -> None:
        """The same for graphs whose launches wait for each other (Node.ranks). Only launch/graph.py calls this."""

    def make_graph(self, nodes: Sequence[Node]) -> Any:
        """A handle of all these launches, each after those that it names. Only launch/graph.py calls this and the next two."""

    def launch_graph(self, graph: Any, work: object | None = None) -> None:
        """Start all launches of a graph; `work` as in `launch`."""

    def free_graph(self, graph: Any) -> None:
        """Give back what `make_graph` gave, once."""

    def fetch(self, pointer: int, array: NDArray[Any]) -> Fetch:
        """Start to fill a C-contiguous, writable array of at most MOST_FETCHED bytes with what the memory holds after all work
        before. The host does not wait; work that is started later may overwrite the memory."""

    def record(self) -> Event:
        """Mark this moment of the stream."""

    def elapsed(self, start: Event, end: Event) -> float:
        """Seconds of device time between two moments; waits for the second."""

    def synchronize(self) -> None:
        """Wait for all work; reports what went wrong in it."""


class Device(DeviceMemory, KernelRunner, Protocol):
    """One GPU or the emulator, from `open_device` to `close`: memory, a runner whose work copies to the host wait for, and
    `sharing`. After a fault in a kernel of a GPU, every method but those that give something back raises DeviceFailed, which
    tells of the first cause."""

    reason: str
    """Why `open_device` chose this device."""

    @property
    def kind(self) -> Literal["cuda", "emulator"]:
        """Which of the two it is."""

    @property
    def sharing(self) -> MemorySharing:
        """How others share the memory."""

    def describe(self) -> dict[str, Any]:
        """Name, target, versions, memory: what a result file says about the machine."""

    def memory(self) -> MemoryUse:
        """How much is free now."""

    def no_room(self, nbytes: int, name: str = "") -> OutOfMemory:
        """What to raise when there is none for so many bytes."""
        memory = self.memory()
        what = f"{nbytes} bytes{f' ({name})' if name else ''}"
        message = f"{self.name}: no room for {what}; {memory.free} of {memory.total} are free"
        return OutOfMemory(message, nbytes, memory.free)

    def close(self) -> None:
        """Free everything. A second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def checked_bytes(array: NDArray[Any], *, writable: bool = False) -> int:
    """Size of a host array in bytes. Raises ValueError unless it is C-contiguous (and writable where asked)."""
    if not array.flags.c_contiguous or (writable and not array.flags.writeable):
        raise ValueError(
            f"host array of {array.dtype}{list(array.shape)} must be C-contiguous{' and writable' if writable else ''}"
        )
    return array.nbytes


def copying(array: NDArray[Any]) -> ReadInto:
    """Reads out of a C-contiguous array."""
    source = array.reshape(-1).view(np.uint8)

    def read(start: int, into: NDArray[np.uint8]) -> None:
        into[:] = source[start : start + into.size]

    return read
