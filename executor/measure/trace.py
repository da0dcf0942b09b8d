"""A profiler's tiles as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: the Trace Event Format. Times
nothing."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final

from executor.measure.profiler import Tile, TileLevel, TileProfiler

PROCESS: Final = 0
STEPS: Final = 0
"""The track of the steps; those of the levels follow."""
TRACKS: Final = {level: number for number, level in enumerate(TileLevel, 1)}


def chrome_trace(profiler: TileProfiler) -> dict[str, Any]:
    """The trace as JSON's values. Times are in microseconds of the device's clock, since the profiler was made.

    One process, the device; one track with the steps and one for each level. Each launch is a complete event: named after its
    operation, with kernel, layer, grid, block, FLOPs, bytes and rates.
    """
    names = {STEPS: "steps"} | {number: level.value for level, number in TRACKS.items()}
    used = {STEPS, *(TRACKS[tile.level] for tile in profiler.tiles)}
    events: list[dict[str, Any]] = [_named("process_name", STEPS, profiler.device.name)]
    for track in sorted(used):
        order = {"name": "thread_sort_index", "ph": "M", "pid": PROCESS, "tid": track, "args": {"sort_index": track}}
        events += [_named("thread_name", track, names[track]), order]
    for step, tiles in groupby(profiler.tiles, key=lambda tile: tile.step):
        inside = list(tiles)
        first, last = inside[0], inside[-1]
        length = {} if first.length is None else {"length": first.length}
        events.append(_complete(f"step {step}", "step", STEPS, first.start, last.start + last.seconds - first.start, length))
        events += [_launch(tile) for tile in inside]
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _launch(tile: Tile) -> dict[str, Any]:
    facts = {
        "kernel": str(tile.kernel),
        "layer": tile.place.layer,
        "grid": list(tile.grid),
        "block": list(tile.block),
        "flops": tile.work.flops,
        "bytes": tile.work.bytes,
        "GB/s": round(tile.work.bytes / tile.seconds / 1e9, 3) if tile.seconds else None,
    }
    name = str(tile.place) or tile.kernel.name
    return _complete(name, tile.kernel.family, TRACKS[tile.level], tile.start, tile.seconds, facts)


def _complete(name: str, category: str, track: int, start: float, seconds: float, facts: dict[str, Any]) -> dict[str, Any]:
    moments = {"ts": start * 1e6, "dur": seconds * 1e6}
    return {"name": name, "cat": category, "ph": "X", "pid": PROCESS, "tid": track, **moments, "args": facts}


def _named(what: str, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": PROCESS, "tid": track, "args": {"name": name}}
