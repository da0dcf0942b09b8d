"""One tensor of host memory as a weight on a device, in memory of its own. Whole files go through weights.py."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import described, extents, instance, same_shape, whole
from executor.base.errors import ModelError
from executor.device.protocol import DeviceMemory
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import LoadedWeight
from ptxgen.formats import find as find_format
from ptxgen.formats import of_type
from ptxgen.formats.format import Format
from ptxgen.types import F32, U8

HostData = bytes | bytearray | memoryview | NDArray[Any]
_PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}
"""Types that NumPy has, too: arrays of them need not come as bytes."""


def format_of(type: str | int | Format) -> Format:
    """A weight format by its GGML name or type id. ArgumentError says what is supported."""
    return find_format(type) if isinstance(type, str | Format) else of_type(whole("the type of the weight", type))


def host_weight(
    device: DeviceMemory, name: str, data: HostData, type: str | int | Format, shape: tuple[int, ...]
) -> LoadedWeight:
    """Upload a tensor. data: its blocks as they lie in a GGUF file, as bytes or u8 (F32 and F16 also as numbers of that type);
    shape: rows first, as NumPy has it, (n, k) or (k,); a vector of F32 becomes f32[k].

    The type is what the caller says and is never guessed from the size. Raises ArgumentError for an unknown type, ModelError
    for a shape that the type cannot have and for data that are not exactly the bytes of type and shape.
    """
    format = format_of(type)
    instance("the name of the tensor", name, str)
    shape = extents(f"tensor {name}: shape", shape, 0)
    if not shape or 0 in shape:
        raise ModelError(f"tensor {name}: shape {list(shape)} must be whole numbers of at least 1")
    n, k = prod(shape[:-1]), shape[-1]
    if k % format.block:
        raise ModelError(f"tensor {name}: rows of {k} values cannot be {format.name}, whose blocks have {format.block}")
    row = format.row_bytes(k)
    blocks = _bytes(name, data, format, shape)
    if blocks.size != n * row:
        raise ModelError(
            f"tensor {name}: {format.name} of shape {list(shape)} has {n * row} bytes ({n} rows of {row}), got {blocks.size}"
        )
    if format.name == "F32" and len(shape) == 1:
        return LoadedWeight(name, GpuBuffer.from_numpy(device, blocks.view("<f4"), F32, name), format, n, k)
    return LoadedWeight(name, GpuBuffer.from_numpy(device, blocks.reshape(n, row), U8, name), format, n, k)


def _bytes(name: str, data: HostData, format: Format, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The bytes of a tensor of this shape. An array is flat, or has the shape itself (of numbers) or with rows of bytes."""
    if not isinstance(data, np.ndarray | bytes | bytearray | memoryview):
        raise ModelError(f"tensor {name}: {format.name} must be bytes or an array, got {described(data)}")
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    plain = _PLAIN.get(format.name)
    if array.dtype not in (np.uint8, plain):
        allowed = f"uint8 or {plain}" if plain is not None else "uint8"
        raise ModelError(f"tensor {name}: {format.name} must be bytes or an array of {allowed}, got {array.dtype}")
    expected = shape if array.dtype == plain else (*shape[:-1], format.row_bytes(shape[-1]))
    rows = prod(expected[:-1]), expected[-1]
    if array.size == prod(expected) and not (same_shape(array.shape, expected) or same_shape(array.shape, rows)):
        raise ModelError(f"tensor {name}: {array.dtype}{list(array.shape)} are not the rows of {list(expected)}")
    flat: NDArray[np.uint8] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat
