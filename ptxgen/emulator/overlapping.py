"""Runs launches of one device that overlap as programmatic dependent launch lets them (PTX ISA 9.7.13.13), in an order that a
seed chooses. A dependent launch does so when all blocks of the one that it depends on have let it or ended; its threads
go on at `griddepcontrol.wait` when that one has ended. A block's turn ends where it waits, and where it lets the next start;
with some seeds also at barriers, and in loops.

Blocks take turns on one thread, as in together.py. To the sanitiser a launch comes after those that have certainly ended when
it starts, whatever has happened in this order, and from its wait on after the one that it waited for and all before that. So
what is touched before the wait races with what launches in flight touch, whichever came first here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from ptxgen.emulator.launch_map import LaunchMap
from ptxgen.emulator.launching import Launch, RunningLaunch, usual_budget
from ptxgen.emulator.layout import ASKED, FINISHED, PAUSED, STUCK, TIMED_OUT, ContextWord
from ptxgen.emulator.memory_map import MemoryMap
from ptxgen.emulator.runtime.schedule import SLEEP_COST, YIELD_COST
from ptxgen.emulator.runtime.shadow import OLDEST_EPOCH, SPAN
from ptxgen.emulator.sanitizer import Finding
from ptxgen.emulator.scratch import Scratch
from ptxgen.emulator.together import MOST_BLOCKS
from ptxgen.emulator.watch import TimeLimit, call
from ptxgen.errors import ArgumentError

_QUANTA = (1, 64, 1 << 12)
"""Backward jumps of a warp in a turn, of which the seed takes one."""
_TURNS = (1, YIELD_COST)
"""What a turn of a block takes from its budget, of which the seed takes one: it ends at the first barrier, or at none."""
_IDLE_TURNS = 1 << 16
"""Turns in which blocks only slept, after which nothing is taken to come any more."""


class Policy(Enum):
    """Which of the blocks that can run has the next turn."""

    NEWEST_FIRST = auto()
    """One of the launch that started last: what comes before a wait is over before launches before it go on."""
    OLDEST_FIRST = auto()
    ANY = auto()
    PRIORITIES = auto()
    """One of the launch of the highest priority; now and then priorities change."""


@dataclass(eq=False)
class _Block:
    """released: it may go on at its wait; waits: it sleeps until then; frees_first: it let the next launch start before."""

    scratch: Scratch
    number: int
    released: bool = False
    waits: bool = False
    ended: bool = False
    frees_first: bool = False

    @property
    def freed(self) -> bool:
        """Whether the next launch may start as far as this block is concerned."""
        return self.ended or self.scratch.context[ContextWord.FREED] != ASKED


@dataclass(eq=False)
class _Flight:
    """A launch under way. over_at_start, over: the launches that have certainly ended when it starts and when it has waited."""

    number: int
    running: RunningLaunch
    after: tuple[int, ...]
    first: int
    blocks: list[_Block] = field(default_factory=list)
    started: bool = False
    over_at_start: frozenset[int] = frozenset()
    over: frozenset[int] = frozenset()

    @property
    def depends_on(self) -> int | None:
        """The launch before whose end it may start."""
        return self.after[0] if self.running.launch.dependent and len(self.after) == 1 else None

    @property
    def ended(self) -> bool:
        """Whether all its blocks have."""
        return self.started and all(block.ended for block in self.blocks)

    @property
    def places(self) -> range:
        """Its blocks among those of all launches."""
        return range(self.first, self.first + len(self.blocks))


def launch_overlapping(
    launches: Sequence[Launch], after: Sequence[tuple[int, ...]], *, seed: int = 0, seconds: float | None = None
) -> list[Finding]:
    """Run launches to their end. `after`: for each the numbers of earlier ones among them that must have ended before; one that
    is `dependent` and has one of these starts as soon as that lets it. The seed chooses the order, and how long a turn is.

    Returns and raises as `Kernel.launch`; ArgumentError for more than MOST_BLOCKS blocks in all, one less for each launch, and
    for launches of which some are sanitised and others not."""
    for launch in launches:
        launch.check(seconds)
    if sum(launch.blocks for launch in launches) + len(launches) > MOST_BLOCKS:
        raise ArgumentError(f"launches that overlap have up to {MOST_BLOCKS} blocks in all, one less for each launch")
    if len({launch.kernel.sanitize for launch in launches}) > 1:
        raise ArgumentError("of launches that overlap all are sanitised or none is")
    running: list[RunningLaunch] = []
    try:
        for number, launch in enumerate(launches):
            budget = usual_budget(sanitize=launch.kernel.sanitize)
            running.append(
                RunningLaunch(
                    launch, launch.blocks, seed=seed, budget=budget, prints=None, turns=True, device=number, overlaps=True
                )
            )
        checks = _checks(running) if launches[0].kernel.sanitize else None
        flights = _Flights(running, after, checks, random.Random(seed))
        limit = TimeLimit(seconds)
        status, flight, scratch = flights.run(limit)
        findings = [] if checks is None else [finding for one in running for finding in one.findings(checks, running)]
        return flight.running.ended(scratch, status, findings, limit)
    finally:
        for one in running:
            one.give_back()


def overlapping_runs(blocks: Sequence[int], seed: int) -> Iterator[int]:
    """How many launches one after another overlap, of a list with so many blocks each: as many as there is room for, but fewer
    in the first run, as the seed says, so that runs part elsewhere with another seed. A larger launch runs alone."""
    room = random.Random(seed).randint(1, MOST_BLOCKS)
    count = taken = 0
    for own in blocks:
        if count and taken + own + 1 > room:
            yield count
            count, taken, room = 0, 0, MOST_BLOCKS
        count, taken = count + 1, taken + own + 1
    if count:
        yield count


class _Flights:
    def __init__(
        self,
        running: Sequence[RunningLaunch],
        after: Sequence[tuple[int, ...]],
        checks: LaunchMap | None,
        chance: random.Random,
    ) -> None:
        self._order = None if checks is None else checks.together
        self._chance = chance
        self._policy = chance.choice(list(Policy))
        self._priorities = [chance.random() for _ in running]
        self.flights: list[_Flight] = []
        first, quantum, turn = 0, chance.choice(_QUANTA), chance.choice(_TURNS)
        for number, (one, edges) in enumerate(zip(running, after, strict=True)):
            flight = _Flight(number, one, edges, first)
            for index, scratch in enumerate(one.scratches):
                c = scratch.context
                c[ContextWord.BUDGET] = c[ContextWord.BUDGET] * c[ContextWord.QUANTUM] // quantum
                c[ContextWord.QUANTUM], c[ContextWord.TURN], c[ContextWord.IN_FLIGHT], c[ContextWord.FREED] = (
                    quantum,
                    turn,
                    1,
                    ASKED,
                )
                flight.blocks.append(_Block(scratch, index))
            self.flights.append(flight)
            first += len(flight.blocks)
        self._last = running[0].scratches[0].context

    def run(self, limit: TimeLimit) -> tuple[int, _Flight, Scratch]:
        """Take turns until all have ended or one stops; what stopped them, and whose block did."""
        idle = 0
        while True:
            self._start()
            able = [(flight, block) for flight in self.flights if flight.started for block in self._able(flight)]
            if not able:
                left = [flight for flight in self.flights if not flight.ended]
                flight = left[0] if left else self.flights[-1]
                return (STUCK if left else FINISHED), flight, flight.blocks[0].scratch
            flight, block = self._chosen(able)
            if limit.is_over:
                return TIMED_OUT, flight, block.scratch
            status, slept = self._turn(flight, block)
            idle = idle + 1 if slept else 0
            if status not in (PAUSED, FINISHED):
                return status, flight, block.scratch
            if idle > _IDLE_TURNS:
                return STUCK, flight, block.scratch

    def _start(self) -> None:
        """Start the launches that may."""
        for flight in self.flights:
            before = flight.depends_on
            if flight.started:
                continue
            if before is None:
                if not all(self.flights[other].ended for other in flight.after):
                    continue
                ended = [self.flights[other].over | {other} for other in flight.after]
                flight.over = flight.over_at_start = frozenset[int]().union(*ended)
            else:
                other = self.flights[before]
                if not other.started or not all(block.freed for block in other.blocks):
                    continue
                first = any(block.frees_first for block in other.blocks)
                flight.over_at_start = other.over_at_start if first else other.over
                flight.over = other.over | {before}
            flight.started = True
            for block in flight.blocks:
                self._comes_after(flight, block, flight.over_at_start)

    def _able(self, flight: _Flight) -> Iterator[_Block]:
        """Its blocks that can have a turn; those whose wait is over are released."""
        before = flight.depends_on
        over = before is None or self.flights[before].ended
        for block in flight.blocks:
            if block.waits and over:
                block.waits, block.released = False, True
                block.scratch.context[ContextWord.IN_FLIGHT] = 0
                self._comes_after(flight, block, flight.over)
            if not block.ended and not block.waits:
                yield block

    def _comes_after(self, flight: _Flight, block: _Block, over: frozenset[int]) -> None:
        if self._order is not None:
            others = [place for other in over for place in self.flights[other].places]
            self._order.end(flight.first + block.number, others)

    def _chosen(self, able: Sequence[tuple[_Flight, _Block]]) -> tuple[_Flight, _Block]:
        if self._policy is Policy.PRIORITIES and self._chance.random() < 0.05:
            self._priorities[self._chance.randrange(len(self._priorities))] = self._chance.random()
        highest = max(self._rank(flight.number) for flight, _ in able)
        return self._chance.choice([one for one in able if self._rank(one[0].number) == highest])

    def _rank(self, launch: int) -> float:
        """Those of the highest rank come first."""
        if self._policy is Policy.PRIORITIES:
            return self._priorities[launch]
        return {Policy.NEWEST_FIRST: launch, Policy.OLDEST_FIRST: -launch}.get(self._policy, 0)

    def _turn(self, flight: _Flight, block: _Block) -> tuple[int, bool]:
        """Give a block a turn; what it returned, and whether it only slept."""
        c = block.scratch.context
        c[ContextWord.SERIAL], c[ContextWord.LAST_EVENT], self._last = (
            self._last[ContextWord.SERIAL],
            self._last[ContextWord.LAST_EVENT],
            c,
        )
        before, freed = c[ContextWord.TURNS], block.freed
        while True:
            status = call(flight.running.run, block.scratch, block.number, block.number + 1)
            if not (status == PAUSED and c[ContextWord.WARP_AT]):  # within its turn, which goes on
                break
        slept = status == PAUSED and c[ContextWord.TURNS] == before + SLEEP_COST
        if slept:
            c[ContextWord.TURNS] = max(before, 1)  # 0 would be a block that has not begun
        block.frees_first |= not freed and block.freed and not block.released
        block.ended = status == FINISHED
        block.waits = slept and not block.released
        return status, slept


def _checks(running: Sequence[RunningLaunch]) -> LaunchMap:
    """What the checks look up, put into the contexts of all."""
    contexts = [scratch.context for one in running for scratch in one.scratches]
    shift = min(c[ContextWord.GLOBAL_SHIFT] for c in contexts)
    targets = set[int]()
    anywhere, first = False, 0
    for one in running:
        for scratch in one.scratches:
            scratch.context[ContextWord.GLOBAL_SHIFT] = shift  # the shadow is one, so all have its granules
            scratch.context[ContextWord.LAUNCH_EPOCH] = OLDEST_EPOCH + first * SPAN
        first += len(one.scratches)
        its = one.watch()
        anywhere = anywhere or its is None
        targets.update(its or ())
    return LaunchMap(
        contexts, _all_memory(running), len(contexts), None if anywhere else targets,
        any(one.kernel.facts.synchronises for one in running), [len(one.scratches) for one in running],
        own=[one.memory for one in running],
    )  # fmt: skip


def _all_memory(running: Sequence[RunningLaunch]) -> MemoryMap:
    """What any of them may touch, writable where one of them may write."""
    memory = MemoryMap()
    for one in running:
        for base, allocation in one.memory.allocations.items():
            known = memory.allocations.get(base, allocation)
            size, read_only = max(known.size, allocation.size), known.read_only and allocation.read_only
            memory.add(base, size, allocation.name, read_only=read_only)
    return memory
