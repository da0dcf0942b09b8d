"""What orders threads of blocks that take turns: as ordering.py, but a block goes on after others have run, and there may be
hundreds of barriers of the whole grid. So the past is summed up: for each block the last moments that are known to be over, a
vector clock, which a flag carries from fence to fence.

Epochs tell the blocks apart (`SPAN` of each, runtime/shadow.py). Each has shared memory of its own, so an address is one flag.
What a thread of a block takes over all of its threads have after its next barrier; that much the compiled checks know by
themselves (`Slot.KNOWN`), and only for the rest they come here."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

from ptxgen.emulator.ordering import Moment, Order
from ptxgen.emulator.runtime.shadow import OLDEST_EPOCH, SPAN_BITS
from ptxgen.isa.effects import MemoryScope, Ordering

Known = Mapping[int, tuple[Moment, ...]]
"""Blocks, and of each the last moments that are over, none of which comes before another; with one is over what precedes it."""
Words = ctypes.Array[ctypes.c_uint32]


def block_of(epoch: int) -> int:
    """The block whose epoch this is."""
    return epoch - OLDEST_EPOCH >> SPAN_BITS


def joined(a: Known, b: Known) -> Known:
    """What is over where both are."""
    more = {}
    for block, moments in b.items():
        mine = a.get(block, ())
        if mine is not moments and (both := _last(mine, moments)) != mine:
            more[block] = both
    return {**a, **more} if more else a


def _last(a: tuple[Moment, ...], b: tuple[Moment, ...]) -> tuple[Moment, ...]:
    """The moments of two such lists that come before no other of them."""
    if len(a) == len(b) == 1 and a[0].epoch != b[0].epoch:  # as mostly
        return a if a[0].epoch > b[0].epoch else b
    kept = [moment for moment in a if not any(moment != other and moment.precedes(other) for other in b)]
    return (*kept, *(moment for moment in b if not any(moment.precedes(other) for other in a)))


class Step(NamedTuple):
    """What was over for a thread at a moment, after what it took over then or when it fenced that, for threads of a scope."""

    at: Moment
    known: Known
    scope: MemoryScope = MemoryScope.DEVICE


def _latest(steps: Iterable[Step]) -> list[Step]:
    """The steps of a block whose knowledge no other of them has. A later one has that of those before it."""
    given = list(steps)
    return [
        step
        for step in given
        if not any(step.at != other.at and step.at.precedes(other.at) and step.scope <= other.scope for other in given)
    ]


@dataclass
class Flag:
    """What was published with a place in memory since a plain store to it: for all threads of the device, and by each block for
    its own threads."""

    device: Known = field(default_factory=dict)
    own: dict[int, list[Step]] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What a thread read from a flag, which it takes over at a fence of the device, or of the block."""

    at: Moment
    device: Known
    own: Known


@dataclass
class Block:
    """A block up to its epoch: what all its threads have taken over, what some have in this epoch, what they have read, their
    fences, and their releases by address, which are fences for later accesses to that place alone (PTX ISA 8.8, release
    pattern). Of the last three the latest of earlier epochs are here, too."""

    epoch: int = 0
    known: Known = field(default_factory=dict)
    taken: list[Step] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    fences: list[Step] = field(default_factory=list)
    releases: dict[int, list[Step]] = field(default_factory=dict)

    def reach(self, epoch: int) -> None:
        """Go on to an epoch: what its threads did in those before is over for all of them."""
        if epoch == self.epoch:
            return
        self.epoch = epoch
        self.known = self._over(self.taken)
        self.taken, self.fences = [], _latest(self.fences)
        if len(self.seen) > 1:
            device, own = (reduce(joined, parts) for parts in zip(*((s.device, s.own) for s in self.seen), strict=True))
            self.seen = [Seen(self.seen[-1].at, device, own)]

    def over(self, at: Moment) -> Known:
        """What a thread has taken over by a moment."""
        return self._over(step for step in self.taken if step.at.precedes(at))

    def _over(self, steps: Iterable[Step]) -> Known:
        latest = [step.known for step in _latest(steps)]
        return reduce(joined, latest) if latest else self.known


class TogetherOrder(Order):
    """The order of a launch of so many blocks. `known` and `taken` are what `Slot.KNOWN` and `Slot.TAKEN` are of each block."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.known: list[Words] = [(ctypes.c_uint32 * blocks)() for _ in range(blocks)]
        self.taken: list[Words] = [(ctypes.c_uint32 * blocks)() for _ in range(blocks)]
        self.flags: dict[int, Flag] = {}
        self.blocks = [Block() for _ in range(blocks)]
        self.number = 0

    def enter(self, first: int, epoch: int) -> None:
        self.number = block_of(first)
        self.blocks[self.number].reach(epoch)

    def fence(self, at: Moment, scope: MemoryScope) -> None:
        for seen in self.blocks[self.number].seen:
            if seen.at.precedes(at):
                self._take(at, seen, scope)
        self.blocks[self.number].fences.append(self._fenced(at, scope))

    def access(self, at: Moment, address: int, ordering: Ordering, *, reads: bool, writes: bool) -> None:
        block, flag = self.blocks[self.number], self.flags.get(address)
        if reads and flag is not None:
            far = ordering.scope is MemoryScope.DEVICE
            mine = (s.known for s in flag.own.get(self.number, ()) if not far or s.scope is not MemoryScope.DEVICE)
            seen = Seen(at, flag.device if far else {}, reduce(joined, mine, {}))
            if ordering.acquires:
                self._take(at, seen, ordering.scope)
            else:
                block.seen.append(seen)
        if not writes:
            return
        if ordering.releases:
            block.releases[address] = _latest([*block.releases.get(address, ()), self._fenced(at, ordering.scope)])
        if flag is None or not reads:
            flag = self.flags[address] = Flag()
        before = (*block.fences, *block.releases.get(address, ()))
        fences = _latest(step for step in before if step.at.precedes(at))
        if not fences:
            return
        fences = [fence._replace(scope=min(fence.scope, ordering.scope)) for fence in fences]
        flag.own[self.number] = _latest([*flag.own.get(self.number, ()), *fences])
        for fence in fences:
            if fence.scope is MemoryScope.DEVICE:
                flag.device = joined(flag.device, fence.known)

    def orders(self, other: Moment, me: Moment) -> bool:
        moments = self.blocks[self.number].over(me).get(block_of(other.epoch), ())
        return any(other.precedes(moment) for moment in moments)

    def _fenced(self, at: Moment, scope: MemoryScope) -> Step:
        return Step(at, joined(self.blocks[self.number].over(at), {self.number: (at,)}), scope)

    def _take(self, at: Moment, seen: Seen, scope: MemoryScope) -> None:
        """A thread takes over what it read, as far as the scope of its fence goes."""
        block, taken = self.blocks[self.number], self.taken[self.number]
        before = block.over(at)
        known = joined(before, seen.own)
        if scope is MemoryScope.DEVICE:
            known = joined(known, seen.device)
        if known is before:
            return
        block.taken.append(Step(at, known))
        for number, moments in known.items():
            if moments is not before.get(number):
                taken[number] = max(taken[number], *(moment.epoch - 1 for moment in moments))
