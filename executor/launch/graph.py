"""Launches as one graph of the device. Which must wait for which is dependencies.py's business."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from executor.base.errors import LaunchError
from executor.device.protocol import Device, Event
from executor.launch.dependencies import dependencies
from executor.launch.launch import Plan


class LaunchGraph:
    """Plans that one call launches, each when those have ended whose memory it needs: the results are those of launching them
    in their order. Nothing is loaded or launched when it is made: a plan's kernel is loaded already.

    Scalars are those that the plans had when the graph was made: what changes from run to run must lie in buffers. `plans` is
    what it launches, `records` says what was captured; timed: replays record `events`."""

    def __init__(self, device: Device, plans: Sequence[Plan], *, timed: bool = False) -> None:
        self.records = tuple(plan.record for plan in plans)
        self.device = device
        self.plans = tuple(plans)
        self._written = tuple(dict.fromkeys(allocation for plan in plans for allocation in plan.written))
        self._frees = device.frees
        waits = dependencies([plan.accesses for plan in plans])
        written = {allocation.writes for allocation in self._written}
        nodes = [plan.node(after, written) for plan, after in zip(plans, waits, strict=True)]
        self._handle = device.make_graph(nodes, timed=timed)
        self._end = weakref.finalize(self, _dropped, device, self._handle)
        self._end.atexit = False

    def check_alive(self) -> None:
        """LaunchError if the graph was given back or a buffer of the plans was freed since."""
        if not self._end.alive:
            raise LaunchError(f"{self} was closed; capture it again")
        if self.device.frees != self._frees:
            for plan in self.plans:
                plan.check_alive()
            self._frees = self.device.frees

    def replay(self) -> None:
        """Launch. Errors as check_alive; nothing is launched then."""
        self.check_alive()
        for allocation in self._written:
            allocation.writes.count += 1
        self.device.launch_graph(self._handle, self)

    @property
    def events(self) -> Sequence[Event]:
        """Of a timed graph: the moments before the first launch of the last replay and after each, to be read when the work has
        ended and before the next replay. Empty for any other."""
        return self.device.graph_events(self._handle)

    def __str__(self) -> str:
        first, last = (f"{record.place} {record.kernel}".strip() for record in (self.records[0], self.records[-1]))
        return f"a graph of {len(self.records)} launches, from {first} to {last}"

    def close(self) -> None:
        """Give the graph back, as happens by itself when it is no longer referenced. A second time does nothing."""
        if self._end.detach() is not None and not self.device.closed:
            self.device.free_graph(self._handle)


def _dropped(device: Device, handle: Any) -> None:
    """The graph is no longer referenced. May run on any thread, at any time."""
    if not device.closed:
        device.owner.defer(partial(device.free_graph, handle))
