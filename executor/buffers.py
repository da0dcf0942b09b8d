"""GpuBuffer: typed, shaped memory of a device, with a version that counts writes. Weights, workspaces and caches are made of
these."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from executor.errors import DeviceError
from ptxgen.arrays import numpy_dtype
from ptxgen.errors import ArgumentError
from ptxgen.types import BY_NAME, DType

if TYPE_CHECKING:
    from executor.device.protocol import BytesCopied, Device

_FROM_NUMPY = {
    numpy_dtype(BY_NAME[name]): BY_NAME[name]
    for name in ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f16", "f32", "f64")
}


class Allocation:
    """The memory behind a buffer and its views: they share its life and its count of writes."""

    __slots__ = ("alive", "base", "device", "nbytes", "version")

    def __init__(self, device: Device, base: int, nbytes: int) -> None:
        self.device = device
        self.base = base
        self.nbytes = nbytes
        self.version = 0
        self.alive = True


class GpuBuffer:
    """Row-major `shape` elements of `dtype` at `pointer`. Make one with `empty`, `zeros` or `from_numpy`; free it with `free`.

    `version` rises with every write: an upload, or a launch that has it as `out` or `inout`. What is derived from a buffer is
    valid while the version it was derived from stands.
    """

    __slots__ = ("allocation", "device", "dtype", "name", "nbytes", "pointer", "shape")

    def __init__(self, allocation: Allocation, pointer: int, dtype: DType, shape: tuple[int, ...], name: str = "") -> None:
        self.allocation = allocation
        self.device = allocation.device
        self.pointer = pointer
        self.dtype = dtype
        self.shape = tuple(shape)
        self.nbytes = prod(self.shape) * dtype.bytes
        self.name = name

    @classmethod
    def empty(cls, device: Device, dtype: DType, shape: tuple[int, ...], name: str = "") -> GpuBuffer:
        """New memory, contents undefined. Raises ArgumentError for a shape with nothing in it, DeviceError when memory is
        full."""
        numpy_dtype(dtype)
        if not all(isinstance(extent, int) and extent > 0 for extent in shape):
            raise ArgumentError(f"buffer {name or 'without a name'}: shape {list(shape)} must be whole numbers of at least 1")
        nbytes = prod(shape) * dtype.bytes
        base = device.alloc(nbytes, name)
        return cls(Allocation(device, base, nbytes), base, dtype, tuple(shape), name)

    @classmethod
    def zeros(cls, device: Device, dtype: DType, shape: tuple[int, ...], name: str = "") -> GpuBuffer:
        buffer = cls.empty(device, dtype, shape, name)
        buffer.fill(0)
        return buffer

    @classmethod
    def from_numpy(cls, device: Device, array: NDArray[Any], dtype: DType | None = None, name: str = "") -> GpuBuffer:
        """A copy of a host array; `dtype` where NumPy's type does not tell (bf16 as uint16 bits, .b types)."""
        found = dtype or _FROM_NUMPY.get(array.dtype)
        if found is None:
            raise ArgumentError(f"no PTX type is {array.dtype}; convert the array to one of {', '.join(map(str, _FROM_NUMPY))}")
        buffer = cls.empty(device, found, array.shape, name)
        buffer.upload(array)
        return buffer

    @property
    def version(self) -> int:
        return self.allocation.version

    @property
    def alive(self) -> bool:
        """Whether the memory is still there."""
        return self.allocation.alive and not self.device.closed

    def view(self, offset: int, shape: tuple[int, ...], dtype: DType | None = None) -> GpuBuffer:
        """`shape` elements that start `offset` bytes into this buffer; shares version and life. Raises ArgumentError beyond
        its end."""
        view = GpuBuffer(self.allocation, self.pointer + offset, dtype or self.dtype, shape, self.name)
        if offset < 0 or not all(extent > 0 for extent in shape) or offset + view.nbytes > self.nbytes:
            raise ArgumentError(
                f"{view.dtype}{list(shape)} at byte {offset} does not fit in {self}, which has {self.nbytes} bytes"
            )
        return view

    def upload(self, array: NDArray[Any], progress: BytesCopied | None = None) -> None:
        """Overwrite with a host array of the same shape and type."""
        self._need_life()
        wanted = numpy_dtype(self.dtype)
        if array.shape != self.shape or array.dtype != wanted:
            raise ArgumentError(
                f"cannot upload {array.dtype}{list(array.shape)} to {self}; it takes {wanted}{list(self.shape)}"
            )
        self.device.upload(self.pointer, np.ascontiguousarray(array), progress)
        self.allocation.version += 1

    def fill(self, byte: int = 0) -> None:
        """Set every byte."""
        self._need_life()
        self.device.fill(self.pointer, self.nbytes, byte)
        self.allocation.version += 1

    def to_numpy(self) -> NDArray[Any]:
        """A copy on the host, after all work before."""
        self._need_life()
        array = np.empty(self.shape, numpy_dtype(self.dtype))
        self.device.download(self.pointer, array)
        return array

    def free(self) -> None:
        """Give the memory back, for every view of it. A second time is a DeviceError."""
        self._need_life()
        self.device.free(self.allocation.base)
        self.allocation.alive = False

    def _need_life(self) -> None:
        if not self.alive:
            raise DeviceError(f"{self} was freed{' with its device' if self.device.closed else ''}")

    def __str__(self) -> str:
        return f"{self.name or 'buffer'} {self.dtype}{list(self.shape)}"

    def __repr__(self) -> str:
        return f"<GpuBuffer {self} at {self.pointer:#x} on {self.device.name}>"
