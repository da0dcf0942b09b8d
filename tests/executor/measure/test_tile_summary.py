"""What tiles add up to, as rows, table, JSON and trace. The times here are made up."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from executor.device import Device
from executor.launch.graph import Moments
from executor.launch.launch import LayerOperation
from executor.measure.profiler import Limit, Tile, TileLevel, TileProfiler
from executor.measure.roofline import GREY, MARKS, RED, NoPlotting, plot_roofline, require_plotting
from executor.measure.shares import shares
from executor.measure.tile_summary import GROUPINGS, OUTSIDE, UNCOVERED, spans, summed, tile_facts, tile_table, uncovered
from executor.measure.trace import chrome_trace
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import find

GEMV = find("q8_0_gemv").make(k=32, n=1)
NORM = find("rmsnorm").make(hidden=32)
LIMIT = Limit(1e9, 4e9, "made up")


def tiles(step: int, start: int, *launches: tuple[LayerOperation, KernelType, Work, int, int, int]) -> list[Tile]:
    """A step that starts at so many nanoseconds; each launch ends with its start, begin and end after that."""
    moments = [Moments(*(start + moment for moment in launch[3:])) for launch in launches]
    return [
        Tile(step, step + 7, *launch[:2], (3, 1, 1), (64, 1, 1), launch[2], *times, share)
        for launch, times, share in zip(launches, moments, shares(moments), strict=True)
    ]


NORMED = LayerOperation(0, "attn_norm"), NORM, Work(100, 1000)
FIRST, SECOND = ((LayerOperation(layer, "attn_q"), GEMV, Work(flops, 4000)) for layer, flops in ((0, 8000), (1, 32000)))
HEAD = LayerOperation(None, "output"), GEMV, Work(8000, 4000)
ONE_BY_ONE = ((*NORMED, 0, 0, 1000), (*FIRST, 1000, 1000, 9000), (*SECOND, 9000, 9000, 19000), (*HEAD, 19000, 19000, 20000))
TILES = tiles(0, 0, *ONE_BY_ONE) + tiles(1, 10**9, *ONE_BY_ONE)
"""Two steps without a gap."""
BESIDE = tiles(
    0, 500, (*NORMED, 0, 0, 1000), (*FIRST, 3000, 3000, 9000), (*SECOND, 2000, 2000, 12000), (*HEAD, 8000, 13500, 15000)
)  # fmt: skip
"""The second and third side by side, 1000 ns after the first; the last one is dependent and waits until 1500 after them."""


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
    assert first.added_seconds == pytest.approx(36e-6)


def test_launches_side_by_side_keep_their_own_times_and_add_up_with_what_none_covers() -> None:
    times = {row.name: (row.seconds * 1e6, row.added_seconds * 1e6) for row in summed(BESIDE, "layer")}
    assert times["layer 0"] == pytest.approx((7.0, 8.0))  # the norm, and all until the first of the two ended
    assert times["layer 1"] == pytest.approx((10.0, 3.0))
    assert times[OUTSIDE] == pytest.approx((1.5, 1.5))
    assert (spans(BESIDE), uncovered(BESIDE)) == ([15000], 1000 + 1500)
    assert sum(tile.share for tile in BESIDE) + uncovered(BESIDE) == 15000


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
    assert lines[-2].split() == [*UNCOVERED.split(), "0.0", "0.0"]


@pytest.mark.parametrize("by", GROUPINGS)
def test_the_column_of_a_step_adds_up_to_its_last_row(profiler: TileProfiler, by: str) -> None:
    profiler.tiles, profiler.steps = list(BESIDE), 1
    titles = [column.header for column in tile_table(profiler, by).columns]
    column = tile_table(profiler, by).columns[titles.index("us/step")]
    *parts, whole = [float(str(cell)) for cell in column.cells]
    assert sum(parts) == pytest.approx(whole)
    assert (parts[-1], whole) == (2.5, 15.0)


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
    assert facts["between_launches_us"] == 0
    assert set(facts["tiles"]) == set(GROUPINGS)
    row = facts["tiles"]["operation"][0]
    assert (row["name"], row["samples"], row["bytes"], row["average_us"]) == ("attn_q", 4, 16000, pytest.approx(9.0))
    assert row["added_us"] == pytest.approx(36.0)


def test_the_trace_has_one_lane_for_what_runs_one_by_one_and_a_complete_event_for_each_launch(profiler: TileProfiler) -> None:
    events: list[dict[str, Any]] = json.loads(json.dumps(chrome_trace(profiler), allow_nan=False))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {0: "steps", 1: "lane 1"}
    launches = [event for event in events if event["ph"] == "X" and event["cat"] != "step"]
    assert [event["name"] for event in launches[:2]] == ["layer 0 attn_norm", "layer 0 attn_q"]
    assert len(launches) == len(TILES)
    query = launches[1]
    assert (query["ts"], query["dur"]) == (pytest.approx(1.0), pytest.approx(8.0))  # microseconds
    assert query["tid"] == 1
    expected = {
        "kernel": str(GEMV),
        "level": "Macro",
        "layer": 0,
        "grid": [3, 1, 1],
        "block": [64, 1, 1],
        "flops": 8000,
        "bytes": 4000,
        "waited_us": 0.0,
        "GB/s": 0.5,
    }
    assert query["args"] == expected


def test_what_runs_at_once_is_in_lanes_of_its_own(profiler: TileProfiler) -> None:
    profiler.tiles, profiler.steps = list(BESIDE), 1
    launches = [event for event in chrome_trace(profiler)["traceEvents"] if event["ph"] == "X" and event["cat"] != "step"]
    assert [event["tid"] for event in launches] == [1, 2, 1, 3]
    assert [event["args"]["waited_us"] for event in launches] == [0, 0, 0, 5.5]
    assert (launches[3]["ts"], launches[3]["dur"]) == (8.5, 7.0)


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


def test_what_lies_together_has_one_number_and_one_line_in_the_list(profiler: TileProfiler, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    beside = (LayerOperation(0, "attn_k"), GEMV, Work(20000, 4000))  # as attn_q in all
    profiler.tiles = tiles(0, 0, *ONE_BY_ONE, (*beside, 20000, 20000, 29000))
    plot_roofline(profiler, tmp_path / "roof.svg")
    shown = re.findall(r"<text[^>]*>([^<]+)</text>", (tmp_path / "roof.svg").read_text())
    names = [text for text in shown if "%" in text]
    assert len([name for name in names if "attn_q" in name]) == 1
    assert any("attn_q" in name and "attn_k" in name for name in names)
    assert len(names) == 3  # with attn_norm and output
    assert [text for text in shown if text in {"1", "2", "3", "4"}] == ["1", "2", "3"]  # at the points


@pytest.mark.parametrize("limit", [LIMIT, None])
def test_both_roofs_are_drawn_on_every_device(emulator: Device, tmp_path: Path, limit: Limit | None) -> None:
    pytest.importorskip("matplotlib")
    made = TileProfiler(emulator, limit)
    made.tiles, made.steps = list(TILES), 2
    plot_roofline(made, tmp_path / "roof.svg")
    text = (tmp_path / "roof.svg").read_text()
    memory, flops = ("1 GB/s", "0.004 TFLOP/s") if limit else ("4800 GB/s", "66.9 TFLOP/s")
    assert f"memory: {memory}" in text
    assert f"f32: {flops}" in text
    assert ("data sheet, not the" in text) == (limit is None)


def test_levels_and_roofs_differ_in_colour_and_shape() -> None:
    assert len({colour for colour, _ in MARKS.values()} | {GREY, RED}) == len(MARKS) + 2
    assert len({shape for _, shape in MARKS.values()}) == len(MARKS) == len(TileLevel)


def test_a_roofline_of_nothing_is_refused(emulator: Device, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ArgumentError, match="no launch with arithmetic"):
        plot_roofline(TileProfiler(emulator), tmp_path / "roof.svg")
    assert not list(tmp_path.glob("*.svg"))


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NoPlotting, match=r"pip install .matplotlib"):
        require_plotting()
