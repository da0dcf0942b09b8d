"""What orders threads of blocks that take turns: as ordering.py, but a block goes on after others have run, and there may be
hundreds of barriers of the whole grid. So the past is summed up: for each block the last moments that are known to be over, a
vector clock, which a flag carries from fence to fence.

Epochs tell the blocks apart (`SPAN` of each, runtime/shadow.py). Each has shared memory of its own, so an address is one flag.
What a thread of a block takes over all of its threads have after its next barrier; that much the compiled checks know by
themselves (`Slot.KNOWN`), and only for the rest they come here."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    kept = [moment for moment in a if not any(moment != other and moment.precedes(other) for other in b)]
    return (*kept, *(moment for moment in b if not any(moment.precedes(other) for other in a)))


@dataclass
class Flag:
    """What was over where something was published with a place in memory since a plain store to it: for all threads of the
    device, and for those of the same block."""

    device: Known = field(default_factory=dict)
    own: dict[int, Known] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What a thread read from a flag, which it takes over at a fence of the device, or of the block."""

    at: Moment
    device: Known
    own: Known


@dataclass
class Block:
    """A block up to its epoch. What all its threads have taken over, and what some have in this epoch; the same of what was
    read, of fences by their scope, and of those in this epoch."""

    epoch: int = 0
    known: Known = field(default_factory=dict)
    taken: list[tuple[Moment, Known]] = field(default_factory=list)
    read: tuple[Known, Known] = ({}, {})
    seen: list[Seen] = field(default_factory=list)
    fenced: dict[MemoryScope, Known] = field(default_factory=dict)
    fences: list[tuple[Moment, MemoryScope, Known]] = field(default_factory=list)

    def reach(self, epoch: int) -> None:
        """Go on to an epoch: what its threads did in the one before is over for all of them."""
        if epoch == self.epoch:
            return
        self.epoch = epoch
        for _, known in self.taken:
            self.known = joined(self.known, known)
        for seen in self.seen:
            self.read = joined(self.read[0], seen.device), joined(self.read[1], seen.own)
        for _, scope, known in self.fences:
            self.fenced[scope] = joined(self.fenced.get(scope, {}), known)
        self.taken, self.seen, self.fences = [], [], []

    def over(self, at: Moment) -> Known:
        """What a thread has taken over by a moment."""
        known = self.known
        for moment, taken in self.taken:
            if moment.precedes(at):
                known = joined(known, taken)
        return known


class TogetherOrder(Order):
    """The order of a launch of so many blocks. `known` and `taken` are what `Slot.KNOWN` and `Slot.TAKEN` are for each block."""

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
        block = self.blocks[self.number]
        for seen in [Seen(at, *block.read), *block.seen]:
            if seen.at.precedes(at):
                self._take(at, seen, scope)
        self._add_fence(at, scope)

    def access(self, at: Moment, address: int, ordering: Ordering, *, reads: bool, writes: bool) -> None:
        block, flag = self.blocks[self.number], self.flags.get(address)
        if reads and flag is not None:
            own = flag.own.get(self.number, {})
            seen = Seen(at, flag.device if ordering.scope is MemoryScope.DEVICE else {}, own)
            if ordering.acquires:
                self._take(at, seen, ordering.scope)
            else:
                block.seen.append(seen)
        if not writes:
            return
        if ordering.releases:
            self._add_fence(at, ordering.scope)
        if flag is None or not reads:
            flag = self.flags[address] = Flag()
        fenced = [*block.fenced.items(), *((scope, known) for moment, scope, known in block.fences if moment.precedes(at))]
        for scope, known in fenced:
            flag.own[self.number] = joined(flag.own.get(self.number, {}), known)
            if min(scope, ordering.scope) is MemoryScope.DEVICE:
                flag.device = joined(flag.device, known)

    def orders(self, other: Moment, me: Moment) -> bool:
        block, of = self.blocks[self.number], block_of(other.epoch)
        over = [block.known, *(known for moment, known in block.taken if moment.precedes(me))]
        return any(other.precedes(moment) for known in over for moment in known.get(of, ()))

    def _add_fence(self, at: Moment, scope: MemoryScope) -> None:
        block = self.blocks[self.number]
        block.fences.append((at, scope, joined(block.over(at), {self.number: (at,)})))

    def _take(self, at: Moment, seen: Seen, scope: MemoryScope) -> None:
        """A thread takes over what it read, as far as the scope of its fence goes."""
        block, taken = self.blocks[self.number], self.taken[self.number]
        known = joined(seen.own, seen.device) if scope is MemoryScope.DEVICE else seen.own
        if not known or any(known is had and moment.precedes(at) for moment, had in block.taken):
            return
        block.taken.append((at, known))
        for number, moments in known.items():
            if moments is not block.known.get(number):
                taken[number] = max(taken[number], *(moment.epoch - 1 for moment in moments))
