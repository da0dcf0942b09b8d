"""The memory a device has given out: which pointers are its own, and which ranges they cover. No memory is touched here."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from executor.base.errors import DeviceError
from executor.device.loans import Loans

if TYPE_CHECKING:
    from executor.device.protocol import Device

ALIGNMENT = 256
"""Bytes. What cuMemAlloc guarantees; the emulator and the weight pool keep to it."""


class Allocations:
    """Live allocations by base address, each with what its device keeps alive for it; `loans` is what belongs to others."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._sizes: dict[int, int] = {}
        self._owners: dict[int, Any] = {}
        self._bases: list[int] = []
        self._serials: dict[int, int] = {}
        self._made = 0
        self.loans = Loans()
        self.total = 0

    def add(self, base: int, nbytes: int, owner: Any = None) -> None:
        self._sizes[base] = nbytes
        self._owners[base] = owner
        self._serials[base] = self._made
        self._made += 1
        insort(self._bases, base)
        self.total += nbytes

    def remove(self, base: int) -> Any:
        """Forget an allocation and return its owner. Raises DeviceError if the pointer is not the start of a live one."""
        if base not in self._sizes:
            raise DeviceError(
                f"{self._device}: cannot free {base:#x}, which is not allocated (freed already, or of another device)"
            )
        self.total -= self._sizes.pop(base)
        self._bases.remove(base)
        del self._serials[base]
        return self._owners.pop(base)

    def ticket(self, base: int) -> int | None:
        """Which of all allocations the live one that starts here is; None if none does."""
        return self._serials.get(base)

    def is_still(self, base: int, ticket: int) -> bool:
        """Whether the allocation of this ticket is live."""
        return self._serials.get(base) == ticket

    def check(self, pointer: int, nbytes: int, doing: str) -> tuple[int, Any]:
        """Base and owner of the live allocation that holds the whole range, or start of a loan and the loan; DeviceError if
        none does."""
        base = self._around(pointer, nbytes)
        if base is not None:
            return base, self._owners[base]
        if loan := self.loans.find(pointer, nbytes):
            return loan.pointer, loan
        raise DeviceError(f"{self._device}: cannot {doing} {nbytes} bytes at {pointer:#x}, which no live allocation holds")

    def owns(self, pointer: int, nbytes: int) -> bool:
        """Whether an allocation, not a loan, holds the whole range."""
        return self._around(pointer, nbytes) is not None

    def _around(self, pointer: int, nbytes: int) -> int | None:
        at = bisect_right(self._bases, pointer) - 1
        base = self._bases[at] if at >= 0 else 0
        return base if at >= 0 and pointer + nbytes <= base + self._sizes[base] else None

    def bases(self) -> list[int]:
        return list(self._bases)

    def mark(self) -> int:
        """A moment in the order of allocations, for `since`."""
        return self._made

    def since(self, mark: int) -> list[int]:
        """Base addresses of what was added since that moment and is still there."""
        return [base for base, serial in self._serials.items() if serial >= mark]


@contextmanager
def undone_on_error(device: Device) -> Iterator[None]:
    """If the block is left by an exception of any kind (Ctrl-C too), all that was allocated in it is freed: a model is on a
    device whole or not at all. The buffers made in the block must not be used then."""
    mark = device.mark()
    try:
        yield
    except BaseException:
        if not device.closed:
            device.free_since(mark)
        raise
