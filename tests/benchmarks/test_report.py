"""The table of the GEMV figures, and the plot where matplotlib is installed. The figures here are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.report import BEGIN, END, figures, main, markdown, plot, replaced, rows
from ptxgen.errors import ArgumentError


def result(kernel: str, k: int, n: int, microseconds: float, nbytes: int = 9437184, **parameters: int) -> dict[str, Any]:
    return {
        "kernel": kernel,
        "parameters": {"k": k, "n": n, **parameters},
        "weight_bytes": nbytes,
        "microseconds": {"median": microseconds, "min": microseconds, "max": microseconds},
    }


RESULTS = [
    result("hw_dp4a_q4k_gemv", 4096, 4096, 4.4, digits=2, num_warps=8),
    result("hw_dp4a_q4k_gemv", 4096, 4096, 4.3, digits=2, num_warps=4),
    result("hw_dp4a_q4k_gemv", 4096, 4096, 4.2, digits=1, num_warps=4),
    result("q4k_gemv", 4096, 4096, 13.0),
    result("q4k_gemv", 2048, 2048, 5.0, nbytes=2359296),
    result("q6k_gemv", 4096, 4096, 14.6, nbytes=13762560),
    result("q8_0_gemv", 4096, 4096, 20.0, nbytes=17825792),
]


def test_a_cell_holds_the_best_time_of_all_parameters_and_its_share_of_the_floor() -> None:
    lines = markdown(figures(RESULTS)).splitlines()
    assert lines[:6] == [
        "|Q4_K|2048 x 2048|4096 x 4096|",
        "|---|---|---|",
        "|MB; floor us|2.4; 1.65|9.4; 3.47|",
        "|basic|**5**; 33%|13; 27%|",
        "|hw_dp4a, 2 digits||4.3; 81%|",
        "|hw_dp4a, 1 digit||**4.2**; 83%|",
    ]
    assert lines[7] == "|Q6_K|4096 x 4096|"
    assert "Q8_0" not in "\n".join(lines)


def test_the_table_has_the_shown_shapes_only() -> None:
    shown = markdown(figures(RESULTS))
    assert markdown(figures([*RESULTS, result("q4k_gemv", 640, 640, 5.0)])) == shown


def test_strategies_stand_in_the_order_of_their_speed_and_not_of_the_file() -> None:
    names = [row[0].row for row in rows(figures(reversed(RESULTS)))]
    assert names == ["basic", "hw_dp4a, 2 digits", "hw_dp4a, 1 digit"]


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    page = f"before\n\n{BEGIN}\nold\n{END}\nafter\n"
    assert replaced(page, "new") == f"before\n\n{BEGIN}\nnew\n{END}\nafter\n"
    assert replaced(replaced(page, "new"), "new") == replaced(page, "new")


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"])
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(ArgumentError, match="each once"):
        replaced(page, "new")


def test_results_of_other_formats_only_are_refused_and_the_page_stays(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"{BEGIN}\n{END}\n")
    (tmp_path / "other.json").write_text(json.dumps({"results": RESULTS[-1:]}))
    words = [str(tmp_path / "other.json"), "--page", str(tmp_path / "page.md"), "--plot", str(tmp_path / "plot.svg")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "no results of Q4_K or Q6_K kernels" in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.json", "page.md"]


def test_results_of_no_shown_shape_are_refused(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"{BEGIN}\n{END}\n")
    (tmp_path / "odd.json").write_text(json.dumps({"results": [result("q4k_gemv", 640, 640, 5.0)]}))
    done = CliRunner().invoke(main, [str(tmp_path / "odd.json"), "--page", str(tmp_path / "page.md")])
    assert done.exit_code == 1
    assert "no results for any shape of the table (2048 x 2048, " in done.output


def test_the_plot_names_every_strategy_and_is_the_same_file_twice(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'bench' is not installed")
    measured = figures(RESULTS)
    plot(measured, tmp_path / "one.svg")
    plot(measured, tmp_path / "two.svg")
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    assert all(words in text for words in ("Q4_K", "Q6_K", "read limit", "hw_dp4a, 1 digit", "basic"))
