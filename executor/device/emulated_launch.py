"""A launch on the emulator as a graph keeps it, and which of a graph's launches overlap. Belongs to emulated.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from executor.device.parameters import ArrayArgument
from executor.device.protocol import Grid, LoadedKernel
from ptxgen.emulator import Launch, MemoryMap, Touched, overlapping_runs


@dataclass(frozen=True)
class EmulatedLaunch:
    """What one launch is made of; `arrays` are there where it is sanitised. ranks, after: as Node."""

    kernel: LoadedKernel
    grid: Grid
    block: Grid
    parameters: bytes
    arrays: tuple[ArrayArgument, ...]
    dependent: bool = False
    ranks: int = 1
    work: object | None = None
    after: tuple[int, ...] = ()

    def among(self, memory: MemoryMap | None, *, dependent: bool, earlier: Sequence[Touched] = ()) -> Launch:
        """As the emulator takes one of several."""
        shared = self.kernel.dynamic_shared
        return Launch(self.kernel.handle, self.grid, self.block, self.parameters, shared, memory, dependent, earlier)

    def memory(self, visible: MemoryMap) -> MemoryMap:
        """What the launch may touch: its own arrays, as its signature says, and nothing else of the allocations they lie in."""
        own = MemoryMap()
        for name, array, pointer in self.arrays:
            part = visible.part(
                pointer, array.nbytes, name, read_only=array.direction == "in", constant=array.constant, settled=array.settled
            )
            same = own.allocations.get(pointer)  # inputs may be one and the same
            if part is not None and (same is None or (same.size, not same.constant) < (part.size, not part.constant)):
                own.allocations[pointer] = part
        return own


class Overlapping(NamedTuple):
    """Launches of a graph one after another that overlap; all before them have ended. after: the numbers among these of the
    launches that each waits for."""

    launches: Sequence[EmulatedLaunch]
    after: Sequence[tuple[int, ...]]


def overlapping(graph: Sequence[EmulatedLaunch], seed: int) -> Iterator[Overlapping]:
    """The launches of a graph, as many together as the emulator holds."""
    first = 0
    for count in overlapping_runs([prod(launch.grid) for launch in graph], seed):
        group = graph[first : first + count]
        yield Overlapping(group, [tuple(number - first for number in one.after if number >= first) for one in group])
        first += count
