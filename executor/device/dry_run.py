"""Memory of a dry run: a model is laid out in it to see what it needs, on any machine and without reading its weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from executor.device.allocations import ALIGNMENT
from executor.device.gathers import PEERS, Gathers
from executor.device.host_memory import HostMemory
from executor.device.protocol import ReadInto


class DryRunMemory(HostMemory):
    """Addresses with nothing behind them but what the host puts there: an allocation takes room when it is first written, and
    read-only memory is read when it is first looked at."""

    sharing = None

    def __init__(self, ranks: int = 1, gathers: Gathers = PEERS) -> None:
        """ranks: it is the memory of one of so many devices, which gather by `gathers`."""
        super().__init__("a dry run")
        self.ranks = ranks
        self.gathers = gathers
        self._next = ALIGNMENT
        self._contents: dict[int, NDArray[np.uint8]] = {}  # of what was written or looked at, by start

    def peers(self, pointer: int) -> tuple[int, ...]:
        return (pointer,) * self.ranks

    def alloc(self, nbytes: int, name: str = "") -> int:
        return self._add(nbytes, None)

    def alloc_read_only(self, nbytes: int, read: ReadInto, name: str = "") -> int:
        return self._add(nbytes, read)

    def written(self, pointer: int) -> bool:
        """Whether the host has put anything into the allocation that starts here."""
        return pointer in self._contents

    def released(self, base: int) -> None:
        self._contents.pop(base, None)

    def view(self, pointer: int, nbytes: int, doing: str, *, write: bool = False) -> NDArray[np.uint8]:
        base, (size, read) = self.allocations.check(pointer, nbytes, doing)
        if base not in self._contents:
            self._contents[base] = np.zeros(size, np.uint8)
            if read is not None:
                read(0, self._contents[base])
        return self._contents[base][pointer - base :][:nbytes]

    def _add(self, nbytes: int, read: ReadInto | None) -> int:
        base = self._next
        self._next += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.allocations.add(base, nbytes, (nbytes, read))
        return base
