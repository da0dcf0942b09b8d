"""GpuBuffer: typed, shaped memory of a device, with a version that counts writes. Weights, workspaces and caches are made of
these. (A buffer over memory of another library: interop.py.)"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import array as host_array
from executor.base.arguments import extents, whole
from executor.base.errors import DeviceError, NoLength, SharingError
from executor.device.allocations import BorrowedMemory
from executor.memory.dlpack import make_capsule
from ptxgen.arrays import FROM_NUMPY, numpy_dtype
from ptxgen.errors import ArgumentError
from ptxgen.spelling import DTypeLike, dtype_of
from ptxgen.types import BF16, DType

if TYPE_CHECKING:
    from executor.device.protocol import BytesCopied, DeviceMemory, MemorySharing

Shape = int | Sequence[int]
"""Of a buffer: (n, m), or n for (n,)."""
_registry: dict[tuple[int, int] | None, weakref.WeakSet[DeviceAllocation]] = {}
"""By where the memory is, as DLPack numbers it: there one address means one thing, whichever device opened it."""
_lock = threading.Lock()


def allocation_at(device: DeviceMemory, pointer: int, nbytes: int) -> DeviceAllocation | None:
    """The live memory of buffers of this device that holds all these bytes; None if there is none."""
    for allocation in _live_beside(device):
        if allocation.device is device and allocation.base <= pointer and pointer + nbytes <= allocation.end:
            return allocation
    return None


def _live_beside(device: DeviceMemory) -> list[DeviceAllocation]:
    """What is alive where this device's memory is, of whatever device."""
    with _lock:
        return [a for a in _registry.get(_location(device), ()) if a.alive and not a.device.closed]


def _location(device: DeviceMemory) -> tuple[int, int] | None:
    return device.sharing.dlpack_device if device.sharing is not None else None


class Writes:
    """How often some memory was written, through any buffer over it."""

    __slots__ = ("count",)

    def __init__(self, count: int = 0) -> None:
        self.count = count


class DeviceAllocation:
    """The memory of a buffer and its views: they share its life and its count of writes. It ends with `free` or
    with the last buffer over it: then the device takes it back when it is next used. `borrowed`: it is memory of
    another library; borrowed allocations that overlap share one count, whichever devices they are of."""

    __slots__ = ("__weakref__", "_end", "alive", "base", "borrowed", "device", "nbytes", "writes")

    def __init__(self, device: DeviceMemory, base: int, nbytes: int, borrowed: BorrowedMemory | None = None) -> None:
        self.device = device
        self.base = base
        self.nbytes = nbytes
        self.alive = True
        self.borrowed = borrowed
        self.writes = Writes() if borrowed is None else self._joined()
        with _lock:
            _registry.setdefault(_location(device), weakref.WeakSet()).add(self)
        end = partial(_free_later, device, base, device.allocations.ticket(base))
        if borrowed is not None and device.sharing is not None:
            end = partial(device.sharing.give_back, borrowed)
        self._end = weakref.finalize(self, end)
        self._end.atexit = False

    @property
    def end(self) -> int:
        """The address after its last byte."""
        return self.base + self.nbytes

    @property
    def version(self) -> int:
        """How often it was written."""
        return self.writes.count

    @property
    def read_only(self) -> bool:
        """Whether another library forbids to write it."""
        return self.borrowed is not None and self.borrowed.read_only

    def free(self) -> None:
        """Give own memory back to the device; release the owner of borrowed memory."""
        if self.borrowed is None:
            self.device.free(self.base)
            self._end.detach()
        else:
            self._end()
            self.borrowed = None
        self.alive = False

    def _joined(self) -> Writes:
        """A count for this memory and for all that overlaps it, above theirs: what its owner wrote before was not counted."""
        live = _live_beside(self.device)
        shared = {other.writes for other in live if other.base < self.end and self.base < other.end}
        joined = Writes(max((writes.count + 1 for writes in shared), default=0))
        for other in live:
            if other.writes in shared:
                other.writes = joined
        return joined


def _free_later(device: DeviceMemory, base: int, ticket: int | None) -> None:
    """The last buffer over this memory has gone. Called on any thread, at any time, so it is deferred: work that was
    started on the memory ends before the device takes it back, and what was recorded keeps the buffers that it uses."""
    if ticket is not None and not device.closed:
        device.owner.defer(partial(device.free, base, ticket))


@contextmanager
def free_on_error(device: DeviceMemory) -> Iterator[None]:
    """If the block is left by an exception of any kind (Ctrl-C too), all that was allocated in it is freed, and its buffers
    are dead: a model is on a device whole or not at all."""
    mark = device.allocations.mark()
    try:
        yield
    except BaseException:
        if not device.closed:
            buffered = {live.base: live for live in _live_beside(device) if live.device is device and live.borrowed is None}
            for base in device.allocations.since(mark):
                if base in buffered:
                    buffered[base].free()
                else:  # the exception came before there was a buffer
                    device.free(base)
        raise


