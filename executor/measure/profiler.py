"""Measures when every launch of a step runs on the device: by stamps that the kernels leave in the very graph of the step, side
by side where it has them side by side. tile_summary.py, trace.py and roofline.py sum the times up and show them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Final

from executor.base.arguments import whole
from executor.device.protocol import Device, Event, Grid
from executor.launch.graph import LaunchGraph, Moments
from executor.launch.launch import Launcher, LaunchRecord, LayerOperation, Plan
from executor.measure.shares import shares
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.errors import ArgumentError


class TileLevel(StrEnum):
    """How much of a step's work a launch carries: a matrix product most, attention less, a pass over a vector least. OTHER: of
    a family of kernels that LEVELS does not have, another package's."""

    MACRO = "Macro"
    MIDI = "Midi"
    MICRO = "Micro"
    OTHER = "Other"


LEVELS: Final = {
    "gemv": TileLevel.MACRO,
    "gemm": TileLevel.MACRO,
    "layer": TileLevel.MACRO,
    "attention": TileLevel.MIDI,
    "activation": TileLevel.MICRO,
    "collective": TileLevel.MICRO,
    "dequant": TileLevel.MICRO,
    "norm": TileLevel.MICRO,
    "quantize": TileLevel.MICRO,
    "repack": TileLevel.MICRO,
    "rope": TileLevel.MICRO,
    "token": TileLevel.MICRO,
}
"""By the family of a kernel."""
LEGEND: Final = "Macro: matrix products; Midi: attention; Micro: passes over a vector"
"""What the levels mean, for readers of a table."""


@dataclass(frozen=True)
class Limit:
    """What a device does at most: `read_bytes` of its memory and f32 `flops` in a second (a fused multiply-add is two; 0 where
    they are not known). source: where the figures come from."""

    read_bytes: float
    flops: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        if not (self.read_bytes > 0 and self.flops >= 0):
            raise ArgumentError(
                f"a limit needs read_bytes above 0 and flops of at least 0, got {self.read_bytes}, {self.flops}"
            )

    def seconds(self, work: Work) -> float:
        """The least time for this work."""
        return max(work.bytes / self.read_bytes, work.flops / self.flops if self.flops else 0.0)


@dataclass(frozen=True)
class Tile:
    """One launch that was timed, in nanoseconds since the profiler was made. start: its first block; began: when it might touch
    what launches before it write, later than `start` where it is dependent; end: its last warp. Between events it has but a
    start and an end, with what the device needs to start it. share: what it adds to the time of its step (shares.py)."""

    step: int
    length: int | None  # positions that attention went over; None: not given
    place: LayerOperation
    kernel: KernelType
    grid: Grid
    block: Grid
    work: Work
    start: int
    began: int
    end: int
    share: int

    @property
    def seconds(self) -> float:
        """Its own time: from when it began to its end, whatever ran beside it."""
        return (self.end - self.began) * 1e-9

    @property
    def level(self) -> TileLevel:
        """That of its kernel."""
        return level_of(self.kernel)


@dataclass
class _OpenStep:
    """A step that is being launched one by one: the launches, each with the events before and after it. last: the latest
    event."""

    last: Event
    records: list[LaunchRecord] = field(default_factory=list)
    spans: list[tuple[Event, Event]] = field(default_factory=list)


