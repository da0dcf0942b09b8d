"""What a profiler's tiles add up to: rows by operation, kernel, level or layer, as a table and as JSON. Times nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Self

from executor.measure.profiler import Limit, Tile, TileLevel, TileProfiler
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table

OUTSIDE: Final = "outside the layers"
UNCOVERED: Final = "between launches"
"""The row of the time that no launch covers."""

GROUPINGS: Final[dict[str, Callable[[Tile], str]]] = {
    "operation": lambda tile: tile.place.operation or tile.kernel.name,
    "kernel": lambda tile: str(tile.kernel),
    "level": lambda tile: tile.level.value,
    "layer": lambda tile: OUTSIDE if tile.place.layer is None else f"layer {tile.place.layer}",
}
"""What a row stands for."""
IN_ORDER: Final = ("level", "layer")
"""Groupings that keep their own order; the others start with what takes longest."""


@dataclass(frozen=True)
class TileSum:
    """Launches that are counted together: their operations and bytes, and in seconds the sum of their own times, which rates
    refer to, what they add to the time of their steps, and the least that the device's limit allows for them, None where none
    is known. level: of all of them, or empty. share: of the time of all steps."""

    name: str
    level: str
    samples: int
    seconds: float
    added_seconds: float
    least_seconds: float | None
    flops: int
    bytes: int
    share: float

    @classmethod
    def of(cls, name: str, tiles: Sequence[Tile], whole: float, limit: Limit | None) -> Self:
        """Sum the tiles up; whole: seconds of all steps."""
        seconds, added = sum(tile.seconds for tile in tiles), sum(tile.share for tile in tiles) * 1e-9
        flops, nbytes = (sum(getattr(tile.work, unit) for tile in tiles) for unit in ("flops", "bytes"))
        levels = {tile.level.value for tile in tiles}
        level = levels.pop() if len(levels) == 1 else ""
        least = None if limit is None else sum(limit.seconds(tile.work) for tile in tiles)
        return cls(name, level, len(tiles), seconds, added, least, flops, nbytes, _ratio(added, whole))

    @property
    def limit_share(self) -> float | None:
        """The time that the limit allows, as part of their own; None where no limit is known."""
        return None if self.least_seconds is None else _ratio(self.least_seconds, self.seconds)

    @property
    def average_us(self) -> float:
        """Microseconds a launch."""
        return self.seconds / self.samples * 1e6

    @property
    def gflops(self) -> float:
        """1e9 operations a second."""
        return _ratio(self.flops, self.seconds) / 1e9

    @property
    def gbps(self) -> float:
        """1e9 bytes a second."""
        return _ratio(self.bytes, self.seconds) / 1e9

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return _ratio(self.flops, self.bytes)

    def facts(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "name": self.name,
            "level": self.level,
            "samples": self.samples,
            "total_us": self.seconds * 1e6,
            "average_us": self.average_us,
            "added_us": self.added_seconds * 1e6,
            "flops": self.flops,
            "bytes": self.bytes,
            "gflops_per_second": self.gflops,
            "gbytes_per_second": self.gbps,
            "flops_per_byte": self.intensity,
            "share_of_limit": self.limit_share,
            "share_of_step": self.share,
        }


def summed(tiles: Sequence[Tile], by: str = "operation", limit: Limit | None = None) -> list[TileSum]:
    """A row for each operation, kernel, level or layer. Raises ArgumentError for another grouping."""
    if by not in GROUPINGS:
        raise ArgumentError(f"tiles cannot be grouped by {by!r}; allowed: {', '.join(GROUPINGS)}")
    whole = sum(spans(tiles)) * 1e-9
    groups: dict[str, list[Tile]] = {}
    for tile in tiles:
        groups.setdefault(GROUPINGS[by](tile), []).append(tile)
    rows = [TileSum.of(name, group, whole, limit) for name, group in groups.items()]
    if by == "level":
        return sorted(rows, key=lambda row: list(TileLevel).index(TileLevel(row.name)))
    return rows if by in IN_ORDER else sorted(rows, key=lambda row: -row.added_seconds)


def spans(tiles: Sequence[Tile]) -> list[int]:
    """Of each step the nanoseconds from its first start to its last end."""
    steps = [list(inside) for _, inside in groupby(tiles, key=lambda tile: tile.step)]
    return [max(tile.end for tile in inside) - min(tile.start for tile in inside) for inside in steps]


def uncovered(tiles: Sequence[Tile]) -> int:
    """The nanoseconds of all steps in which no launch ran that had begun: what the shares of the tiles leave of the spans."""
    return sum(spans(tiles)) - sum(tile.share for tile in tiles)


def tile_table(profiler: TileProfiler, by: str = "operation") -> Table:
    """The rows, what no launch covers, and the sum as a table of at most 100 columns. Times are in microseconds of device time:
    each launch's own, and what all of a row add to a step; in the last row, and its rates, the steps' own."""
    from rich.table import Table
    from rich.text import Text

    rows = summed(profiler.tiles, by, profiler.limit)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column(by.capitalize(), overflow="fold")
    if by != "level":
        table.add_column("Level")
    limited = profiler.limit is not None
    numbers = ("Samples", "us each", "us/step", "% step", "GFLOP/s", "GB/s", *(["% limit"] if limited else []), "FLOP/B")
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True, style="bold" if title == "us/step" else None)
    steps = max(1, profiler.steps)
    whole, idle = sum(spans(profiler.tiles)) * 1e-9, uncovered(profiler.tiles) * 1e-9

    def add(name: str, level: str, *cells: str) -> None:
        table.add_row(*map(Text, [name, *([] if by == "level" else [level]), *cells]))  # Text: [4096] is not rich's markup

    def add_sum(row: TileSum) -> None:
        words = [str(row.samples), f"{row.average_us:.2f}", f"{row.added_seconds / steps * 1e6:.1f}", f"{row.share * 100:.1f}"]
        words += [f"{row.gflops:.1f}", f"{row.gbps:.1f}"]
        if row.limit_share is not None:
            words.append(f"{row.limit_share * 100:.1f}")
        add(row.name, row.level, *words, f"{row.intensity:.2f}")

    for row in rows:
        add_sum(row)
    if rows:
        add(UNCOVERED, "", "", "", f"{idle / steps * 1e6:.1f}", f"{_ratio(idle, whole) * 100:.1f}")
        launches = TileSum.of("all", profiler.tiles, whole, profiler.limit)
        add_sum(replace(launches, seconds=whole, added_seconds=whole, share=1.0))
    return table


def tile_facts(profiler: TileProfiler) -> dict[str, Any]:
    """All groupings, ready for JSON: times in microseconds, shares from 0 to 1, a share of a limit null where none is known."""
    limit, steps = profiler.limit, max(1, profiler.steps)
    return {
        "device": profiler.device.describe(),
        "limit": limit and {"read_bytes_per_second": limit.read_bytes, "flops_per_second": limit.flops, "source": limit.source},
        "steps": profiler.steps,
        "launches_a_step": len(profiler.tiles) / steps,
        "step_us": sum(spans(profiler.tiles)) / steps / 1e3,
        "between_launches_us": uncovered(profiler.tiles) / steps / 1e3,
        "untimed_launches": profiler.untimed,
        "tiles": {by: [row.facts() for row in summed(profiler.tiles, by, limit)] for by in GROUPINGS},
    }


def _ratio(part: float, whole: float) -> float:
    """0 where the clock saw no time pass."""
    return part / whole if whole else 0.0
