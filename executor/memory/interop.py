"""Memory of PyTorch, CuPy, NumPy and others as buffers of a device, without a copy, in the order of the caller's stream. The
other direction is GpuBuffer's own (`__dlpack__`, `__cuda_array_interface__`); DLPack's structures are dlpack.py's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from executor.device.allocations import BorrowedMemory
from executor.device.protocol import Device
from executor.device.stream_handle import LEGACY, stream_handle
from executor.memory.buffers import DeviceAllocation, GpuBuffer
from executor.memory.dlpack import CPU, CUDA, VERSION, ForeignArray, device_label, read_capsule
from ptxgen.arrays import FROM_NUMPY, numpy_dtype
from ptxgen.errors import ArgumentError
from ptxgen.spelling import DTypeLike, dtype_of
from ptxgen.types import BF16, DType


@contextmanager
def foreign_stream(device: Device, stream: Any) -> Iterator[None]:
    """Work of the device in the block comes after what was started on the caller's stream before the block, and before what is
    started on it after the block. The host waits for neither.

    stream: `torch.cuda.current_stream()`, or whatever stream_handle takes. On the emulator there is nothing to order. The
    device's context becomes the thread's current one.
    """
    handle = stream_handle(stream)
    device.sharing.wait_for(handle)
    try:
        yield
    finally:
        device.sharing.make_wait(handle)


@contextmanager
def used_stream(device: Device, stream: Any) -> Iterator[None]:
    """Work of the device in the block goes to the caller's stream, after all that the device has started, and before what it
    starts after the block. The host waits for nothing.

    stream: as foreign_stream, of this GPU; it must live until the block ends. On the emulator, where a call returns when its
    work has ended, the block changes nothing. Errors as MemorySharing.use.
    """
    before = device.sharing.use(stream_handle(stream))
    try:
        yield
    finally:
        device.sharing.use_again(before)


def as_buffer(device: Device, obj: Any, dtype: DTypeLike | None = None, name: str = "") -> GpuBuffer:
    """A buffer over the memory of `obj`: no copy, and `obj`'s memory lives as long as the buffer does.

    obj: on a GPU anything with DLPack or, without that, `__cuda_array_interface__` (2 or 3) on the same GPU; on the emulator
    anything with DLPack in host memory, NumPy arrays too. It must be row-major, of a type that PTX has, and not empty. A
    GpuBuffer of this device is returned as it is.
    dtype: for what other libraries store as plain bits (bf16 as uint16, .b types, packed pairs); default: the type of `obj`.

    What was started on `obj` before is waited for, as far as its protocol tells: DLPack does, the array interface does in
    version 3 with a stream. What comes after is the caller's: `foreign_stream`. `free` the buffer when it is not needed any
    more, or let the last reference go: the memory goes back to its owner when the device's work on it has ended, at the
    latest when the device next waits. The buffer's versions count our writes, not `obj`'s: after others wrote, `touch` it.

    Raises ArgumentError for what cannot be shared, with the reason; DeviceError if the driver says that the memory is
    elsewhere.
    """
    asked = None if dtype is None else dtype_of(dtype)
    if isinstance(obj, GpuBuffer) and obj.device is device:
        if asked not in (None, obj.dtype):
            raise ArgumentError(f"{obj} cannot be shared as {asked}; use view() to see its bytes as another type")
        return obj
    label = _label(obj, name)
    if device.ranks > 1:
        raise ArgumentError(f"{label} is in one memory, and {device.name} have one each; use GpuBuffer.from_numpy")
    array = _foreign_array(device, obj, label)
    element = _dtype(array, asked, label)
    _check(array, element, label)
    memory = BorrowedMemory(array.pointer, prod(array.shape) * element.bytes, array.owner, name, array.read_only)
    return _borrowed(device, memory, element, array.shape)


def unheld_buffer(device: Device, pointer: int, dtype: DType, shape: tuple[int, ...], name: str) -> GpuBuffer:
    """A buffer over memory that another library keeps until the work on it has ended, and of which it knows that it may be used
    as it is: row-major, writable, aligned, not empty. Nothing is waited for. DeviceError if the driver says that the memory is
    elsewhere."""
    return _borrowed(device, BorrowedMemory(pointer, prod(shape) * dtype.bytes, None, name), dtype, shape)


def _borrowed(device: Device, memory: BorrowedMemory, dtype: DType, shape: tuple[int, ...]) -> GpuBuffer:
    device.sharing.borrow(memory)
    allocation = DeviceAllocation(device, memory.pointer, memory.nbytes, memory)
    return GpuBuffer(allocation, memory.pointer, dtype, shape, memory.name)


def _foreign_array(device: Device, obj: Any, label: str) -> ForeignArray:
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        return _through_dlpack(device, obj, label)
    if hasattr(obj, "__cuda_array_interface__"):
        if device.kind != "cuda":
            raise ArgumentError(f"{label} is in memory of a GPU; {device.name} takes memory of the host")
        return _through_array_interface(device, obj, label)
    protocols = "DLPack" if device.kind != "cuda" else "DLPack or __cuda_array_interface__"
    raise ArgumentError(f"{label} has no {protocols}; give an array, a tensor or a GpuBuffer")


def _through_dlpack(device: Device, obj: Any, label: str) -> ForeignArray:
    kind, number = (int(part) for part in obj.__dlpack_device__())
    if (kind, number) != device.sharing.dlpack_device:
        hint = ""
        if device.kind == "cuda":
            hint = "; use GpuBuffer.from_numpy, or .cuda() of PyTorch" if kind == CPU else ""
        elif kind == CUDA:
            hint = "; use .cpu() of PyTorch, .get() of CuPy"
        own = device_label(*device.sharing.dlpack_device)
        raise ArgumentError(f"{label} is in {device_label(kind, number)}; {device.name} takes memory in {own}{hint}")
    stream = {"stream": int(device.sharing.stream)} if device.kind == "cuda" else {}
    try:
        try:
            capsule = obj.__dlpack__(**stream, max_version=VERSION, copy=False)
        except TypeError:  # older than version 1.0, which does not know these two (array API, `__dlpack__`)
            capsule = obj.__dlpack__(**stream)
        return read_capsule(capsule)
    except (BufferError, RuntimeError, TypeError, ValueError, ArgumentError) as error:
        raise ArgumentError(f"{label} cannot be shared: {error}") from error


def _through_array_interface(device: Device, obj: Any, label: str) -> ForeignArray:
    interface = obj.__cuda_array_interface__
    if interface.get("version", 0) < 2:
        raise ArgumentError(f"{label}: __cuda_array_interface__ is of version {interface.get('version')}; must be 2 or 3")
    if interface.get("mask") is not None:
        raise ArgumentError(f"{label} has a mask, which a buffer cannot have")
    stream = interface.get("stream")
    if stream is not None:
        if not isinstance(stream, int) or stream < LEGACY:
            raise ArgumentError(f"{label}: stream {stream!r} is not allowed; 1 is the legacy default stream, 2 the thread's")
        device.sharing.wait_for(stream)
    pointer, read_only = interface["data"]
    try:
        dtype = FROM_NUMPY.get(np.dtype(interface["typestr"]))
    except TypeError as error:
        raise ArgumentError(f"{label}: {interface['typestr']!r} is not a type string of the array interface") from error
    return ForeignArray(
        pointer=int(pointer or 0),
        type_name=interface["typestr"],
        dtype=dtype,
        shape=tuple(interface["shape"]),
        strides=interface.get("strides"),
        read_only=bool(read_only),
        owner=obj,
    )


def _dtype(array: ForeignArray, dtype: DType | None, label: str) -> DType:
    if array.dtype is None:
        readable = ", ".join(map(str, [*FROM_NUMPY.values(), BF16]))
        raise ArgumentError(f"{label} holds {array.type_name}, for which there is no PTX type; use one of {readable}")
    if dtype is not None and numpy_dtype(dtype) != numpy_dtype(array.dtype):
        raise ArgumentError(
            f"{label} holds {array.type_name}; {dtype} is stored as {numpy_dtype(dtype)}, so see it as that (view) first"
        )
    return dtype or array.dtype


def _check(array: ForeignArray, dtype: DType, label: str) -> None:
    if not all(extent > 0 for extent in array.shape):
        raise ArgumentError(f"{label} is empty: shape {list(array.shape)}")
    if array.strides is not None:
        row_major = [prod(array.shape[axis + 1 :]) * dtype.bytes for axis in range(len(array.shape))]
        wrong = [s != r for s, r, extent in zip(array.strides, row_major, array.shape, strict=True) if extent > 1]
        if any(wrong):
            raise ArgumentError(
                f"{label} of shape {list(array.shape)} has strides of {list(array.strides)} bytes, row-major are {row_major}; "
                "make it contiguous first"
            )
    if array.pointer == 0:
        raise ArgumentError(f"{label} has a null pointer")
    if array.pointer % dtype.bytes:
        raise ArgumentError(f"{label} starts at {array.pointer:#x}; {dtype} must be on a {dtype.bytes}-byte boundary")


def _label(obj: Any, name: str) -> str:
    kind = f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")
    return f"{name} ({kind})" if name else f"a {kind}"
