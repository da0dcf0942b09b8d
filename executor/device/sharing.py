"""What a GPU shares with other libraries in the process: the order between its stream and theirs, loans that ended while work
may still use them, allocations that others hold. Belongs to cuda.py."""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import Any

from executor.base.errors import DeviceError
from executor.device.cuda_event import Check, CudaEvent, EventPool
from executor.device.loans import Loan

_log = logging.getLogger(__name__)


class Hold:
    """Keeps the allocation at `base` from going while it lives. It may die on any thread, so it only leaves a note."""

    __slots__ = ("_left", "base")

    def __init__(self, base: int, left: deque[int]) -> None:
        self.base = base
        self._left = left

    def __del__(self) -> None:
        self._left.append(self.base)


class Sharing:
    """`cuda` is cuda.bindings.driver; the device's context must be the current one, but for `end`."""

    def __init__(self, cuda: Any, events: EventPool, check: Check, name: str) -> None:
        self._cuda = cuda
        self._events = events
        self._check = check
        self._name = name
        self._ended: deque[Loan] = deque()
        self._in_use: deque[tuple[CudaEvent, list[Loan]]] = deque()  # until the stream has passed the event
        self._holds: Counter[int] = Counter()
        self._left: deque[int] = deque()  # holds that died and have not been counted yet
        self._freed: set[int] = set()  # bases that are held still

    def order(self, before: Any, after: Any) -> None:
        """What stream `after` starts from now on waits for what stream `before` has started. The host does not wait."""
        event = self._events.take()  # back in the pool at once: a wait keeps to the record before it, whatever comes later
        self._check(self._cuda.cuEventRecord(event.handle, before), f"marking a stream for {self._name}")
        self._check(self._cuda.cuStreamWaitEvent(after, event.handle, 0), f"ordering streams of {self._name}")

    def check_place(self, loan: Loan, ordinal: int) -> None:
        """Raises DeviceError unless the first and the last byte are memory of this GPU."""
        attribute = self._cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        kind = self._cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        device_memory = self._cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
        what = f"{loan.name or 'memory'}: {loan.nbytes} bytes at {loan.pointer:#x}"
        for address in (loan.pointer, loan.pointer + loan.nbytes - 1):
            status, type = self._cuda.cuPointerGetAttribute(kind, address)
            if status == self._cuda.CUresult.CUDA_ERROR_INVALID_VALUE:
                raise DeviceError(f"{what} are not memory of a GPU (byte {address:#x} is not); {self._name} cannot use them")
            if int(self._check((status, type), f"asking where {what} are")) != int(device_memory):
                raise DeviceError(f"{what} are memory of the host; {self._name} needs its own")
            found = self._check(self._cuda.cuPointerGetAttribute(attribute, address), f"asking where {what} are")
            if int(found) != ordinal:
                raise DeviceError(f"{what} are on cuda:{int(found)}; must be on {self._name}")

    def end(self, loan: Loan) -> None:
        """The loan is used by no work that starts from now on."""
        self._ended.append(loan)

    def hold(self, base: int) -> Hold:
        self._count()
        self._holds[base] += 1
        return Hold(base, self._left)

    def keeps(self, base: int) -> bool:
        """Whether somebody holds an allocation that is being freed; then `settle` frees it when nobody does any more."""
        self._count()
        if not self._holds[base]:
            return False
        self._freed.add(base)
        return True

    def held(self) -> set[int]:
        """Bases that somebody holds, freed or not."""
        self._count()
        return {base for base, count in self._holds.items() if count}

    def settle(self, stream: Any) -> None:
        """Let go of what ended before and is not used any more. Costs nothing where nothing is shared."""
        self._free_what_nobody_holds()
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        if ended:
            event = self._events.take()
            self._check(self._cuda.cuEventRecord(event.handle, stream), f"recording an event on {self._name}")
            self._in_use.append((event, ended))
        while self._in_use:
            (status,) = self._cuda.cuEventQuery(self._in_use[0][0].handle)
            if status == self._cuda.CUresult.CUDA_ERROR_NOT_READY:
                return
            self._check((status,), f"asking how far {self._name} is")
            self._in_use.popleft()

    def settle_idle(self) -> None:
        """Let go of all that ended before, after all work."""
        self._free_what_nobody_holds()
        self._ended.clear()
        self._in_use.clear()

    def close(self) -> list[tuple[Any, ...]]:
        """Let go of all loans, after all work, and free what is held no more; returns the driver's answers. What is held
        still is left to the process: somebody may read it."""
        held = self.held()
        if held:
            _log.warning("%s: %d allocations stay, because other libraries still have arrays over them", self._name, len(held))
        answers = [self._cuda.cuMemFree(base) for base in self._freed - held]
        self._freed.clear()
        self._ended.clear()
        self._in_use.clear()
        return answers

    def _free_what_nobody_holds(self) -> None:
        self._count()
        for base in [base for base in self._freed if not self._holds[base]]:
            self._freed.remove(base)
            self._check(self._cuda.cuMemFree(base), f"freeing memory on {self._name}")

    def _count(self) -> None:
        while self._left:
            self._holds[self._left.popleft()] -= 1
