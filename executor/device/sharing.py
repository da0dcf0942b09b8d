"""What a GPU shares with other libraries in the process: the order between its stream and theirs, borrowed memory that work may
still use, allocations that others hold. Belongs to cuda.py."""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import Any

from executor.base.errors import DeviceError
from executor.device.allocations import BorrowedMemory
from executor.device.cuda_event import Check, CudaEvent, EventPool
from executor.device.cuda_stream import CurrentStream
from executor.device.open_gpu import OpenGpu
from executor.device.protocol import MemorySharing

_log = logging.getLogger(__name__)


class Hold:
    """Keeps the allocation at `base` from going while it lives. It may die on any thread, so it only leaves a note."""

    __slots__ = ("_left", "base")

    def __init__(self, base: int, left: deque[int]) -> None:
        self.base = base
        self._left = left

    def __del__(self) -> None:
        self._left.append(self.base)


class CudaSharing(MemorySharing):
    """Of one device; `cuda` is cuda.bindings.driver. What only the device calls needs its context to be the current one."""

    def __init__(self, device: OpenGpu, cuda: Any, stream: CurrentStream, events: EventPool, check: Check) -> None:
        self.dlpack_device = 2, device.ordinal
        self._stream = stream
        self._device = device
        self._cuda = cuda
        self._events = events
        self._check = check
        self._given_back: deque[BorrowedMemory] = deque()
        self._in_use: deque[tuple[CudaEvent, list[BorrowedMemory]]] = deque()  # until the stream has passed the event
        self._holds: Counter[int] = Counter()
        self._left: deque[int] = deque()  # holds that died and have not been counted yet
        self._freed: set[int] = set()  # bases that are held still

    @property
    def stream(self) -> Any:
        return self._stream.handle

    def borrow(self, memory: BorrowedMemory) -> None:
        self._device.enter_anew("borrowing memory")
        self.release_finished()
        self._require_own(memory)
        self._device.allocations.borrow(memory)

    def give_back(self, memory: BorrowedMemory) -> None:
        if self._device.allocations.give_back(memory):
            self._device.frees += 1
            if not self._device.closed:
                self._given_back.append(memory)

    def hold(self, pointer: int) -> object:
        self._device.enter("sharing memory")
        base, keeper = self._device.allocations.check(pointer, 1, "share")
        if isinstance(keeper, BorrowedMemory):
            return keeper
        self._count()
        self._holds[base] += 1
        return Hold(base, self._left)

    def note_write(self, pointer: int, nbytes: int) -> None:
        self._device.enter("noting a write")
        self._device.allocations.check(pointer, nbytes, "note a write of")

    def wait_for(self, stream: int) -> None:
        self._device.enter_anew("waiting for a stream")
        self._stream.order(stream, self.stream)

    def make_wait(self, stream: int) -> None:
        self._device.enter_anew("making a stream wait")
        self._stream.order(self.stream, stream)

    def use(self, stream: int) -> Any:
        self._device.enter_anew("changing the stream", immediate=True)
        return self._stream.use(self._device.checked_stream(stream))

    def use_again(self, before: Any) -> None:
        if not (self._device.closed or self._device.failed):
            self._device.enter_anew("changing the stream", immediate=True)
            self._stream.use(before)

    def defer_free(self, base: int) -> bool:
        """Whether an allocation that is being freed is held; then `release_finished` frees it after the last hold has gone."""
        self._count()
        if not self._holds[base]:
            return False
        self._freed.add(base)
        return True

    def held(self) -> set[int]:
        """Bases that are held, freed or not."""
        self._count()
        return {base for base, count in self._holds.items() if count}

    def release_finished(self) -> None:
        """Release what was given back and is not used any more. Costs nothing where nothing is shared."""
        self._free_unheld()
        given_back = [self._given_back.popleft() for _ in range(len(self._given_back))]
        if given_back:
            event = self._events.take()
            self._check(self._cuda.cuEventRecord(event.handle, self.stream), "recording an event")
            self._in_use.append((event, given_back))
        while self._in_use:
            (status,) = self._cuda.cuEventQuery(self._in_use[0][0].handle)
            if status == self._cuda.CUresult.CUDA_ERROR_NOT_READY:
                return
            self._check((status,), "asking how far the work is")
            self._in_use.popleft()

    def release_all(self) -> None:
        """Release all that was given back, after all work."""
        self._free_unheld()
        self._given_back.clear()
        self._in_use.clear()

    def close(self) -> list[tuple[Any, ...]]:
        """Release all borrowed memory, after all work, and free what is held no more; returns the driver's answers. What is
        still held is left to the process, since it may still be read."""
        held = self.held()
        if held:
            _log.warning(
                "%s: %d allocations stay, because other libraries still have arrays over them", self._device.name, len(held)
            )
        answers = [self._cuda.cuMemFree(base) for base in self._freed - held]
        self._freed.clear()
        self._given_back.clear()
        self._in_use.clear()
        return answers

    def _require_own(self, memory: BorrowedMemory) -> None:
        """Raises DeviceError unless the first and the last byte are memory of this GPU."""
        cuda, name = self._cuda, self._device.name
        what = f"{memory.name or 'memory'}: {memory.nbytes} bytes at {memory.pointer:#x}"
        for address in (memory.pointer, memory.pointer + memory.nbytes - 1):
            status, type = cuda.cuPointerGetAttribute(cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
            if status == cuda.CUresult.CUDA_ERROR_INVALID_VALUE:
                raise DeviceError(f"{what} are not memory of a GPU (byte {address:#x} is not); {name} cannot use them")
            if int(self._check((status, type), f"asking where {what} are")) != int(cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE):
                raise DeviceError(f"{what} are memory of the host; {name} needs its own")
            answer = cuda.cuPointerGetAttribute(cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
            ordinal = int(self._check(answer, f"asking where {what} are"))
            if ordinal != self._device.ordinal:
                raise DeviceError(f"{what} are on cuda:{ordinal}; must be on {name}")

    def _free_unheld(self) -> None:
        self._count()
        for base in [base for base in self._freed if not self._holds[base]]:
            self._freed.remove(base)
            self._check(self._cuda.cuMemFree(base), "freeing memory")

    def _count(self) -> None:
        while self._left:
            self._holds[self._left.popleft()] -= 1
