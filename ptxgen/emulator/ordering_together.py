"""What orders threads of blocks that take turns: as ordering.py, but a block goes on after others have run, and there may be
hundreds of barriers of the whole grid. So the past is summed up: for each block the last moments that are known to be over, a
vector clock, which a flag carries from fence to fence.

The blocks may be of several devices. Then what is published for a device is taken over by its own threads alone, and what is
published for the system by those that read and fence for the system. All that a device has done before the launches is one more
block, which is over for all blocks of that device, and for others as soon as they take it over.

Epochs tell the blocks apart (`SPAN` of each, runtime/shadow.py). Each has shared memory of its own, so an address is one flag.
What a thread of a block takes over all of its threads have after its next barrier; that much the compiled checks know by
themselves (`ContextWord.KNOWN`), and only for the rest they come here."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple

from ptxgen.emulator.ordering import Moment, Order
from ptxgen.emulator.runtime.shadow import OLDEST_EPOCH, SPAN, SPAN_BITS
from ptxgen.isa.effects import MemoryScope, Ordering
from ptxgen.target import WARP_SIZE


class Over(NamedTuple):
    """What is over of a block: all before an epoch, and in it what precedes one of these moments, one a thread."""

    epoch: int
    moments: Mapping[int, Moment]

    def holds(self, other: Moment) -> bool:
        """Whether a moment of the block is over."""
        if other.epoch != self.epoch:
            return other.epoch < self.epoch
        return any(other.precedes(moment) for moment in self.moments.values())


Known = Mapping[int, Over]
"""What is over, by block."""
NOTHING: Known = MappingProxyType({})
Words = ctypes.Array[ctypes.c_uint32]


def block_of(epoch: int) -> int:
    """The block whose epoch this is."""
    return epoch - OLDEST_EPOCH >> SPAN_BITS


def joined(a: Known, b: Known) -> Known:
    """What is over where both are."""
    if a is b or not b:
        return a
    if not a:
        return b
    more = {}
    for block, theirs in b.items():
        mine = a.get(block)
        if mine is None or theirs.epoch > mine.epoch:
            more[block] = theirs
        elif mine is not theirs and theirs.epoch == mine.epoch:
            later = {t: at for t, at in theirs.moments.items() if t not in mine.moments or mine.moments[t].serial < at.serial}
            if later:
                more[block] = Over(mine.epoch, {**mine.moments, **later})
    return {**a, **more} if more else a


class KnowledgeStep(NamedTuple):
    """What is over for a thread from a moment on, or for whom a fence of it serves: threads of the scope."""

    at: Moment
    known: Known
    scope: MemoryScope = MemoryScope.SYSTEM


def _latest(steps: Iterable[KnowledgeStep]) -> list[KnowledgeStep]:
    """The steps of a block that matter: what is over at one is over at a later one."""
    given = list(steps)
    return [
        step
        for step in given
        if not any(step.at != other.at and step.at.precedes(other.at) and step.scope <= other.scope for other in given)
    ]


@dataclass
class SharedFlag:
    """What was published with a place in memory since a plain store to it: for all threads of all devices, by each device for
    its own threads, and by each block for its own."""

    system: Known = field(default_factory=dict)
    devices: dict[int, Known] = field(default_factory=dict)
    own: dict[int, list[KnowledgeStep]] = field(default_factory=dict)


class Read(NamedTuple):
    """What a thread took from flags, by who published it for whom: what it takes over at a fence of the block, of the device,
    of the system, each with those before it."""

    own: Known = NOTHING
    device: Known = NOTHING
    system: Known = NOTHING

    def within(self, scope: MemoryScope) -> Known:
        """What a fence of that scope takes over."""
        return reduce(joined, self[:scope])

    def with_(self, other: Read) -> Read:
        """Both."""
        return Read(*(joined(a, b) for a, b in zip(self, other, strict=True)))


class Seen(NamedTuple):
    """What a thread read from a flag, and when."""

    at: Moment
    read: Read


@dataclass
class BlockHistory:
    """A block up to its epoch: what its threads have taken over, what they have read by place, and their fences by scope. All
    of it in the earlier epochs, which is over for all its threads, and in this one by warp, since only within a warp one thread
    may come before another. Releases are fences for later accesses to the same place alone (PTX ISA 8.8, release pattern)."""

    epoch: int = 0
    known: Known = field(default_factory=dict)
    read: Read = field(default_factory=Read)
    fenced: dict[MemoryScope, Known] = field(default_factory=dict)
    taken: dict[int, list[KnowledgeStep]] = field(default_factory=dict)
    seen: dict[int, dict[tuple[int, int], Seen]] = field(default_factory=dict)
    fences: dict[int, list[KnowledgeStep]] = field(default_factory=dict)
    releases: dict[int, list[KnowledgeStep]] = field(default_factory=dict)

    def reach(self, epoch: int) -> None:
        """Go on to an epoch."""
        if epoch == self.epoch:
            return
        self.epoch = epoch
        for step in (step for steps in self.taken.values() for step in steps):
            self.known = joined(self.known, step.known)
        for seen in (seen for places in self.seen.values() for seen in places.values()):
            self.read = self.read.with_(seen.read)
        new: dict[MemoryScope, Known] = {}
        for step in (step for steps in self.fences.values() for step in steps):
            new[step.scope] = joined(new.get(step.scope, {}), step.known)
        self.fenced |= new  # which hold what was over at those before
        self.taken, self.seen, self.fences = {}, {}, {}

    def over(self, at: Moment) -> Known:
        """What a thread has taken over by a moment."""
        steps = self.taken.get(at.thread // WARP_SIZE)
        if not steps:
            return self.known
        latest = [step.known for step in _latest(step for step in steps if step.at.precedes(at))]
        return reduce(joined, latest) if latest else self.known

    def published(self, at: Moment, address: int) -> list[KnowledgeStep]:
        """The fences that an access makes known."""
        near = (*self.fences.get(at.thread // WARP_SIZE, ()), *self.releases.get(address, ()))
        steps = _latest(step for step in near if step.at.precedes(at))
        scope = max((step.scope for step in steps), default=MemoryScope.NONE)
        return [*steps, *(KnowledgeStep(at, known, wider) for wider, known in self.fenced.items() if wider > scope)]


class TogetherOrder(Order):
    """The order of launches of so many blocks on each of `devices`. `known` and `taken` are what `ContextWord.KNOWN` and
    `ContextWord.TAKEN` are of each block. With several devices one more block of each, after all others, is what was before
    the launches."""

    def __init__(self, devices: Sequence[int]) -> None:
        several = len(devices) > 1
        super().__init__(MemoryScope.SYSTEM if several else MemoryScope.DEVICE)
        self.devices = [device for device, count in enumerate(devices) for _ in range(count)]
        blocks = len(self.devices)
        words = ctypes.c_uint32 * (blocks + len(devices) if several else blocks)
        self.known: list[Words] = [words() for _ in range(blocks)]
        self.taken: list[Words] = [words() for _ in range(blocks)]
        self.flags: dict[int, SharedFlag] = {}
        self.blocks = [BlockHistory() for _ in range(blocks)]
        for block, device, known in zip(self.blocks, self.devices, self.known, strict=True) if several else ():
            before = OLDEST_EPOCH + (blocks + device) * SPAN
            block.known, known[blocks + device] = {blocks + device: Over(before + 1, {})}, before
        self.number = 0
        self._last: tuple[Known, Known, Known] = ({}, {}, {})

    def enter(self, first: int, epoch: int) -> None:
        self.number = block_of(first)
        self.blocks[self.number].reach(epoch)

    def end(self, block: int, others: Iterable[int]) -> None:
        """All that these other blocks do comes before what a block does from now on."""
        over = {other: OLDEST_EPOCH + (other + 1) * SPAN for other in others}
        state, known = self.blocks[block], self.known[block]
        state.known = joined(state.known, {other: Over(epoch, {}) for other, epoch in over.items()})
        for other, epoch in over.items():
            known[other] = max(known[other], epoch - 1)

    def fence(self, at: Moment, scope: MemoryScope) -> None:
        block, warp = self.blocks[self.number], at.thread // WARP_SIZE
        for seen in (Seen(at, block.read), *block.seen.get(warp, {}).values()):
            if seen.at.precedes(at):
                self._take(at, seen.read, scope)
        block.fences.setdefault(warp, []).append(self._fenced(at, scope))

    def access(self, at: Moment, address: int, ordering: Ordering, *, reads: bool, writes: bool) -> None:
        block, flag = self.blocks[self.number], self.flags.get(address)
        if reads and flag is not None:
            read = self._published(flag, ordering.scope)
            if ordering.acquires:
                self._take(at, read, ordering.scope)
            else:
                places = block.seen.setdefault(at.thread // WARP_SIZE, {})
                before = places.get((at.thread, address))
                places[at.thread, address] = Seen(at, read if before is None else before.read.with_(read))
        if not writes:
            return
        if ordering.releases:
            block.releases[address] = _latest([*block.releases.get(address, ()), self._fenced(at, ordering.scope)])
        if flag is None or not reads:
            flag = self.flags[address] = SharedFlag()
        steps = [step._replace(scope=min(step.scope, ordering.scope)) for step in block.published(at, address)]
        flag.own[self.number] = _latest([*flag.own.get(self.number, ()), *steps])
        device = self.devices[self.number]
        for step in steps:
            if step.scope >= MemoryScope.DEVICE:
                flag.devices[device] = joined(flag.devices.get(device, {}), step.known)
            if step.scope is MemoryScope.SYSTEM:
                flag.system = joined(flag.system, step.known)

    def orders(self, other: Moment, me: Moment) -> bool:
        over = self.blocks[self.number].over(me).get(block_of(other.epoch))
        return over is not None and over.holds(other)

    def _published(self, flag: SharedFlag, scope: MemoryScope) -> Read:
        """What a read of that scope takes from a flag. What this block has published for its device is among the device's."""
        far = scope >= MemoryScope.DEVICE
        own = (s.known for s in flag.own.get(self.number, ()) if not far or s.scope < MemoryScope.DEVICE)
        return Read(
            reduce(joined, own, {}),
            flag.devices.get(self.devices[self.number], {}) if far else {},
            flag.system if scope is MemoryScope.SYSTEM else {},
        )

    def _fenced(self, at: Moment, scope: MemoryScope) -> KnowledgeStep:
        return KnowledgeStep(
            at, joined(self.blocks[self.number].over(at), {self.number: Over(at.epoch, {at.thread: at})}), scope
        )

    def _take(self, at: Moment, taken_from: Read, scope: MemoryScope) -> None:
        """A thread takes over what it read, as far as the scope of its fence goes."""
        block, taken = self.blocks[self.number], self.taken[self.number]
        before = block.over(at)
        read = taken_from.within(scope)
        again = before is self._last[0] and read is self._last[1]  # as another lane
        known = self._last[2] if again else joined(before, read)
        if known is before:
            return
        self._last = before, read, known
        block.taken.setdefault(at.thread // WARP_SIZE, []).append(KnowledgeStep(at, known))
        if not again:
            for number, over in known.items():
                if over is not before.get(number):
                    taken[number] = max(taken[number], over.epoch - 1)
