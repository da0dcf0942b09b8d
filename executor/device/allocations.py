"""Which memory a device may use: its own allocations and what it has borrowed. Only addresses; no memory is touched here."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import Any, NamedTuple

from executor.base.errors import DeviceError

ALIGNMENT = 256
"""Bytes. What cuMemAlloc guarantees; the emulator and the weight pool keep to it."""


@dataclass(frozen=True, eq=False)
class BorrowedMemory:
    """`nbytes` at `pointer` that belong to another library; `owner` keeps them alive. No kernel may write them if read_only."""

    pointer: int
    nbytes: int
    owner: Any
    name: str = ""
    read_only: bool = False

    def overlaps(self, other: BorrowedMemory) -> bool:
        """Whether they have a byte in common."""
        return self.pointer < other.pointer + other.nbytes and other.pointer < self.pointer + self.nbytes


class _Live(NamedTuple):
    nbytes: int
    keeper: Any
    ticket: int


class Allocations:
    """Live allocations by address, each with a `keeper`: what its device keeps alive for it; and borrowed memory, which may
    overlap. Borrowing may end on any thread at any time: the garbage collector gives back what no buffer refers to."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._live: dict[int, _Live] = {}
        self._bases: list[int] = []  # sorted
        self._borrowed: dict[int, BorrowedMemory] = {}  # by identity
        self._tickets = 0
        self.total = 0

    def add(self, base: int, nbytes: int, keeper: Any = None) -> None:
        """Count memory as given out."""
        self._live[base] = _Live(nbytes, keeper, self._tickets)
        self._tickets += 1
        insort(self._bases, base)
        self.total += nbytes

    def remove(self, base: int) -> None:
        """Forget an allocation and its keeper. Raises DeviceError if the pointer is not the start of a live one."""
        if base not in self._live:
            raise DeviceError(
                f"{self._device}: cannot free {base:#x}, which is not allocated (freed already, or of another device)"
            )
        self.total -= self._live.pop(base).nbytes
        self._bases.remove(base)

    def ticket(self, base: int) -> int | None:
        """The serial number of the live allocation that starts here; None if none does."""
        return self._live[base].ticket if base in self._live else None

    def check(self, pointer: int, nbytes: int, doing: str) -> tuple[int, Any]:
        """Start and keeper of the allocation that holds the whole range, or start of borrowed memory and that itself.
        DeviceError if neither holds it."""
        if (around := self._around(pointer, nbytes)) is not None:
            return around
        end = pointer + nbytes
        for memory in self.borrowed:
            if memory.pointer <= pointer and end <= memory.pointer + memory.nbytes:
                return memory.pointer, memory
        raise DeviceError(f"{self._device}: cannot {doing} {nbytes} bytes at {pointer:#x}, which no live allocation holds")

    def owns(self, pointer: int, nbytes: int) -> bool:
        """Whether an allocation of the device itself holds the whole range."""
        return self._around(pointer, nbytes) is not None

    def borrow(self, memory: BorrowedMemory) -> None:
        """Count it as usable until it is given back."""
        self._borrowed[id(memory)] = memory

    def give_back(self, memory: BorrowedMemory) -> bool:
        """Whether it was borrowed until now."""
        return self._borrowed.pop(id(memory), None) is not None

    @property
    def borrowed(self) -> list[BorrowedMemory]:
        """What is borrowed at this moment."""
        return list(self._borrowed.values())

    def bases(self) -> list[int]:
        """The start of every allocation."""
        return list(self._bases)

    def mark(self) -> int:
        """A moment in the order of allocations, for `since`."""
        return self._tickets

    def since(self, mark: int) -> list[int]:
        """The starts of what was allocated since that moment and is still live."""
        return [base for base, live in self._live.items() if live.ticket >= mark]

    def _around(self, pointer: int, nbytes: int) -> tuple[int, Any] | None:
        at = bisect_right(self._bases, pointer) - 1
        if at < 0:
            return None
        base = self._bases[at]
        live = self._live[base]
        return (base, live.keeper) if pointer + nbytes <= base + live.nbytes else None
