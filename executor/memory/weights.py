"""Model weights on a device: straight from the file, in one pool. What the bytes of a block mean is ptxgen.formats'
business."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import ModelError
from executor.device.allocations import ALIGNMENT, free_on_error
from executor.device.protocol import BytesCopied, DeviceMemory
from executor.gguf.gguf_file import TensorInfo
from executor.memory.buffers import DeviceAllocation, GpuBuffer
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen.formats.format import Format
from ptxgen.types import F32, U8

Progress = Callable[[int, int], None]
"""Called with the bytes that are on the device and the bytes in all."""


@runtime_checkable
class TensorFile(Protocol):
    """What is needed of executor.model.gguf_file.GgufFile."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def data(self, name: str) -> NDArray[np.uint8]: ...

    def read_into(self, name: str, start: int, into: NDArray[np.uint8]) -> None: ...


@dataclass(frozen=True)
class LoadedWeight:
    """A tensor on a device: `n` rows of `k` values in `format`.

    buffer: u8[n, bytes of a row], the blocks as they lie in the file; a vector of F32 (a norm, a bias) is f32[k] instead.
    """

    name: str
    buffer: GpuBuffer
    format: Format
    n: int
    k: int

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes


class Weights(Mapping[str, LoadedWeight]):
    """Weights by tensor name. A name that is not there is a ModelError that says near names. `generation` rises when a weight
    is another than it was.

    A name means one tensor, whether it lies in a pool or in memory of its own, so there is no order to look them up in."""

    def __init__(self, weights: Mapping[str, LoadedWeight] | None = None, pool: Sequence[GpuBuffer] = ()) -> None:
        self.generation = 0
        self._weights = dict(weights or {})
        self._pool = tuple(pool)

    def put(self, weights: Mapping[str, LoadedWeight], memory: Sequence[GpuBuffer]) -> None:
        """Take over weights and the memory they lie in. What had one of their names before may not be used any more; memory in
        which no weight lies any more is freed."""
        known = self._weights
        replaced = [known[name].buffer for name, new in weights.items() if name in known and known[name] is not new]
        known.update(weights)
        self._pool += tuple(memory)
        if not replaced:
            return
        self.generation += 1
        unused = {buffer.allocation for buffer in replaced} - {weight.buffer.allocation for weight in known.values()}
        for buffer in self._pool:
            if buffer.allocation in unused and buffer.alive:
                buffer.free()
        for buffer in replaced:
            if buffer.alive:
                buffer.retire()  # its pool stays, for the others in it
        self._pool = tuple(buffer for buffer in self._pool if buffer.alive)

    def take(self, other: Weights) -> None:
        """`put` all that another has, which is empty afterwards."""
        self.put(other._weights, other._pool)
        other._weights, other._pool = {}, ()

    def at(self, pointer: int) -> LoadedWeight | None:
        """The weight whose memory holds this address."""
        for weight in self._weights.values():
            if weight.buffer.pointer <= pointer < weight.buffer.pointer + weight.nbytes:
                return weight
        return None

    def __getitem__(self, name: str) -> LoadedWeight:
        if name not in self._weights:
            near = difflib.get_close_matches(str(name), self._weights, n=3)
            raise ModelError(f"no weight is called {name}" + (f"; near: {', '.join(near)}" if near else ""))
        return self._weights[name]

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, without what alignment adds."""
        return sum(weight.nbytes for weight in self._weights.values())

    def free(self) -> None:
        """Give the memory of all weights back."""
        for buffer in self._pool:
            buffer.free()
        self._pool = ()


def load_weights(device: DeviceMemory, file: TensorFile, names: Sequence[str], progress: Progress | None = None) -> Weights:
    """Put the tensors of these names on the device.

    The bytes go from the file to where they stay: on the emulator to an allocation for each tensor, which no kernel may write;
    on a GPU to one allocation, each tensor on a 256-byte boundary. Whatever becomes of the file afterwards is of no matter.
    Raises ModelError for a missing tensor, a type that no kernel reads or a file that cannot be read, OutOfMemory when memory
    is full. After an exception of any kind nothing of it stays on the device.
    """
    infos = [_info(file, name) for name in names]
    total = sum(info.nbytes for info in infos)
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    with free_on_error(device):
        return _put(device, file, infos, advance)


def _put(device: DeviceMemory, file: TensorFile, infos: Sequence[TensorInfo], advance: BytesCopied) -> Weights:
    weights: dict[str, LoadedWeight] = {}
    owned: list[GpuBuffer] = []
    copied: list[TensorInfo] = []
    for info in infos:
        pointer = device.alloc_read_only(info.nbytes, partial(file.read_into, info.name), info.name)
        if pointer is None:
            copied.append(info)
            continue
        whole = GpuBuffer(DeviceAllocation(device, pointer, info.nbytes), pointer, U8, (info.nbytes,), info.name)
        owned.append(whole)
        weights[info.name] = _weight(info, whole, 0)
        advance(info.nbytes)
    if copied:
        offsets = _offsets(copied)
        pool = GpuBuffer.empty(device, U8, (offsets[-1],), "weight pool")
        owned.append(pool)
        for info, offset in zip(copied, offsets, strict=False):
            device.upload_from(pool.pointer + offset, info.nbytes, partial(file.read_into, info.name), advance)
            weights[info.name] = _weight(info, pool, offset)
    return Weights({info.name: weights[info.name] for info in infos}, owned)


def _info(file: TensorFile, name: str) -> TensorInfo:
    info = file.tensors.get(name)
    if info is None:
        near = difflib.get_close_matches(name, file.tensors, n=3)
        raise ModelError(f"the model has no tensor {name}" + (f"; near: {', '.join(near)}" if near else ""))
    if info.ggml_type.name not in FORMATS:
        raise ModelError(
            f"tensor {name} has type {info.ggml_type.name}, which no kernel reads; known types: {', '.join(FORMATS)}"
        )
    return info


def _weight(info: TensorInfo, pool: GpuBuffer, offset: int) -> LoadedWeight:
    n, k = prod(info.shape[:-1]), info.shape[-1]
    if info.nbytes % n:
        raise ArgumentError(f"tensor {info.name}: {info.nbytes} bytes do not make {n} rows")
    is_vector = len(info.shape) == 1 and info.ggml_type.name == "F32"
    view = pool.view(offset, (k,), F32) if is_vector else pool.view(offset, (n, info.nbytes // n), U8)
    view.name = info.name
    return LoadedWeight(info.name, view, FORMATS[info.ggml_type.name], n, k)


def _offsets(infos: Sequence[TensorInfo]) -> list[int]:
    """Where each tensor starts in the pool, and where the pool ends, in bytes."""
    offsets = [0]
    for info in infos:
        offsets.append(-(-(offsets[-1] + info.nbytes) // ALIGNMENT) * ALIGNMENT)
    return offsets
