"""The memory a device has given out: which pointers are its own, and which ranges they cover. No memory is touched here."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any

from executor.errors import DeviceError

ALIGNMENT = 256
"""Bytes. What cuMemAlloc guarantees; the emulator and the weight pool keep to it."""


class Allocations:
    """Live allocations by base address, each with what its device keeps alive for it."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._sizes: dict[int, int] = {}
        self._owners: dict[int, Any] = {}
        self._bases: list[int] = []
        self.total = 0

    def add(self, base: int, nbytes: int, owner: Any = None) -> None:
        self._sizes[base] = nbytes
        self._owners[base] = owner
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
        return self._owners.pop(base)

    def check(self, pointer: int, nbytes: int, doing: str) -> tuple[int, Any]:
        """Base and owner of the live allocation that holds the whole range; DeviceError if none does."""
        at = bisect_right(self._bases, pointer) - 1
        base = self._bases[at] if at >= 0 else 0
        if at < 0 or pointer + nbytes > base + self._sizes[base]:
            raise DeviceError(f"{self._device}: cannot {doing} {nbytes} bytes at {pointer:#x}, which no live allocation holds")
        return base, self._owners[base]

    def bases(self) -> list[int]:
        return list(self._bases)
