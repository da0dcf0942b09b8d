"""Tensors that get the blocks of another format on their way to the device. Which ones is the model's business
(executor/model/matrices.py), where they stay that of weights.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from executor.device.protocol import BytesCopied, ReadInto, ReadOwn
from executor.gguf.directory import TensorInfo
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.formats.format import RepackedFormat
from ptxgen.kernels.repack.repack import Repack
from ptxgen.types import U8

STAGED: Final = 16 << 20
"""Bytes that are on the device as they lie in the file, at a time: what the driver fetches in one piece
(executor/device/pinned.py)."""

ReadTensor = Callable[[str, int, NDArray[np.uint8]], None]
"""As TensorFile.read_into."""


class RunsKernels(Protocol):
    """What is needed of Launcher."""

    def __call__(self, kernel: KernelType, /, **arguments: GpuBuffer) -> None:
        """Launch once, after all that was started before."""


@dataclass(frozen=True)
class Repacking:
    """The tensors that are repacked, by name with the format that they get. `launch` runs the kernel that does it; without,
    memory is laid out and nothing is read: for a dry run."""

    formats: Mapping[str, RepackedFormat] = field(default_factory=dict)
    launch: RunsKernels | None = None

    def staged_bytes(self, infos: Iterable[TensorInfo]) -> int:
        """The memory that `fill` takes for these tensors, of which some may stay as they are."""
        return max((_staged_rows(info) * _row_bytes(info) for info in infos if info.name in self.formats), default=0)

    def fill(
        self, infos: Sequence[TensorInfo], read: ReadTensor, buffers: Mapping[str, GpuBuffer], advance: BytesCopied
    ) -> None:
        """Fill the buffers, u8[n, row bytes], of those tensors that are repacked, through memory that is given back. `advance`
        gets the bytes of the file."""
        infos = [info for info in infos if info.name in self.formats]
        if not infos or self.launch is None:
            return
        staging = GpuBuffer.empty(buffers[infos[0].name].device, U8, (self.staged_bytes(infos),), "blocks to repack")
        for info in infos:
            self._fill(info, read, staging, buffers[info.name], self.launch, advance)
        staging.free()

    def _fill(
        self, info: TensorInfo, read: ReadTensor, staging: GpuBuffer, made: GpuBuffer, launch: RunsKernels, advance: BytesCopied
    ) -> None:
        """Some rows after others. The last time may have rows again that the time before had: one kernel does for all."""
        (n, row), rows, native = made.shape, _staged_rows(info), _row_bytes(info)
        kernel = Repack(self.formats[info.name], k=info.shape[-1], n=rows)
        source, done = staging.view(0, (rows, native)), 0
        for start in [*range(0, n - rows, rows), n - rows]:
            staging.device.upload_from(staging.pointer, rows * native, reader_of(read, info, start * native))
            launch(kernel, native=source, w=made.view(start * row, (rows, row)))
            advance((start + rows - done) * native)
            done = start + rows


def reader_of(read: ReadTensor, info: TensorInfo, first: int = 0) -> ReadInto:
    """Reads the bytes of a tensor from `first` on; of one that ranks share, each its own."""

    def of_rank(rank: int) -> ReadInto:
        return lambda start, into: read(info.name, rank * info.nbytes + first + start, into)

    return of_rank(0) if info.ranks == 1 else ReadOwn(of_rank)


def _row_bytes(info: TensorInfo) -> int:
    """Bytes of a row in the file."""
    return info.nbytes // prod(info.shape[:-1])


def _staged_rows(info: TensorInfo) -> int:
    """How many rows of a tensor are repacked at a time."""
    return min(prod(info.shape[:-1]), max(1, STAGED // _row_bytes(info)))
