"""Model weights on a device: straight from the file, in one pool; some of them repacked on the way. What the bytes of a block
mean is ptxgen.formats' business."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import ModelError
from executor.device.allocations import ALIGNMENT
from executor.device.protocol import BytesCopied, DeviceMemory
from executor.gguf.directory import TensorInfo
from executor.memory.buffers import DeviceAllocation, GpuBuffer, free_on_error
from executor.memory.repacking import Repacking, reader_of
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen.formats.format import Format, RepackedFormat
from ptxgen.types import F32, U8

Progress = Callable[[int, int], None]
"""Called with the bytes of the file that are on the device and the bytes in all."""


@runtime_checkable
class TensorFile(Protocol):
    """What is needed of gguf_file.GgufFile."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """By name, where each tensor lies."""

    def data(self, name: str) -> NDArray[np.uint8]:
        """The packed bytes of a tensor."""

    def read_into(self, name: str, start: int, into: NDArray[np.uint8]) -> None:
        """Fill an array with the packed bytes of a tensor from `start` on."""


@dataclass(frozen=True)
class LoadedWeight:
    """A tensor on a device: `n` rows of `k` values in `format`.

    buffer: u8[n, bytes of a row], the blocks as they lie in the file, or if they were repacked those of the RepackedFormat; a
    vector of F32 (a norm, a bias) is f32[k] instead. ranks: how many devices have as many of its rows each.
    """

    name: str
    buffer: GpuBuffer
    format: Format
    n: int
    k: int
    ranks: int = 1

    @property
    def rows(self) -> int:
        """Rows of the whole tensor."""
        return self.n if self.ranks == 1 else self.n * self.ranks

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks."""
        return self.buffer.nbytes


