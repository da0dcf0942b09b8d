"""The memory that a launch may touch: its allocations, what of them is written, and where an address lies."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

_NEAR = 1 << 24
"""Bytes. What is farther from all memory that is known has nothing to do with it."""


@dataclass
class Allocation:
    """Memory that a launch may touch. `shadow`, one byte a byte, is zero where nobody wrote yet; None if all is written.
    `constant`: no launch before writes it, so a dependent one may read it before it waits. `settled`: nor this one until
    it has waited. `stands_for` is the address
    that its owner knows it by, where a launch works on a copy."""

    base: int
    size: int
    name: str
    read_only: bool = False
    shadow: ctypes.Array[ctypes.c_uint8] | None = None
    stands_for: int | None = None
    constant: bool = False
    settled: bool = False

    def distance(self, address: int) -> int:
        """Bytes from here to an address; 0 for one inside."""
        return max(self.base - address, address - (self.base + self.size - 1), 0)


@dataclass
class MemoryMap:
    """The live allocations by base address. It outlives a launch, so what one kernel initialises the next may read."""

    allocations: dict[int, Allocation] = field(default_factory=dict)

    def add(
        self,
        base: int,
        size: int,
        name: str,
        *,
        initialised: bool = True,
        read_only: bool = False,
        stands_for: int | None = None,
        constant: bool = False,
        settled: bool = False,
    ) -> None:
        """Register `size` bytes at `base`; with `initialised` false, reads of bytes that no kernel wrote are findings."""
        shadow = None if initialised else (ctypes.c_uint8 * size)()
        self.allocations[base] = Allocation(base, size, name, read_only, shadow, stands_for, constant, settled)

    def remove(self, base: int) -> None:
        """Forget the allocation at `base`."""
        self.allocations.pop(base, None)

    def part(
        self, start: int, size: int, name: str, *, read_only: bool = False, constant: bool = False, settled: bool = False
    ) -> Allocation | None:
        """`size` bytes of an allocation as one of their own, which may be less free to use; None where none holds them all."""
        for a in self.allocations.values():
            if a.base <= start and start + size <= a.base + a.size:
                shadow = None if a.shadow is None else (ctypes.c_uint8 * size).from_buffer(a.shadow, start - a.base)
                name = f"{a.name} as {name}"
                return Allocation(start, size, name, a.read_only or read_only, shadow, constant=constant, settled=settled)
        return None

    def mark_written(self, base: int, offset: int = 0, size: int | None = None) -> None:
        """Say that the host wrote these bytes of the allocation at `base`."""
        allocation = self.allocations[base]
        if allocation.shadow is not None:
            end = allocation.size if size is None else offset + size
            ctypes.memset(ctypes.addressof(allocation.shadow) + offset, 1, end - offset)

    def nearest(self, address: int) -> str:
        """Where an address lies, in words."""
        a = self._nearest(address)
        if a is None:
            return "in no allocation"
        if a.base <= address < a.base + a.size:
            return f"byte {address - a.base} of {a.name}, which has {a.size}"
        if address < a.base:
            return f"{a.base - address} bytes before the start of {a.name} ({a.size} bytes)"
        return f"{address - (a.base + a.size)} bytes past the end of {a.name} ({a.size} bytes)"

    def original(self, address: int) -> int:
        """The address as the owner of what lies there, or next to it, knows it."""
        a = self._nearest(address)
        return address if a is None or a.stands_for is None else address - a.base + a.stands_for

    def _nearest(self, address: int) -> Allocation | None:
        nearest = min(self.allocations.values(), key=lambda a: a.distance(address), default=None)
        return None if nearest is None or nearest.distance(address) > _NEAR else nearest
