"""A profiler's tiles as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: the Trace Event Format. Times
nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from executor.measure.profiler import Tile, TileProfiler

PROCESS: Final = 0
STEPS: Final = 0
"""The track of the steps; those of the launches follow, as many as run at once."""


def chrome_trace(profiler: TileProfiler) -> dict[str, Any]:
    """The trace as JSON's values. Times are in microseconds of the device's clock, since the profiler was made.

    One process, the device; one track with the steps, and lanes in which no launch starts before the one before it has ended.
    Each launch is a complete event from its start to its end: named after its operation, with kernel, level, layer, grid,
    block, FLOPs, bytes and rates, and the microseconds that it waited for launches before it.
    """
    tracks = _lanes(profiler.tiles)
    names = {STEPS: "steps"} | {track: f"lane {track}" for track in tracks}
    events: list[dict[str, Any]] = [_named("process_name", STEPS, profiler.device.name)]
    for track in sorted(names):
        order = {"name": "thread_sort_index", "ph": "M", "pid": PROCESS, "tid": track, "args": {"sort_index": track}}
        events += [_named("thread_name", track, names[track]), order]
    placed = zip(profiler.tiles, tracks, strict=True)
    for step, group in groupby(placed, key=lambda one: one[0].step):
        inside = list(group)
        start, end = min(tile.start for tile, _ in inside), max(tile.end for tile, _ in inside)
        first = inside[0][0]
        length = {} if first.length is None else {"length": first.length}
        events.append(_complete(f"step {step}", "step", STEPS, start, end, length))
        events += [_launch(tile, track) for tile, track in inside]
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _lanes(tiles: Sequence[Tile]) -> list[int]:
    """The track of each launch: the first that is free when it starts."""
    ends: list[int] = []
    tracks = [0] * len(tiles)
    for number in sorted(range(len(tiles)), key=lambda number: tiles[number].start):
        tile = tiles[number]
        lane = next((lane for lane, end in enumerate(ends) if end <= tile.start), len(ends))
        ends[lane : lane + 1] = [tile.end]
        tracks[number] = STEPS + 1 + lane
    return tracks


def _launch(tile: Tile, track: int) -> dict[str, Any]:
    facts = {
        "kernel": str(tile.kernel),
        "level": tile.level.value,
        "layer": tile.place.layer,
        "grid": list(tile.grid),
        "block": list(tile.block),
        "flops": tile.work.flops,
        "bytes": tile.work.bytes,
        "waited_us": (tile.began - tile.start) / 1e3,
        "GB/s": round(tile.work.bytes / tile.seconds / 1e9, 3) if tile.seconds else None,
    }
    name = str(tile.place) or tile.kernel.name
    return _complete(name, tile.kernel.family, track, tile.start, tile.end, facts)


def _complete(name: str, category: str, track: int, start: int, end: int, facts: dict[str, Any]) -> dict[str, Any]:
    moments = {"ts": start / 1e3, "dur": (end - start) / 1e3}
    return {"name": name, "cat": category, "ph": "X", "pid": PROCESS, "tid": track, **moments, "args": facts}


def _named(what: str, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": PROCESS, "tid": track, "args": {"name": name}}
