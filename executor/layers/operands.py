"""What callers give as a weight or a vector (names, raw pointers, buffers, arrays of other libraries) as what kernels take,
checked before anything is launched."""

from __future__ import annotations

from math import prod
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from executor.base.arguments import array, described, same_shape, whole
from executor.base.errors import LaunchError, ModelError
from executor.device.protocol import Device
from executor.layers.projection import Projection
from executor.memory.buffers import GpuBuffer, allocation_at
from executor.memory.interop import as_buffer
from executor.memory.weights import LoadedWeight, Weights
from ptxgen.errors import ArgumentError
from ptxgen.formats.format import Format
from ptxgen.types import F32, U8, DType

WeightLike = str | int | GpuBuffer | LoadedWeight | Projection
"""A weight: its name, the address of its first byte, a buffer that holds its blocks, or what `weights` or an indexed layer
has."""


def vector(device: Device, value: Any, shape: tuple[int, ...] | None, name: str, dtype: DType = F32) -> GpuBuffer:
    """f32, or another type, of this shape, in the caller's memory: a buffer, or anything that executor.interop accepts. Flat
    will do; a shape of None makes a vector of whatever there is. Raises ArgumentError, LaunchError for a buffer that was freed
    or is another executor's."""
    if isinstance(value, GpuBuffer) and value.device is not device:
        raise LaunchError(
            f"{name} ({value}) is {value.other_label}; must be of this one, on {device.name} (interop.as_buffer shares memory)"
        )
    buffer = as_buffer(device, value, name=name)
    if not buffer.alive:
        raise LaunchError(f"{name} ({buffer}) was freed")
    needed = (prod(buffer.shape),) if shape is None else shape
    if buffer.dtype != dtype or not (shape is None or same_shape(buffer.shape, needed)):
        raise ArgumentError(f"{name} is {buffer.dtype}{list(buffer.shape)}; must be {dtype}{list(needed)}")
    return buffer if buffer.shape == needed else buffer.view(0, needed)


def shape_of(value: Any, name: str) -> tuple[int, ...]:
    """The shape of a buffer or of another library's array. ArgumentError for what has none."""
    if not hasattr(value, "shape"):
        raise ArgumentError(f"{name} is {described(value)}; allowed: a GpuBuffer, or an array of NumPy or another library")
    return tuple(value.shape)


def host_values(values: ArrayLike, shape: tuple[int, ...], name: str) -> NDArray[np.float32]:
    """f32 of this shape, row-major, from real numbers of the host in this shape or flat. ArgumentError for anything else."""
    values = array(name, values)
    if values.dtype.kind not in "biuf" or not same_shape(values.shape, shape):
        raise ArgumentError(f"{name} is {values.dtype}{list(values.shape)} on the host; must be {list(shape)} real numbers")
    return np.ascontiguousarray(values, np.float32).reshape(shape)


def host_output(output: NDArray[np.float32] | None, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """An array of the host that results can be written to: `output` if there is one. ArgumentError if it does not fit."""
    if output is None:
        return np.empty(shape, np.float32)
    fits = isinstance(output, np.ndarray) and output.dtype == np.float32 and same_shape(output.shape, shape)
    if not (fits and output.flags.c_contiguous and output.flags.writeable):
        raise ArgumentError(f"output must be a writable, row-major NumPy array of float32{list(shape)}, got {_words(output)}")
    return output


def _words(value: object) -> str:
    if not isinstance(value, np.ndarray):
        return f"a {type(value).__name__}"
    flags = [
        word
        for word, true in (("read-only", not value.flags.writeable), ("not row-major", not value.flags.c_contiguous))
        if true
    ]
    return " ".join([f"{value.dtype}{list(value.shape)}", *flags])


def weight(
    device: Device,
    weights: Weights,
    value: WeightLike,
    *,
    n: int | None = None,
    k: int | None = None,
    format: Format | None = None,
) -> LoadedWeight:
    """A matrix of n rows of k values.

    n, k, format: what it must be; None for what it is, which memory that is no loaded weight does not tell. Raises ModelError
    for a name that is not there and for a weight of another type or shape, LaunchError for a pointer that is null, freed, of
    another device, or has too little memory behind it, ArgumentError for what is none of these, for n and k below 1, and where
    they are needed and not given.
    """
    n, k = (size if size is None else whole(name, size) for name, size in (("n", n), ("k", k)))
    if isinstance(value, str):
        matrix = weights[value]
    elif isinstance(value, Projection):
        matrix = value.weight
    elif isinstance(value, LoadedWeight):
        matrix = value
    else:
        matrix = _at_pointer(device, weights, value if isinstance(value, GpuBuffer) else _address(value), n, k, format)
    _check(matrix, n, k, format)
    return matrix


def _address(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentError(
            f"the weight is {described(value)}; allowed: its name, its address (a whole number), a GpuBuffer, or what "
            "`weights` or an indexed layer holds"
        )
    return whole("the address of the weight", value, 0)


def _check(matrix: LoadedWeight, n: int | None, k: int | None, format: Format | None) -> None:
    name = matrix.name
    if format is not None and matrix.format != format:
        raise ModelError(f"{name} is {matrix.format.name}; the call says {format.name}")
    if n not in (None, matrix.n) or k not in (None, matrix.k):
        said = f"k = {k}" if n is None else f"n = {n}" if k is None else f"{n} x {k}"
        raise ModelError(f"{name} is {matrix.n} x {matrix.k}; the call says {said}")
    if not matrix.buffer.alive:
        raise LaunchError(f"{name} was freed")


def _at_pointer(
    device: Device, weights: Weights, value: int | GpuBuffer, n: int | None, k: int | None, format: Format | None
) -> LoadedWeight:
    pointer, what = (value.pointer, str(value)) if isinstance(value, GpuBuffer) else (value, f"weight pointer {value:#x}")
    if pointer == 0:
        raise LaunchError("the weight is a null pointer")
    if isinstance(value, GpuBuffer) and (value.device is not device or not value.alive):
        mine = value.device is device
        where = "was freed" if mine else f"is {value.other_label}; must be of this one, on {device.name}"
        raise LaunchError(f"{what} {where}")
    loaded = weights.at(pointer)
    if loaded is not None and loaded.buffer.alive and loaded.buffer.pointer == pointer:
        return loaded
    if format is None:
        raise LaunchError(f"{what} is not the start of a loaded weight, so its type is not known; load it with load_weight")
    if n is None or k is None:
        raise ArgumentError(f"{what} is not the start of a loaded weight, so its n and k are not known; give both")
    if n < 1 or k < 1 or k % format.block:
        raise ArgumentError(f"{what}: {format.name} cannot be {n} x {k}; rows are a multiple of {format.block} values")
    nbytes = n * format.row_bytes(k)
    end = loaded.buffer.pointer + loaded.nbytes if loaded is not None and loaded.buffer.alive else None
    if isinstance(value, GpuBuffer):
        end = pointer + value.nbytes
    if end is not None and pointer + nbytes > end:
        raise LaunchError(f"{what} has {end - pointer} bytes; {n} x {k} of {format.name} are {nbytes}")
    allocation = allocation_at(device, pointer, nbytes)
    if allocation is None:
        raise LaunchError(f"{what}: no live memory of {device.name} holds {nbytes} bytes there ({n} x {k} of {format.name})")
    return LoadedWeight(what, GpuBuffer(allocation, pointer, U8, (n, format.row_bytes(k)), what), format, n, k)
