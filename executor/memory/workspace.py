"""Buffers that live from token to token: named memory that is allocated once and grows when a larger shape is requested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Self, TypeVar

from executor.base.errors import DeviceError
from executor.device.protocol import DeviceMemory
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.types import F32, U8, DType

Made = TypeVar("Made")


class Workspace:
    """Named buffers on one device.

    A name's memory never shrinks: a smaller shape is a view of its start. `generation` rises when memory is allocated or
    given back: what holds addresses (a captured graph, a plan) is valid while it stands."""

    def __init__(self, device: DeviceMemory) -> None:
        self.device = device
        self.generation = 0
        self._replaced = 0  # how often memory was given back for a larger one
        self._memory: dict[str, GpuBuffer] = {}
        self._zeros: set[str] = set()
        self._views: dict[tuple[str, DType, tuple[int, ...]], GpuBuffer] = {}

    def buffer(self, name: str, shape: tuple[int, ...], dtype: DType = F32, *, zeros: bool = False) -> GpuBuffer:
        """The memory called `name` as `shape` elements of `dtype`; contents undefined unless it was requested like this before
        and has not grown since. zeros: new memory is all zeros, which each user must leave there. Raises DeviceError
        when memory is full."""
        view = self._views.get((name, dtype, shape))
        if view is not None:
            return view
        memory = self._memory.get(name)
        nbytes = prod(shape) * dtype.bytes
        if memory is None or memory.nbytes < nbytes:
            memory = self._grown(name, memory, nbytes)
            if zeros:
                with self.device.owner.at_once():
                    memory.fill(0)
                self._zeros.add(name)
        view = GpuBuffer(memory.allocation, memory.pointer, dtype, shape, name)
        self._views[name, dtype, shape] = view
        return view

    def arrays(self, kernel: KernelType, name: str, arguments: Sequence[str]) -> dict[str, GpuBuffer]:
        """Buffers for these arguments of a kernel, in its dtypes and shapes, zeros where it wants these; `name` says what they
        belong to."""
        signature = kernel.signature()
        buffers = {}
        for argument in arguments:
            array = signature[argument]
            assert isinstance(array, Array)
            buffers[argument] = self.buffer(f"{name}: {argument}", array.shape, array.dtype, zeros=array.zeros)
        return buffers

    def laid_out(self, make: Callable[[], Made]) -> Made:
        """What `make` makes of buffers, all of them alive: it is called again if one of a name has grown meanwhile, which left
        those from before without memory."""
        while True:
            before = self._replaced
            made = make()
            if self._replaced == before:
                return made

    def settle(self) -> None:
        """Make zeros of what has to hold them, after launches that may have been thrown away half done. For handlers of
        exceptions: a device that is lost raises none here, since nothing will run on it."""
        with suppress(DeviceError):
            for name in self._zeros:
                self._memory[name].fill(0)

    @property
    def nbytes(self) -> int:
        """Bytes of all memory in it."""
        return sum(memory.nbytes for memory in self._memory.values())

    def free(self) -> None:
        """Give all memory back; the workspace is empty afterwards and can be used again."""
        for memory in self._memory.values():
            memory.free()
        self._memory.clear()
        self._views.clear()
        self._zeros.clear()
        self.generation += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.device.closed:
            self.free()

    def _grown(self, name: str, old: GpuBuffer | None, nbytes: int) -> GpuBuffer:
        """New memory in the place of the old, which goes only when the new is there."""
        memory = GpuBuffer.empty(self.device, U8, (nbytes,), name)
        if old is not None:
            self._views = {key: view for key, view in self._views.items() if key[0] != name}
            old.free()
            self._replaced += 1
        self._memory[name] = memory
        self.generation += 1
        return memory
