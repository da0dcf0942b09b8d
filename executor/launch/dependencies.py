"""Which launches must wait for which others, from the memory that each reads and writes. Knows no device."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple


class AccessedRange(NamedTuple):
    """Bytes `start` up to `end` of a piece of memory, read or (also) written."""

    memory: Hashable
    start: int
    end: int
    writes: bool


class _Seen(NamedTuple):
    start: int
    end: int
    launch: int


class _History:
    """Who last read and wrote the parts of one piece of memory."""

    def __init__(self) -> None:
        self._reads: list[_Seen] = []
        self._writes: list[_Seen] = []

    def conflicts(self, access: AccessedRange) -> set[int]:
        """The launches that touch the same bytes, where one of the two writes."""
        seen = self._writes + self._reads if access.writes else self._writes
        return {one.launch for one in seen if one.start < access.end and access.start < one.end}

    def add(self, access: AccessedRange, launch: int) -> None:
        new = _Seen(access.start, access.end, launch)
        if not access.writes:
            self._reads.append(new)
            return
        # Whoever comes after has to wait for this write, which has waited for those that it covers.
        self._reads = [one for one in self._reads if not (new.start <= one.start and one.end <= new.end)]
        self._writes = [one for one in self._writes if not (new.start <= one.start and one.end <= new.end)] + [new]


def dependencies(launches: Sequence[Sequence[AccessedRange]]) -> list[tuple[int, ...]]:
    """For each launch the numbers of earlier ones that it must wait for: those that write what it touches or read what it
    writes, less those that another of them waits for already. Every order that respects them gives the bits of running the
    launches one after the other."""
    histories: dict[Hashable, _History] = {}
    ancestors: list[int] = []  # of each launch, a bit for each launch before it that has then ended
    waits: list[tuple[int, ...]] = []
    for number, accesses in enumerate(launches):
        before: set[int] = set()
        for access in accesses:
            before |= histories.setdefault(access.memory, _History()).conflicts(access)
        needed, covered = [], 0
        for one in sorted(before, reverse=True):
            if not covered >> one & 1:
                needed.append(one)
                covered |= ancestors[one] | 1 << one
        waits.append(tuple(reversed(needed)))
        ancestors.append(covered)
        for access in accesses:
            histories[access.memory].add(access, number)
    return waits
