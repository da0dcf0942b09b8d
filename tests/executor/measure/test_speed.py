"""The cases of a benchmark, their figures, and their picture."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from executor.measure import speed_plot
from executor.measure.roofline import NoPlotting
from executor.measure.speed import Kind, Measured, Speed, SpeedCase, room_for, speed_cases
from executor.measure.speed_plot import Curve, plot_speeds, require_speed_plot
from ptxgen.errors import ArgumentError


def test_a_slot_has_room_for_every_case_that_it_is_in() -> None:
    cases = speed_cases([10, 12], tokens=4, depths=[0, 100], batches=[1, 3], batch_depth=9)
    assert room_for(cases) == (104, 13, 13)


def test_what_is_named_twice_is_measured_once() -> None:
    assert len(speed_cases([8, 8], 4, [0, 0], [2, 2], 8)) == 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SpeedCase("prompt", 0), "prompt: tokens is 0"),
        (lambda: SpeedCase("prompt", 1, depth=1), "prompt: depth is 1; allowed: a whole number from 0 to 0"),
        (lambda: SpeedCase("depth", 1, sequences=2), "depth: sequences is 2"),
        (lambda: SpeedCase("speed", 1), "the kind of a case is 'speed'; allowed: prompt, depth, batch"),  # type: ignore[arg-type]
    ],
)
def test_a_case_that_cannot_be_is_refused(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(ArgumentError, match=said):
        make()


def test_the_share_of_the_limit_is_that_of_the_bytes_of_a_step() -> None:
    """4 sequences make 200 tokens/s in all, so 50 steps/s of 1 GB each: half of 100 GB/s."""
    one = Measured(SpeedCase("batch", 8, depth=4, sequences=4), Speed((100.0, 200.0, 300.0)), step_bytes=1e9, limit=100e9)
    assert one.share == pytest.approx(0.5)
    assert one.facts()["tokens_per_second"] == {"median": 200.0, "least": 100.0, "most": 300.0, "rounds": 3}
    assert one.facts()["ratio"] is None


def test_a_step_reads_the_cache_up_to_the_token_that_it_runs() -> None:
    """From depth 10, four steps attend to 11, 12, 13 and 14 positions each."""
    assert SpeedCase("batch", 4, depth=10, sequences=2).read_positions == 2 * 12.5


def measured(peer: bool = True) -> list[Measured]:
    other = Speed((50.0,)) if peer else None
    return [
        Measured(case, Speed((100.0,)), peer=other, step_bytes=1e6, limit=1e9)
        for case in speed_cases([4, 8], tokens=4, depths=[8, 0], batches=[1, 4], batch_depth=4)
    ]


@pytest.mark.parametrize("name", ["speed.svg", "speed.PNG"])
def test_the_plot_has_both_curves_and_the_limit(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    plot_speeds(measured(), "a model on a GPU", path)
    content = path.read_bytes()
    if name.endswith("svg"):
        assert all(
            word in content.decode()
            for word in ("ptxgen", "llama.cpp", "limit of reading", "sequences", "of a prompt", "a model on")
        )
    else:
        assert content.startswith(b"\x89PNG")


def test_the_lines_of_a_panel_differ_in_colour_and_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    drawn: list[Mapping[Kind, Sequence[Curve]]] = []
    monkeypatch.setattr(speed_plot, "draw", lambda panels, title, path: drawn.append(panels))
    plot_speeds(measured(), "title", Path("speed.svg"))
    assert drawn[0].keys() == {"prompt", "depth", "batch"}
    for curves in drawn[0].values():
        assert len({curve.colour for curve in curves}) == len({curve.marker for curve in curves}) == len(curves) > 1


def test_a_plot_without_a_peer_does_not_name_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_speeds(measured(peer=False), "title", tmp_path / "speed.svg")
    assert "llama.cpp" not in (tmp_path / "speed.svg").read_text()


def test_a_file_that_is_no_picture_is_refused_before_the_work() -> None:
    with pytest.raises(ArgumentError, match=r"--plot speed.pdf: a picture ends in .png or .svg"):
        require_speed_plot(Path("speed.pdf"))


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NoPlotting, match=r"--plot needs matplotlib .*pip install .matplotlib.*, or do without"):
        require_speed_plot(Path("speed.svg"))
