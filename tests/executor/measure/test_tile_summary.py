"""What tiles add up to, as rows, table, JSON and trace. The times here are made up."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from executor.device import Device
from executor.launch.launch import LayerOperation
from executor.measure.profiler import Limit, Tile, TileProfiler
from executor.measure.roofline import NoPlotting, plot_roofline, require_plotting
from executor.measure.tile_summary import GROUPINGS, OUTSIDE, summed, tile_facts, tile_table
from executor.measure.trace import TRACKS, chrome_trace
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import find

GEMV = find("q8_0_gemv").make(k=32, n=1)
NORM = find("rmsnorm").make(hidden=32)
LIMIT = Limit(1e9, 4e9, "made up")


def tile(step: int, place: LayerOperation, kernel: KernelType, work: Work, start: float, seconds: float) -> Tile:
    return Tile(step, step + 7, place, kernel, (3, 1, 1), (64, 1, 1), work, start, seconds)


TILES = [
    made
    for step, at in ((0, 0.0), (1, 1.0))
    for made in (
        tile(step, LayerOperation(0, "attn_norm"), NORM, Work(100, 1000), at, 1e-6),
        tile(step, LayerOperation(0, "attn_q"), GEMV, Work(8000, 4000), at + 1e-6, 8e-6),
        tile(step, LayerOperation(1, "attn_q"), GEMV, Work(32000, 4000), at + 9e-6, 10e-6),
        tile(step, LayerOperation(None, "output"), GEMV, Work(8000, 4000), at + 19e-6, 1e-6),
    )
]


@pytest.fixture
def profiler(emulator: Device) -> TileProfiler:
    made = TileProfiler(emulator, LIMIT)
    made.tiles, made.steps = list(TILES), 2
    return made


def test_an_operation_is_summed_over_layers_and_steps_and_the_longest_is_first() -> None:
    first, *_ = rows = summed(TILES, "operation", LIMIT)
    assert {row.name for row in rows} == {"attn_q", "attn_norm", "output"}
    assert (first.name, first.level, first.samples) == ("attn_q", "Macro", 4)
    assert first.seconds == pytest.approx(36e-6)
    assert first.average_us == pytest.approx(9.0)
    assert first.gflops == pytest.approx(80000 / 36e-6 / 1e9)
    assert first.gbps == pytest.approx(16000 / 36e-6 / 1e9)
    assert first.intensity == 5.0
    assert first.share == pytest.approx(36 / 40)


def test_the_share_of_the_limit_is_of_memory_or_of_arithmetic_whichever_takes_longer() -> None:
    by_layer = {row.name: row for row in summed(TILES, "layer", LIMIT)}
    assert by_layer["layer 1"].limit_share == pytest.approx(8e-6 / 10e-6)  # 32000 operations take 8 us, 4000 bytes only 4
    assert by_layer[OUTSIDE].limit_share == pytest.approx(4.0)  # bytes that a cache served
    assert summed(TILES, "layer")[0].limit_share is None


def test_each_grouping_counts_every_launch_once() -> None:
    for by in GROUPINGS:
        rows = summed(TILES, by)
        assert sum(row.samples for row in rows) == len(TILES)
        assert sum(row.share for row in rows) == pytest.approx(1.0)
    assert [row.name for row in summed(TILES, "level")] == ["Macro", "Micro"]
    assert [row.name for row in summed(TILES, "layer")] == ["layer 0", "layer 1", OUTSIDE]
    assert {row.name for row in summed(TILES, "kernel")} == {str(GEMV), str(NORM)}


def test_another_grouping_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'colour'; allowed: operation, kernel, level, layer"):
        summed(TILES, "colour")


@pytest.mark.parametrize("by", GROUPINGS)
def test_the_table_fits_a_hundred_columns_and_ends_with_the_sum(profiler: TileProfiler, by: str) -> None:
    stream = io.StringIO()
    Console(file=stream, width=100).print(tile_table(profiler, by))
    lines = stream.getvalue().rstrip().split("\n")
    assert all(title in lines[0] for title in ("us each", "us/step", "% step", "GFLOP/s", "GB/s", "% limit", "FLOP/B"))
    assert max(map(len, lines)) <= 100
    words = lines[-1].split()
    assert (words[0], words[1:5]) == ("all", ["8", "5.00", "20.0", "100.0"])


def test_a_device_without_a_limit_gets_no_share_of_one(profiler: TileProfiler) -> None:
    profiler.limit = None
    assert "% limit" not in [column.header for column in tile_table(profiler).columns]
    assert tile_facts(profiler)["limit"] is None


def test_an_empty_profile_is_an_empty_table(emulator: Device) -> None:
    empty = TileProfiler(emulator)
    assert tile_table(empty).row_count == 0
    assert tile_facts(empty)["step_us"] == 0.0


def test_json_holds_the_figures_of_the_table(profiler: TileProfiler) -> None:
    facts = json.loads(json.dumps(tile_facts(profiler), allow_nan=False))
    assert (facts["steps"], facts["launches_a_step"], facts["step_us"]) == (2, 4, pytest.approx(20.0))
    assert facts["limit"]["read_bytes_per_second"] == 1e9
    assert set(facts["tiles"]) == set(GROUPINGS)
    row = facts["tiles"]["operation"][0]
    assert (row["name"], row["samples"], row["bytes"], row["average_us"]) == ("attn_q", 4, 16000, pytest.approx(9.0))


def test_the_trace_has_a_track_for_each_level_and_a_complete_event_for_each_launch(profiler: TileProfiler) -> None:
    events: list[dict[str, Any]] = json.loads(json.dumps(chrome_trace(profiler), allow_nan=False))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {0: "steps", TRACKS[TILES[1].level]: "Macro", TRACKS[TILES[0].level]: "Micro"}
    launches = [event for event in events if event["ph"] == "X" and event["cat"] != "step"]
    assert [event["name"] for event in launches[:2]] == ["layer 0 attn_norm", "layer 0 attn_q"]
    assert len(launches) == len(TILES)
    query = launches[1]
    assert (query["ts"], query["dur"]) == (pytest.approx(1.0), pytest.approx(8.0))  # microseconds
    assert names[query["tid"]] == "Macro"
    expected = {
        "kernel": str(GEMV),
        "layer": 0,
        "grid": [3, 1, 1],
        "block": [64, 1, 1],
        "flops": 8000,
        "bytes": 4000,
        "GB/s": 0.5,
    }
    assert query["args"] == expected


def test_the_trace_has_the_steps_around_their_launches(profiler: TileProfiler) -> None:
    steps = [event for event in chrome_trace(profiler)["traceEvents"] if event.get("cat") == "step"]
    assert [(step["name"], step["args"]) for step in steps] == [("step 0", {"length": 7}), ("step 1", {"length": 8})]
    assert [(step["ts"], step["dur"]) for step in steps] == [
        (0.0, pytest.approx(20.0)),
        (pytest.approx(1e6), pytest.approx(20.0)),
    ]


def test_the_roofline_names_what_takes_time_and_says_where_its_roof_comes_from(profiler: TileProfiler, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_roofline(profiler, tmp_path / "roof.svg")
    text = (tmp_path / "roof.svg").read_text()
    assert all(word in text for word in ("attn_q", "Macro", "Micro", "made up", "GFLOP/s"))
    plot_roofline(profiler, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text


def test_a_roofline_of_nothing_is_refused(emulator: Device, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ArgumentError, match="no launch with arithmetic"):
        plot_roofline(TileProfiler(emulator), tmp_path / "roof.svg")
    assert not list(tmp_path.glob("*.svg"))


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NoPlotting, match=r"pip install 'ptxgen\[bench\]'"):
        require_plotting()