class Weights(Mapping[str, LoadedWeight]):
    """Weights by tensor name, whether in a pool or in memory of their own. An unknown name is a ModelError that lists similar
    ones. `generation` rises when a weight is replaced."""

    def __init__(self, weights: Mapping[str, LoadedWeight] | None = None, pool: Sequence[GpuBuffer] = ()) -> None:
        self.generation = 0
        self._weights = dict(weights or {})
        self._pool = tuple(pool)
        self._memory: tuple[DeviceAllocation, ...] | None = None  # where the weights lie, once that was asked for

    def put(self, weights: Mapping[str, LoadedWeight], memory: Sequence[GpuBuffer]) -> None:
        """Own these weights and the memory they lie in from now on. Earlier weights of the same names may not be used any more;
        memory in which no weight lies any more is freed."""
        old = self._weights
        replaced = [old[name].buffer for name, new in weights.items() if name in old and old[name] is not new]
        self._weights, self._memory = old | dict(weights), None
        self._pool += tuple(memory)
        if not replaced:
            return
        self.generation += 1
        unused = {buffer.allocation for buffer in replaced} - {weight.buffer.allocation for weight in self._weights.values()}
        for buffer in self._pool:
            if buffer.allocation in unused and buffer.alive:
                buffer.free()
        for buffer in replaced:
            if buffer.alive:
                buffer.retire()  # its pool stays, for the others in it
        self._pool = tuple(buffer for buffer in self._pool if buffer.alive)

    def absorb(self, other: Weights) -> None:
        """`put` all that another has, which is empty afterwards."""
        self.put(other._weights, other._pool)
        other._weights, other._pool, other._memory = {}, (), None

    def at(self, pointer: int) -> LoadedWeight | None:
        """The weight whose memory holds this address."""
        for weight in self._weights.values():
            if weight.buffer.pointer <= pointer < weight.buffer.pointer + weight.nbytes:
                return weight
        return None

    def __getitem__(self, name: str) -> LoadedWeight:
        if name not in self._weights:
            raise ModelError(f"no weight is called {name}{_near(str(name), self._weights)}")
        return self._weights[name]

    def __contains__(self, name: object) -> bool:
        return name in self._weights  # Mapping's own expects a KeyError

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, without what alignment adds."""
        return sum(weight.nbytes for weight in self._weights.values())

    @property
    def writes(self) -> int:
        """How often memory with weights in it was written: equal while none of them has other numbers."""
        if self._memory is None:
            self._memory = tuple({weight.buffer.allocation: None for weight in self._weights.values()})
        return sum(allocation.version for allocation in self._memory)

    def free(self) -> None:
        """Give the memory of all weights back."""
        for buffer in self._pool:
            buffer.free()
        self._pool = ()


def load_weights(
    device: DeviceMemory,
    file: TensorFile,
    names: Sequence[str],
    progress: Progress | None = None,
    *,
    repacking: Repacking | None = None,
) -> Weights:
    """Put the tensors of these names on the device.

    The bytes go from the file to where they stay: on the emulator to an allocation for each tensor, which no kernel may write;
    on a GPU to one allocation, each tensor on a 256-byte boundary. What is repacked goes to such a one on both, some rows at a
    time through memory that is given back. The file may change or go afterwards.
    Raises ModelError for a missing tensor, a type that no kernel reads or a file that cannot be read, OutOfMemory when memory
    is full. After an exception of any kind nothing of it stays on the device.
    """
    infos = [tensor_info(file, name) for name in names]
    total = sum(info.nbytes for info in infos)
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    with free_on_error(device):
        return _put(device, file, infos, repacking or Repacking(), advance)


def _put(
    device: DeviceMemory, file: TensorFile, infos: Sequence[TensorInfo], repacking: Repacking, advance: BytesCopied
) -> Weights:
    formats = repacking.formats
    weights: dict[str, LoadedWeight] = {}
    owned: list[GpuBuffer] = []
    copied: list[TensorInfo] = []
    for info in infos:
        reader = reader_of(file.read_into, info)
        pointer = None if info.name in formats else device.alloc_read_only(info.nbytes, reader, info.name)
        if pointer is None:
            copied.append(info)
            continue
        memory = GpuBuffer(DeviceAllocation(device, pointer, info.nbytes), pointer, U8, (info.nbytes,), info.name)
        owned.append(memory)
        weights[info.name] = _weight(info, memory, 0)
        advance(info.nbytes)
    if copied:
        offsets = _offsets([_nbytes(info, formats.get(info.name)) for info in copied])
        pool = GpuBuffer.empty(device, U8, (offsets[-1],), "weight pool")
        owned.append(pool)
        for info, offset in zip(copied, offsets, strict=False):
            weights[info.name] = _weight(info, pool, offset, formats.get(info.name))
            if info.name not in formats:
                device.upload_from(pool.pointer + offset, info.nbytes, reader_of(file.read_into, info), advance)
        buffers = {info.name: weights[info.name].buffer for info in copied}
        repacking.fill(copied, file.read_into, buffers, advance)
    return Weights({info.name: weights[info.name] for info in infos}, owned)


def tensor_info(file: TensorFile, name: str) -> TensorInfo:
    """Where a tensor lies. ModelError for one that is not there, or of a type that no kernel reads."""
    info = file.tensors.get(name)
    if info is None:
        raise ModelError(f"the model has no tensor {name}{_near(name, file.tensors)}")
    if info.ggml_type.name not in FORMATS:
        raise ModelError(
            f"tensor {name} has type {info.ggml_type.name}, which no kernel reads; known types: {', '.join(FORMATS)}"
        )
    return info


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=3)
    return f"; near: {', '.join(near)}" if near else ""


def _nbytes(info: TensorInfo, made: RepackedFormat | None) -> int:
    """Bytes of a tensor on the device."""
    return info.nbytes if made is None else prod(info.shape[:-1]) * made.row_bytes(info.shape[-1])


def _weight(info: TensorInfo, pool: GpuBuffer, offset: int, made: RepackedFormat | None = None) -> LoadedWeight:
    n, k, nbytes = prod(info.shape[:-1]), info.shape[-1], _nbytes(info, made)
    if nbytes % n:
        raise ArgumentError(f"tensor {info.name}: {nbytes} bytes do not make {n} rows")
    is_vector = len(info.shape) == 1 and info.ggml_type.name == "F32"
    view = pool.view(offset, (k,), F32) if is_vector else pool.view(offset, (n, nbytes // n), U8)
    view.name = info.name
    return LoadedWeight(info.name, view, made or FORMATS[info.ggml_type.name], n, k, info.ranks)


def _offsets(sizes: Iterable[int]) -> list[int]:
    """Where each tensor of so many bytes starts in the pool, and where the pool ends."""
    offsets = [0]
    for nbytes in sizes:
        offsets.append(-(-(offsets[-1] + nbytes) // ALIGNMENT) * ALIGNMENT)
    return offsets