class GpuBuffer:
    """Row-major `shape` elements of `dtype` at `pointer`. Make one with `empty`, `zeros` or `from_numpy`. Its memory goes back
    to the device with `free`, or with the last reference to the buffer, its views and plans that use it.

    `version` rises with every write: an upload, or a launch that has it as `out` or `inout`. What is derived from a buffer is
    valid while the version it was derived from stands.

    PyTorch, CuPy, NumPy and others see the same memory, without a copy, through DLPack (`torch.from_dlpack(buffer)`; on the
    emulator `np.from_dlpack(buffer)`) or, on a GPU, `__cuda_array_interface__`. bf16 is bfloat16 in DLPack and has no name in
    the array interface; .b types and packed pairs are unsigned integers of their size. Who writes through such an array calls
    `touch` afterwards. An array made through DLPack keeps the memory, even when the buffer is freed or the device closed; one
    made through the array interface does not (its library keeps this object, but `free` and `close` take the memory).

    It has `shape`, `size`, `ndim`, `nbytes` and `len` as arrays have. What would copy it to the host without a word
    (np.asarray, iterating, indexing, its truth) is an ArgumentError that says what to write. A `dtype` is anything that
    ptxgen/spelling.py knows: F32, "float32", np.float32, torch.float32; a shape of one dimension may be a number.
    """

    __slots__ = ("_retired", "allocation", "device", "dtype", "name", "nbytes", "pointer", "shape")

    def __init__(
        self, allocation: DeviceAllocation, pointer: int, dtype: DType, shape: tuple[int, ...], name: str = ""
    ) -> None:
        self.allocation = allocation
        self.device = allocation.device
        self.pointer = pointer
        self.dtype = dtype
        self.shape = tuple(shape)
        self.nbytes = prod(self.shape) * dtype.bytes
        self.name = name
        self._retired = False

    @classmethod
    def empty(cls, device: DeviceMemory, dtype: DTypeLike, shape: Shape, name: str = "") -> GpuBuffer:
        """New memory, contents undefined. Raises ArgumentError for a shape with nothing in it, DeviceError when memory is
        full."""
        element = dtype_of(dtype)
        shape = extents(f"the shape of {name or 'a buffer'}", shape)
        nbytes = prod(shape) * element.bytes
        base = device.alloc(nbytes, name)
        return cls(DeviceAllocation(device, base, nbytes), base, element, shape, name)

    @classmethod
    def zeros(cls, device: DeviceMemory, dtype: DTypeLike, shape: Shape, name: str = "") -> GpuBuffer:
        """New memory, every byte 0; errors as `empty`."""
        buffer = cls.empty(device, dtype, shape, name)
        buffer.fill(0)
        return buffer

    @classmethod
    def from_numpy(cls, device: DeviceMemory, array: NDArray[Any], dtype: DTypeLike | None = None, name: str = "") -> GpuBuffer:
        """A copy of a host array; `dtype` where NumPy's type does not tell (bf16 as uint16 bits, .b types)."""
        array = host_array("the array", array)
        element = FROM_NUMPY.get(array.dtype) if dtype is None else dtype_of(dtype)
        if element is None:
            raise ArgumentError(f"no PTX type holds {array.dtype}; convert it to one of {', '.join(map(str, FROM_NUMPY))}")
        buffer = cls.empty(device, element, array.shape, name)
        buffer.upload(array)
        return buffer

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.bytes

    @property
    def version(self) -> int:
        """How often the memory was written."""
        return self.allocation.version

    @property
    def other_label(self) -> str:
        """What it is to an executor that it does not belong to, for messages."""
        return f"another executor's, on {self.device.name}"

    @property
    def alive(self) -> bool:
        """Whether the memory is still there, for this view of it."""
        return self.allocation.alive and not self._retired and not self.device.closed

    def view(self, offset: int, shape: Shape, dtype: DTypeLike | None = None) -> GpuBuffer:
        """`shape` elements that start `offset` bytes into this buffer; shares version and life. Raises ArgumentError beyond
        its end."""
        element = self.dtype if dtype is None else dtype_of(dtype)
        shape, offset = extents(f"the shape of a view of {self}", shape, 0), whole("the offset", offset)
        view = GpuBuffer(self.allocation, self.pointer + offset, element, shape, self.name)
        if offset < 0 or not view.nbytes or offset + view.nbytes > self.nbytes:
            raise ArgumentError(
                f"{view.dtype}{list(shape)} at byte {offset} does not fit in {self}, which has {self.nbytes} bytes"
            )
        return view

    def touch(self) -> None:
        """Raise the version after a write through an array of another library, which is not counted by itself."""
        self._need_life()
        if self.device.sharing is not None:
            self.device.sharing.note_write(self.pointer, self.nbytes)
        self.allocation.writes.count += 1

    def upload(self, array: NDArray[Any], progress: BytesCopied | None = None) -> None:
        """Overwrite with a host array of the same shape and type."""
        self._need_writable()
        array, element = host_array("the array", array), numpy_dtype(self.dtype)
        if array.shape != self.shape or array.dtype != element:
            raise ArgumentError(
                f"cannot upload {array.dtype}{list(array.shape)} to {self}; it takes {element}{list(self.shape)}"
            )
        self.device.upload(self.pointer, np.ascontiguousarray(array), progress)
        self.allocation.writes.count += 1

    def fill(self, byte: int = 0) -> None:
        """Set every byte, to a number from 0 to 255."""
        byte = whole("the byte", byte, 0, 255)
        self._need_writable()
        self.device.fill(self.pointer, self.nbytes, byte)
        self.allocation.writes.count += 1

    def to_numpy(self) -> NDArray[Any]:
        """A copy on the host, after all work before."""
        self._need_life()
        array = np.empty(self.shape, numpy_dtype(self.dtype))
        self.device.download(self.pointer, array)
        return array

    def free(self) -> None:
        """Give the memory back, for every view of it; memory of another library goes back to its owner, when the work that uses
        it has ended. While an array made through DLPack lives, the memory stays for it. A second time is a DeviceError."""
        self._need_life()
        self.allocation.free()

    def retire(self) -> None:
        """As `free`, for this view alone: nothing may use it any more, while the memory stays for the others."""
        self._need_life()
        self._retired = True
        self.device.frees += 1  # plans look again whether their buffers are alive

    def __len__(self) -> int:
        """The first extent; NoLength, which is a TypeError, for no dimensions."""
        if not self.shape:
            raise NoLength(f"{self} has no dimensions, so no length; its size is 1")
        return self.shape[0]

    def __array__(self, *_: object, **__: object) -> NoReturn:
        """NumPy would take the buffer for a thing that is no array, or wait for the device without a word."""
        raise self._on_device("buffer.to_numpy()")

    def __iter__(self) -> NoReturn:
        """Each element would be a copy that waits for the device."""
        raise self._on_device("for ... in buffer.to_numpy()")

    def __getitem__(self, _: object) -> NoReturn:
        """As `__iter__`."""
        raise self._on_device("buffer.to_numpy()[...], or buffer.view(byte offset, shape) for a part of it on the device")

    def __bool__(self) -> NoReturn:
        """Whether there is a buffer and whether its elements are true are two questions."""
        raise self._on_device("`buffer is not None`, or bool(buffer.to_numpy()) for the truth of one element")

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's kind and number of the device: (1, 0) for the emulator, (2, N) for cuda:N."""
        return self._sharing.dlpack_device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule over this memory. On a GPU the consumer's `stream` is made to wait for what the device has started (None
        and 1: the legacy default stream, 2: the thread's, -1: no wait). Raises SharingError (a BufferError) for a copy or
        another device, DeviceError for a freed buffer. (https://data-apis.org/array-api/latest/API_specification,
        `__dlpack__`)"""
        self._need_life()
        sharing = self._sharing
        here = sharing.dlpack_device
        if copy:
            raise SharingError(f"{self} shares its memory and makes no copy; to_numpy() does")
        if dl_device is not None and tuple(dl_device) != here:
            raise SharingError(f"{self} is on DLPack device {here}; it cannot be shared with device {tuple(dl_device)}")
        if stream == 0 or (stream is not None and sharing.stream is None):
            raise SharingError(f"{self}: stream {stream} means nothing on {self.device.name}")
        hold = sharing.hold(self.pointer)
        if stream != -1 and sharing.stream is not None:
            sharing.make_wait(1 if stream is None else stream)
        read_only = self.allocation.read_only
        return make_capsule(self.pointer, self.dtype, self.shape, here, hold, read_only=read_only, max_version=max_version)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 (https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html). `stream` is the device's: the
        consumer waits for it. Not there (AttributeError) on the emulator and for bf16."""
        sharing = self.device.sharing
        if sharing is None or sharing.stream is None or self.dtype == BF16:
            why = "bf16 has no name in it; DLPack has one" if self.dtype == BF16 else f"{self.device.name} is no GPU"
            raise AttributeError(f"{self} has no __cuda_array_interface__: {why}")
        self._need_life()
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": numpy_dtype(self.dtype).str,
            "data": (self.pointer, self.allocation.read_only),
            "strides": None,
            "stream": int(sharing.stream),
        }

    @property
    def _sharing(self) -> MemorySharing:
        if self.device.sharing is None:
            raise SharingError(f"{self} is in {self.device.name}, which has no memory to share")
        return self.device.sharing

    def _on_device(self, instead: str) -> ArgumentError:
        return ArgumentError(
            f"{self} is memory of {self.device.name}, which is copied to the host only if asked; write {instead}"
        )

    def _need_writable(self) -> None:
        self._need_life()
        if self.allocation.read_only:
            raise DeviceError(f"{self} is memory of another library that must not be written (read-only)")

    def _need_life(self) -> None:
        if not self.alive:
            raise DeviceError(f"{self} was freed{' with its device' if self.device.closed else ''}")

    def __str__(self) -> str:
        return f"{self.name or 'buffer'} {self.dtype}{list(self.shape)}"

    def __repr__(self) -> str:
        return f"<GpuBuffer {self} at {self.pointer:#x} on {self.device.name}{'' if self.alive else ', freed'}>"
