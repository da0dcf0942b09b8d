"""What a profiler's tiles add up to: rows by operation, kernel, level or layer, as a table and as JSON. Times nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from executor.measure.profiler import Limit, Tile, TileLevel, TileProfiler
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table

OUTSIDE: Final = "outside the layers"

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
    """Launches that are counted together: their time in seconds, their operations and bytes. level: of all of them, or empty.
    share: of the time of all tiles; limit_share: the time that the device's limit allows, as part of the time taken; None where
    no limit is known."""

    name: str
    level: str
    samples: int
    seconds: float
    flops: int
    bytes: int
    share: float
    limit_share: float | None

    @classmethod
    def of(cls, name: str, tiles: Sequence[Tile], whole: float, limit: Limit | None) -> Self:
        """Sum the tiles up; whole: seconds of all tiles."""
        seconds = sum(tile.seconds for tile in tiles)
        flops, nbytes = (sum(getattr(tile.work, unit) for tile in tiles) for unit in ("flops", "bytes"))
        levels = {tile.level.value for tile in tiles}
        level = levels.pop() if len(levels) == 1 else ""
        least = None if limit is None else sum(limit.seconds(tile.work) for tile in tiles)
        return cls(
            name,
            level,
            len(tiles),
            seconds,
            flops,
            nbytes,
            _ratio(seconds, whole),
            None if least is None else _ratio(least, seconds),
        )

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
    whole = sum(tile.seconds for tile in tiles)
    groups: dict[str, list[Tile]] = {}
    for tile in tiles:
        groups.setdefault(GROUPINGS[by](tile), []).append(tile)
    rows = [TileSum.of(name, group, whole, limit) for name, group in groups.items()]
    if by == "level":
        return sorted(rows, key=lambda row: list(TileLevel).index(TileLevel(row.name)))
    return rows if by in IN_ORDER else sorted(rows, key=lambda row: -row.seconds)


def tile_table(profiler: TileProfiler, by: str = "operation") -> Table:
    """The rows and their sum as a table of at most 100 columns. Times are in microseconds of device time."""
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
    total = [TileSum.of("all", profiler.tiles, sum(row.seconds for row in rows), profiler.limit)] if rows else []
    for row in (*rows, *total):
        words = [row.name] if by == "level" else [row.name, row.level]
        words += [str(row.samples), f"{row.average_us:.2f}", f"{row.seconds / steps * 1e6:.1f}", f"{row.share * 100:.1f}"]
        words += [f"{row.gflops:.1f}", f"{row.gbps:.1f}"]
        if row.limit_share is not None:
            words.append(f"{row.limit_share * 100:.1f}")
        table.add_row(*map(Text, [*words, f"{row.intensity:.2f}"]))  # Text: [4096] is not rich's markup
    return table


def tile_facts(profiler: TileProfiler) -> dict[str, Any]:
    """All groupings, ready for JSON: times in microseconds, shares from 0 to 1, a share of a limit null where none is known."""
    limit = profiler.limit
    return {
        "device": profiler.device.describe(),
        "limit": limit and {"read_bytes_per_second": limit.read_bytes, "flops_per_second": limit.flops, "source": limit.source},
        "steps": profiler.steps,
        "launches_a_step": len(profiler.tiles) / profiler.steps if profiler.steps else 0,
        "step_us": sum(tile.seconds for tile in profiler.tiles) / profiler.steps * 1e6 if profiler.steps else 0.0,
        "untimed_launches": profiler.untimed,
        "tiles": {by: [row.facts() for row in summed(profiler.tiles, by, limit)] for by in GROUPINGS},
    }


def _ratio(part: float, whole: float) -> float:
    """0 where the clock saw no time pass."""
    return part / whole if whole else 0.0
