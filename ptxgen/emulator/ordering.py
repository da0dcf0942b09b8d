"""What orders threads that no barrier orders: fences, and flags that one thread writes and another reads.

Happens-before of the PTX memory model (PTX ISA 8.8) as far as one run shows it. Who writes a flag with a strong access after a
fence publishes with it all that was ordered before the fence; who reads that flag with a strong access, and then executes a
fence, takes it over. A release or an acquire is such an access and its fence in one. A fence may stand at the other side of a
barrier, and what was taken over is passed on. Only kernels that have fences, acquires or releases come here, when the race
detector (runtime/shadow.py) knows nothing else that orders two accesses. Here blocks run one after the other, any number of
them: nothing of a block but its fences is looked at once the next has begun. Blocks that take turns are ordering_together.py's.
In both a flag holds what was written last, and all that has the epochs of a block is of that block."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from ptxgen.emulator.runtime.shadow import THREAD_MASK, Me, Record
from ptxgen.isa.effects import MemoryScope, Ordering
from ptxgen.target import WARP_SIZE

READS, WRITES, ACQUIRES, RELEASES, FENCE, _SCOPE = 1, 2, 4, 8, 16, 5
"""Bits of an event; the scope stands from bit 5 on."""
ORDERED = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
EVENT = ctypes.CFUNCTYPE(None, *[ctypes.c_uint32] * 7, ctypes.c_void_p)
"""first epoch of the block, epoch, warp, sync count, serial, lanes, flags, addresses of the 32 lanes."""


def event_flags(ordering: Ordering, reads: bool, writes: bool) -> int:
    """How an instruction is told to `EVENT`: the bits above, and the scope."""
    bits = {READS: reads, WRITES: writes, ACQUIRES: ordering.acquires, RELEASES: ordering.releases, FENCE: ordering.fence}
    return sum(bit for bit, holds in bits.items() if holds) | ordering.scope << _SCOPE


@dataclass(frozen=True)
class Moment:
    """How far a thread of some block was."""

    thread: int
    epoch: int
    sync: int
    serial: int

    def precedes(self, other: Moment) -> bool:
        """Whether this comes before a moment of the same block, by a thread's own order or by a barrier."""
        if self.thread == other.thread:
            return self.serial <= other.serial
        return self.epoch < other.epoch or (self.thread // WARP_SIZE == other.thread // WARP_SIZE and self.sync < other.sync)


@dataclass(frozen=True, eq=False)
class Fence:
    """A fence of the block that began with the epoch `first`, and what its thread had taken over by then."""

    at: Moment
    first: int
    scope: MemoryScope
    carries: tuple[Taken, ...]


@dataclass(eq=False)
class Flag:
    """The fences published with a place in memory since a plain store to it, oldest first, and the scopes of those stores."""

    fences: list[Fence] = field(default_factory=list)
    scopes: list[MemoryScope] = field(default_factory=list)
    published: set[tuple[Fence, MemoryScope]] = field(default_factory=set)

    def publish(self, fence: Fence, scope: MemoryScope) -> None:
        """A store of this scope publishes a fence."""
        if (fence, scope) not in self.published:
            self.published.add((fence, scope))
            self.fences.append(fence)
            self.scopes.append(scope)


@dataclass(frozen=True, eq=False)
class Taken:
    """What a thread of the block that began with `first` took over from a flag: the first `count` of its fences."""

    flag: Flag
    count: int
    first: int
    scope: MemoryScope

    def _fits(self, index: int) -> bool:
        fence = self.flag.fences[index]
        return fence.first == self.first or min(fence.scope, self.flag.scopes[index], self.scope) is MemoryScope.DEVICE

    def fences(self) -> Iterator[Fence]:
        """The fences whose scopes hold both threads."""
        return (self.flag.fences[i] for i in range(self.count) if self._fits(i))

    def covers(self, other: Moment) -> bool:
        """Whether a fence taken over comes after that moment of its own block."""
        index = bisect_right(self.flag.fences, other.epoch, hi=self.count, key=lambda fence: fence.first) - 1
        first = self.flag.fences[index].first if index >= 0 else 0
        while index >= 0 and self.flag.fences[index].first == first:
            fence = self.flag.fences[index]
            if other.epoch <= fence.at.epoch and other.precedes(fence.at) and self._fits(index):
                return True
            index -= 1
        return False


class Order(ABC):
    """The fences and flags of one launch, or of several that run together, as the compiled checks ask for them. `widest`: the
    scope that holds all threads there are."""

    def __init__(self, widest: MemoryScope = MemoryScope.DEVICE) -> None:
        self.widest = widest
        self._callbacks = ORDERED(self._ordered), EVENT(self._event)

    def addresses(self) -> tuple[int, int]:
        """What belongs into `ContextWord.ORDERED` and `ContextWord.EVENT`, good for as long as this lives."""
        ordered, event = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._callbacks)
        return ordered, event

    @abstractmethod
    def enter(self, first: int, epoch: int) -> None:
        """What follows is of the block whose first epoch this is, and of this epoch."""

    @abstractmethod
    def fence(self, at: Moment, scope: MemoryScope) -> None:
        """A thread of the running block executes a fence."""

    @abstractmethod
    def access(self, at: Moment, address: int, ordering: Ordering, *, reads: bool, writes: bool) -> None:
        """A thread of the running block makes a strong access."""

    @abstractmethod
    def orders(self, other: Moment, me: Moment) -> bool:
        """Whether an access of any block comes before what a thread of the running block does now."""

    def _event(self, first: int, epoch: int, warp: int, sync: int, serial: int, lanes: int, flags: int, addresses: int) -> None:
        self.enter(first, epoch)
        scope = min(MemoryScope(flags >> _SCOPE), self.widest)
        ordering = Ordering(scope, acquires=bool(flags & ACQUIRES), releases=bool(flags & RELEASES))
        places = (ctypes.c_uint64 * WARP_SIZE).from_address(addresses)
        for lane in range(WARP_SIZE):
            if not lanes >> lane & 1:
                continue
            at = Moment(WARP_SIZE * warp + lane, epoch, sync, serial)
            if flags & FENCE:
                self.fence(at, scope)
            else:
                self.access(at, places[lane], ordering, reads=bool(flags & READS), writes=bool(flags & WRITES))

    def _ordered(self, me: int, other: int) -> int:
        mine = Me.from_address(me)
        self.enter(mine.first, mine.epoch)
        return int(self.orders(_moment(Record.from_address(other)), _moment(mine.record)))


