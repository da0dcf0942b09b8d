"""Proves the dependent launches of a graph: what a launch touches before its wait is nothing that a launch still in flight may
touch in a way that conflicts. Knows no device.

A dependent launch (of programmatic dependent launch) runs from when all blocks of the one launch that it depends on have
executed `griddepcontrol.launch_dependents` or ended. `griddepcontrol.wait` lets it go on when that launch has ended, and its
writes are seen (PTX ISA 9.7.13.13). So what is in flight at its start depends on when that launch lets its dependent start: if
it does so before it has waited itself, all launches before it that were in flight when it started may still run."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from executor.base.errors import LaunchError
from executor.launch.dependencies import AccessedRange
from ptxgen.dsl.dependent_launch import BeforeWait, NextStarts


@dataclass(frozen=True)
class Start:
    """A launch of a graph. title: what errors call it; after, dependent: as of its Node; accesses: what it touches, by
    argument; before_wait: which of them before its wait; from_peers: the arguments that launches on other devices write."""

    title: object
    after: tuple[int, ...]
    dependent: bool
    accesses: Mapping[str, AccessedRange]
    before_wait: BeforeWait
    from_peers: frozenset[str] = frozenset()

    @property
    def depends_on(self) -> int | None:
        """The launch before whose end it may start; None if it starts when all that it waits for has ended."""
        return self.after[0] if self.dependent and len(self.after) == 1 else None


class _Touch(NamedTuple):
    launch: int
    name: str
    access: AccessedRange

    def meets(self, other: AccessedRange) -> bool:
        return self.access.start < other.end and other.start < self.access.end


@dataclass
class _Memory:
    """Who touches one piece of memory, in the order of the launches."""

    reads: list[_Touch] = field(default_factory=list)
    writes: list[_Touch] = field(default_factory=list)


def check_dependent_launches(launches: Sequence[Start]) -> None:
    """LaunchError for the first launch, in order, that is dependent and may touch before its wait what it must not: what a
    launch in flight writes, or, if it writes before its wait, what such a launch touches; what launches on other devices write;
    or memory that no argument names. It names both launches, the argument and the memory."""
    peers = _from_peers(launches)
    reads_matter = any(launch.before_wait.writes for launch in launches)
    memories: dict[Hashable, _Memory] = {}
    at_start: list[int] = []  # of each launch, a bit for each one before it that has certainly ended when it starts,
    waited: list[int] = []  # and when it has waited
    for number, launch in enumerate(launches):
        before = launch.depends_on
        if before is None:
            over = 0
            for other in launch.after:
                over |= waited[other] | 1 << other
            at_start.append(over)
            waited.append(over)
        else:
            in_time = launches[before].before_wait.next_starts is not NextStarts.BEFORE_THE_WAIT
            at_start.append(waited[before] if in_time else at_start[before])
            waited.append(waited[before] | 1 << before)
            _check(launch, at_start[number], launches, memories, peers)
        for name, access in launch.accesses.items():
            if access.writes or reads_matter:
                memory = memories.setdefault(access.memory, _Memory())
                (memory.writes if access.writes else memory.reads).append(_Touch(number, name, access))


def _check(
    launch: Start, over: int, launches: Sequence[Start], memories: Mapping[Hashable, _Memory], peers: Sequence[_Touch]
) -> None:
    facts = launch.before_wait
    if not facts.waits:
        raise LaunchError(f"{launch.title} is dependent, and a thread of it may end without having waited")
    if facts.anywhere:
        raise LaunchError(f"{launch.title} is dependent, and touches memory before it waits that no argument names")
    for name, writes in _touched(facts):
        access = launch.accesses[name]
        does = "writes" if writes else "reads"
        known = memories.get(access.memory, _Memory())
        for other in (*known.writes, *(known.reads if writes else ())):
            if other.meets(access) and not over >> other.launch & 1:
                theirs = "writes" if other.access.writes else "reads"
                raise LaunchError(
                    f"{launch.title} is dependent and {does} {name} ({_range(access)}) before it waits, which "
                    f"{launches[other.launch].title}, which may still run, {theirs} as {other.name} ({_range(other.access)})"
                )
        for other in peers:
            if other.access.memory == access.memory and other.meets(access):
                raise LaunchError(
                    f"{launch.title} is dependent and {does} {name} ({_range(access)}) before it waits, which other devices "
                    f"write for {launches[other.launch].title} as {other.name}"
                )


def _touched(facts: BeforeWait) -> Iterator[tuple[str, bool]]:
    """The arguments that may be touched before the wait, and whether each is written."""
    yield from ((name, True) for name in sorted(facts.writes))
    yield from ((name, False) for name in sorted((facts.reads | facts.read_only) - facts.writes))


def _from_peers(launches: Sequence[Start]) -> list[_Touch]:
    return [
        _Touch(number, name, launch.accesses[name])
        for number, launch in enumerate(launches)
        for name in sorted(launch.from_peers)
    ]


def _range(access: AccessedRange) -> str:
    return f"{access.start:#x} to {access.end:#x}"
