"""The table and the curves of speeds beside llama.cpp, and the script that measures them. The figures here are made up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from benchmarks import many_rows
from benchmarks.rows_report import BEGIN, END, Cell, main, markdown, panels, section
from tests.paths import ROOT


def speed(median: float) -> dict[str, float]:
    return {"median": median, "least": median - 1, "most": median + 1, "rounds": 3}


def result(kind: str, tokens: int, depth: int, sequences: int, ours: float, theirs: float | None) -> dict[str, Any]:
    return {
        "kind": kind, "tokens": tokens, "depth": depth, "sequences": sequences, "tokens_per_second": speed(ours),
        "share_of_read_limit": None if kind == "prompt" else 0.5,
        "llama_cpp_tokens_per_second": None if theirs is None else speed(theirs),
    }  # fmt: skip


def record(precision: str, ours: float, theirs: float | None) -> dict[str, Any]:
    peer = {"build_commit": "0c1e570", "type_k": "f16"}
    return {
        "model": "llama-3.1-8b", "precision": precision, "kv_type": "f16", "commit": "0123456789",
        "command": "ptxrun bench m.gguf", "machine": {"kind": "cuda", "product": "NVIDIA H200", "cuda_driver": "13.0"},
        "llama_cpp": None if theirs is None else peer,
        "results": [
            result("batch", 64, 128, 2, ours, theirs), result("prompt", 512, 0, 1, 10 * ours, theirs and 20 * theirs),
            result("depth", 64, 0, 1, ours, theirs),
        ],
    }  # fmt: skip


def test_a_row_has_both_precisions_and_the_ratio_to_the_faster_of_llama_cpp() -> None:
    lines = markdown([record("accurate", 300, 100), record("fast", 400, 200)]).splitlines()
    assert lines[0] == "|tokens/s|`accurate`|of limit|x|`fast`|of limit|x|llama.cpp|"
    assert lines[2:5] == [
        "|prompt of 512|3000 (2999 to 3001)||0.75|4000 (3999 to 4001)||1.00|4000 (3999 to 4001)|",
        "|one sequence at depth 0|300 (299 to 301)|50%|1.50|400 (399 to 401)|50%|2.00|200 (199 to 201)|",
        "|2 sequences, depth 128|300 (299 to 301)|50%|1.50|400 (399 to 401)|50%|2.00|200 (199 to 201)|",
    ]
    assert "commit 0123456, llama.cpp 0c1e570 (cache in f16), `ptxrun bench m.gguf`" in "\n".join(lines)


def test_a_speed_of_one_round_has_no_spread() -> None:
    assert str(Cell(3000, 3000, 3000)) == "3000"


def test_without_llama_cpp_there_is_no_column_of_it() -> None:
    lines = markdown([record("accurate", 300, None)]).splitlines()
    assert lines[0] == "|tokens/s|`accurate`|of limit|x|"
    assert lines[2] == "|prompt of 512|3000 (2999 to 3001)|||"


def test_a_precision_twice_is_refused() -> None:
    with pytest.raises(click.ClickException, match="one file for each precision"):
        markdown([record("accurate", 300, 100), record("accurate", 300, 100)])


def test_the_curves_are_those_of_the_table_and_of_the_limit() -> None:
    drawn = panels([record("accurate", 300, 100), record("fast", 400, 200)])
    curves = {kind: {curve.label: dict(curve.points) for curve in curves} for kind, curves in drawn.items()}
    assert curves["prompt"] == {"accurate": {512: 3000}, "fast": {512: 4000}, "llama.cpp": {512: 4000}}
    assert curves["batch"] == {"accurate": {2: 300}, "fast": {2: 400}, "llama.cpp": {2: 200}, "limit of reading": {2: 600}}


def test_the_curves_of_a_panel_differ_in_colour_and_marker() -> None:
    for curves in panels([record("accurate", 300, 100), record("fast", 400, 200)]).values():
        assert len({curve.colour for curve in curves}) == len({curve.marker for curve in curves}) == len(curves) > 2


def test_a_rerun_changes_what_stands_between_the_markers_and_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'bench' is not installed")
    (tmp_path / "page.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    (tmp_path / "fast.json").write_text(json.dumps(record("fast", 400, 200)))
    words = [str(tmp_path / "fast.json"), "--page", str(tmp_path / "page.md"), "--plot", str(tmp_path / "rows.svg")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.md").read_text()
    assert page.startswith(f"before\n{BEGIN}\n![")
    assert page.endswith(f"{END}\nafter\n")
    assert "(rows.svg)" in page
    assert "limit of reading" in (tmp_path / "rows.svg").read_text()


def test_the_table_in_the_docs_is_what_the_recorded_results_give() -> None:
    paths = sorted((ROOT / "benchmarks" / "results").glob("rows-*-h200.json"))
    page = (ROOT / "docs" / "performance.md").read_text()
    assert paths
    assert section([json.loads(path.read_text()) for path in paths], "rows.svg") in page


def test_both_precisions_are_measured_beside_each_way_to_run_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "import json, sys; print(json.dumps({'words': sys.argv[1:], 'model': 'm.gguf', 'results': []}))"
    monkeypatch.setattr(many_rows, "PTXRUN", (sys.executable, "-c", said))
    (tmp_path / "m.gguf").touch()
    words = ["--file", str(tmp_path / "m.gguf"), "--rounds", "2", "--commit", "abc", "-o", str(tmp_path)]
    done = CliRunner().invoke(many_rows.main, words)
    assert done.exit_code == 0, done.output
    records = [json.loads((tmp_path / f"rows-llama-3.1-8b-{name}-h200.json").read_text()) for name in ("accurate", "fast")]
    assert [record["commit"] for record in records] == ["abc", "abc"]
    common = "--rounds 2 --device cuda:0 --precision {} --vs llama.cpp"
    assert common.format("accurate") + " --json" in " ".join(records[0]["words"])
    assert " ".join([common.format("fast"), "--vs-args -ub 2048 --vs-env"]) in " ".join(records[1]["words"])


def test_a_bench_that_fails_ends_the_script_as_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_rows, "PTXRUN", (sys.executable, "-c", "raise SystemExit(2)"))
    (tmp_path / "m.gguf").touch()
    done = CliRunner().invoke(many_rows.main, ["--file", str(tmp_path / "m.gguf"), "-o", str(tmp_path)])
    assert done.exit_code == 2
    assert not list(tmp_path.glob("*.json"))