class TileProfiler:
    """Times launches on one device, step by step; `tiles` holds what was timed.

    There are two ways. The launches of a stamped graph (`add`, `run`; a decoder's `profiler`) say themselves when they ran, and
    run as they do unstamped. As an observer of a Launcher it times what is launched in a `step`, by events between launches:
    there the device may wait for the host to launch what it has prepared (some microseconds), and that counts to the launch;
    preparing it, compiling included, does not. `untimed` counts the launches seen outside a step.
    """

    def __init__(self, device: Device, limit: Limit | None = None) -> None:
        self.device = device
        self.limit = limit
        """What shares of a limit refer to; None: none is claimed."""
        self.tiles: list[Tile] = []
        self.untimed = 0
        self.steps = 0
        self._origin = device.record()
        self._clock: int | None = None  # nanoseconds of the kernels' clock at _origin, found with the first graph
        self._open: _OpenStep | None = None

    def __call__(self, record: LaunchRecord) -> None:
        """What a Launcher calls after each launch."""
        if self._open is None:
            self.untimed += 1
            return
        before, self._open.last = self._open.last, self.device.record()
        self._open.records.append(record)
        self._open.spans.append((before, self._open.last))

    def prepared(self) -> None:
        """What a Launcher calls when it has checked a launch and loaded its kernel: the time that took is no launch's."""
        if self._open is not None:
            self._open.last = self.device.record()

    @contextmanager
    def step(self, length: int | None = None) -> Iterator[None]:
        """Time the launches of the block, seen as an observer, as one step; waits for them at its end. length: how many
        positions attention goes over (default: as many as its cache holds). What an exception ends is not counted."""
        if length is not None:
            length = whole("the length of a step", length, 1)
        if self._open is not None:
            raise ArgumentError("a step is being profiled already; its block must end before the next one starts")
        opened = self._open = _OpenStep(self.device.record())
        try:
            yield
        finally:
            self._open = None
        self.device.synchronize()
        self._append_step(opened.records, self._between(opened.spans), length)

    def add(self, graph: LaunchGraph, length: int | None = None) -> None:
        """Append the times of the last replay of a stamped graph, after waiting for it. Errors as LaunchGraph.moments."""
        moments = graph.moments()
        if self._clock is None:  # the work has just ended; what the host needed to see that is lost
            now = _nanoseconds(self.device.elapsed(self._origin, self.device.record()))
            self._clock = max(one.end for one in moments) - now
        clock = self._clock
        self._append_step(graph.records, [Moments(*(moment - clock for moment in one)) for one in moments], length)

    def run(self, plans: Sequence[Plan], length: int | None = None) -> None:
        """Launch the plans once as one step, in a stamped graph of their own."""
        with closing(LaunchGraph(self.device, plans, stamped=True)) as graph:
            graph.replay()
            self.add(graph, length)

    def watch(self, launcher: Launcher, plans: Sequence[Plan], length: int | None = None) -> None:
        """Launch the plans once as one step, one by one, as an observer of their launcher: where there are no stamped forms."""
        with self.step(length), launcher.observed_by(self):
            for plan in plans:
                plan()

    def clear(self) -> None:
        """Drop what was timed."""
        self.tiles.clear()
        self.untimed = self.steps = 0

    def _between(self, spans: Sequence[tuple[Event, Event]]) -> list[Moments]:
        """The moments of launches, each with the events before and after it."""
        last, end = None, 0
        moments = []
        for before, after in spans:
            start = end if before is last else _nanoseconds(self.device.elapsed(self._origin, before))
            last, end = after, start + _nanoseconds(self.device.elapsed(before, after))
            moments.append(Moments(start, start, end))
        return moments

    def _append_step(self, records: Sequence[LaunchRecord], moments: Sequence[Moments], length: int | None) -> None:
        for record, times, share in zip(records, moments, shares(moments), strict=True):
            what = (record.place, record.kernel, record.grid, record.block, work_of(record.kernel, length))
            self.tiles.append(Tile(self.steps, length, *what, *times, share))
        self.steps += 1


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


@dataclass
class ActiveProfiler:
    """Which profiler times the steps of models, None while none does. An executor shares one with its models: switched on or
    off, it is so for all of them."""

    profiler: TileProfiler | None = None


def level_of(kernel: KernelType) -> TileLevel:
    """By the kernel's family."""
    return LEVELS.get(kernel.family, TileLevel.OTHER)


def work_of(kernel: KernelType, length: int | None) -> Work:
    """What the kernel itself says that a launch has to do; `length` counts where it depends on the positions."""
    return kernel.work(**{"length": length} if _depends_on_length(type(kernel)) else {})


@cache
def _depends_on_length(kernel_type: type[KernelType]) -> bool:
    return "length" in inspect.signature(kernel_type.work).parameters
