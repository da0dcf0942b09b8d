"""Launches as one graph of the device, and the times that they ran at if they are stamped. Which must wait for which is
dependencies.py's business."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from executor.base.errors import LaunchError
from executor.device.protocol import Device, DeviceGraph
from executor.launch.dependencies import AccessedRange, dependencies
from executor.launch.dependent_launches import check_dependent_launches
from executor.launch.launch import Plan
from executor.memory.buffers import GpuBuffer, Writes
from ptxgen.dsl.stamps import END, STAMPS, START, UNSET, WAITED

_PEERS = "the other devices"
"""What stands for them among the memory that launches touch: a launch that waits for them writes it, all others read it. So all
before it has ended, whatever that touched, when it tells them how far this device is."""


class Moments(NamedTuple):
    """When a launch ran, in nanoseconds of one clock of the device. start: its first block; began: when it might touch what
    launches before it write, which is later for a dependent one; end: its last warp."""

    start: int
    began: int
    end: int


class LaunchGraph:
    """Plans that one call launches, each when those have ended whose memory it needs: the results are those of launching them
    in their order. LaunchError if one is dependent that could touch what an earlier one still needs (dependent_launches.py).
    Nothing is loaded or launched when it is made: a plan's kernel is loaded already.

    Scalars are those that the plans had when the graph was made: what changes from run to run must lie in buffers. `plans` is
    what it launches, `nodes` what the device was given of each (after which others, whether dependent), `records` says what was
    captured. stamped: the same launches, in the forms of their kernels that leave the `moments` of each; those forms are loaded
    now, and what has none is refused as Modules.load says."""

    def __init__(self, device: Device, plans: Sequence[Plan], *, stamped: bool = False) -> None:
        self.records = tuple(plan.record for plan in plans)
        self.device = device
        self.plans = tuple(plans)
        self._written = tuple(dict.fromkeys(allocation for plan in plans for allocation in plan.written))
        self._frees = device.frees
        accesses = [plan.accesses for plan in plans]
        shared = [AccessedRange(_PEERS, 0, 1, plan.ranks > 1) for plan in plans]
        waits = dependencies([[*own.values(), peers] for own, peers in zip(accesses, shared, strict=True)])
        self._stamps = GpuBuffer.empty(device, STAMPS.dtype, (len(plans), *STAMPS.shape), "stamps") if stamped else None
        self._reset_stamps()
        rows = [None if self._stamps is None else _row(self._stamps, number) for number in range(len(plans))]
        written: set[Writes] = set()
        nodes = []
        for plan, after, row in zip(plans, waits, rows, strict=True):
            nodes.append(plan.node(after, written, row))
            written.update(allocation.writes for allocation in plan.written)
        self.nodes = tuple(nodes)
        starts = zip(plans, nodes, accesses, strict=True)
        check_dependent_launches([plan.started_as(node, own) for plan, node, own in starts])
        self._handle = device.make_graph(nodes)
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
        """Launch. Errors as check_alive, and LaunchError for a graph with launches that wait for other devices; nothing is
        launched then."""
        if self.ranks not in (1, self.device.ranks):
            raise LaunchError(f"{self} waits for the graphs of {self.ranks} devices; launch them all: replay_together(graphs)")
        self.prepare_replay()
        self.device.launch_graph(self._handle, self)

    def prepare_replay(self) -> None:
        """What comes before the launch; errors as check_alive."""
        self.check_alive()
        for allocation in self._written:
            allocation.writes.count += 1
        self._reset_stamps()

    @property
    def ranks(self) -> int:
        """On how many devices, this one counted, its launches wait for each other."""
        return max(plan.ranks for plan in self.plans)

    @property
    def of_device(self) -> DeviceGraph:
        """The graph, as one of several devices."""
        return DeviceGraph(self.device, self._handle, self)

    @property
    def stamped(self) -> bool:
        """Whether its launches leave their moments."""
        return self._stamps is not None

    def moments(self) -> list[Moments]:
        """Of a stamped graph: of each launch in the last replay, for which this waits. LaunchError for any other graph, and
        before the first replay."""
        if self._stamps is None:
            raise LaunchError(f"{self} was not captured with stamped=True, so it has no times")
        stamps = self._stamps.to_numpy()
        start, waited = (stamps[:, :, column].min(axis=1) for column in (START, WAITED))
        end = stamps.view(np.int64)[:, :, END].max(axis=1)
        if end.min() < 0:
            raise LaunchError(f"{self} was not replayed, so it has no times")
        began = np.where(waited.view(np.int64) < 0, start, waited)
        return [Moments(*row) for row in np.stack([start, began, end.view(np.uint64)], axis=1).tolist()]

    def _reset_stamps(self) -> None:
        if self._stamps is not None:
            self._stamps.fill(UNSET)

    def __str__(self) -> str:
        first, last = (f"{record.place} {record.kernel}".strip() for record in (self.records[0], self.records[-1]))
        return f"a graph of {len(self.records)} launches, from {first} to {last}"

    def close(self) -> None:
        """Give the graph back, as happens by itself when it is no longer referenced. A second time does nothing."""
        if self._end.detach() is not None and not self.device.closed:
            self.device.free_graph(self._handle)
            if self._stamps is not None:
                self._stamps.free()


def replay_together(graphs: Sequence[LaunchGraph]) -> None:
    """Launch the graphs of several devices whose launches wait for each other, one of each. Errors as LaunchGraph.check_alive,
    and LaunchError unless each has the same launches of several devices, in the same order; nothing is launched then."""
    shared = [[plan.kernel for plan in graph.plans if plan.ranks > 1] for graph in graphs]
    devices = {id(graph.device) for graph in graphs}
    ranks = {kernel.launch().ranks for kernels in shared for kernel in kernels}
    if any(kernels != shared[0] for kernels in shared) or ranks != {len(graphs)} or len(devices) < len(graphs):
        raise LaunchError(
            f"graphs that wait for each other are of as many devices as their launches say, each with the same such launches: "
            f"got {len(graphs)} on {len(devices)}, with {' and '.join(str(len(kernels)) for kernels in shared)} launches"
        )
    for graph in graphs:
        graph.prepare_replay()
    graphs[0].device.launch_graphs_together([graph.of_device for graph in graphs])


def _row(stamps: GpuBuffer, launch: int) -> GpuBuffer:
    """Where a launch leaves its times."""
    return stamps.view(launch * STAMPS.nbytes, STAMPS.shape)


def _dropped(device: Device, handle: Any) -> None:
    """The graph is no longer referenced. May run on any thread, at any time."""
    if not device.closed:
        device.owner.defer(partial(device.free_graph, handle))