class SerialOrder(Order):
    """Of blocks that run one after the other. `shared` is the address range of the shared memory, which they use in turn."""

    def __init__(self, shared: range) -> None:
        super().__init__()
        self.shared = shared
        self.flags: dict[tuple[int, int], Flag] = {}
        self.first = -1
        self.enter(0, 0)

    def enter(self, first: int, epoch: int) -> None:
        if first == self.first:
            return
        self.first = first
        self.fences: dict[tuple[int, int, int, MemoryScope], Fence] = {}
        self.read: dict[tuple[int, int, int, int], tuple[Moment, Taken]] = {}
        self.taken: dict[tuple[int, int, int, int], tuple[Moment, Taken]] = {}

    def fence(self, at: Moment, scope: MemoryScope) -> None:
        for moment, read in self.read.values():
            if moment.precedes(at):
                self._take(at, Taken(read.flag, read.count, read.first, min(read.scope, scope)))
        self._add_fence(at, scope)

    def access(self, at: Moment, address: int, ordering: Ordering, *, reads: bool, writes: bool) -> None:
        key = (self.first if address in self.shared else 0, address)
        flag = self.flags.get(key)
        if reads and flag is not None:
            taken = Taken(flag, len(flag.fences), self.first, ordering.scope)
            self.read[at.thread, at.epoch, at.sync, id(flag)] = (at, taken)
            if ordering.acquires:
                self._take(at, taken)
        if not writes:
            return
        if ordering.releases:
            self._add_fence(at, ordering.scope)
        if flag is None or not reads:
            flag = self.flags[key] = Flag()
        for fence in self.fences.values():
            if fence.at.precedes(at):
                flag.publish(fence, ordering.scope)

    def orders(self, other: Moment, me: Moment) -> bool:
        work = [taken for at, taken in self.taken.values() if at.precedes(me)]
        seen: set[Fence] = set()
        while work:
            taken = work.pop()
            if taken.covers(other):
                return True
            for fence in taken.fences():
                if fence.carries and fence not in seen:
                    seen.add(fence)
                    work.extend(fence.carries)
        return False

    def _add_fence(self, at: Moment, scope: MemoryScope) -> None:
        carries = tuple(taken for moment, taken in self.taken.values() if moment.precedes(at))
        self.fences[at.thread, at.epoch, at.sync, scope] = Fence(at, self.first, scope, carries)

    def _take(self, at: Moment, taken: Taken) -> None:
        self.taken[at.thread, at.epoch, at.sync, id(taken.flag)] = (at, taken)


def _moment(record: Record) -> Moment:
    return Moment(record.what & THREAD_MASK, record.epoch, record.sync, record.serial)
