"""The recorded results: how a file is written, what is kept of a sweep, and that the tables made from them still follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.record import summary, write
from benchmarks.report import figures, markdown
from tests.paths import ROOT

RESULTS = ROOT / "benchmarks" / "results"


def result(median: float, **parameters: Any) -> dict[str, Any]:
    shape = {"k": 4096, "n": 4096, "digits": 1, "num_warps": 8, "rows_per_warp": 2}
    return {"kernel": "hw_dp4a_q4k_gemv", "parameters": shape | parameters, "microseconds": {"median": median}}


def test_of_a_sweep_the_fastest_and_the_defaults_of_each_shape_are_kept() -> None:
    defaults, fastest, slow = result(5.0), result(4.0, num_warps=4), result(6.0, num_warps=2)
    other_digits, other_shape = result(7.0, digits=3, num_warps=4), result(9.0, n=64, num_warps=2)
    assert summary([defaults, slow, fastest, other_digits, other_shape]) == [defaults, fastest, other_digits, other_shape]


def test_a_record_says_machine_commit_and_command_and_has_a_result_a_line(tmp_path: Path) -> None:
    write(tmp_path / "new" / "r.json", {"what": "GEMV", "results": [result(1.0), result(2.0)]}, {"gpu": "sm_90"}, "0123abc")
    text = (tmp_path / "new" / "r.json").read_text()
    record = json.loads(text)
    assert (record["machine"], record["commit"], len(record["results"])) == ({"gpu": "sm_90"}, "0123abc", 2)
    assert record["command"].startswith("python -m benchmarks.")
    assert sum(line.startswith('{"kernel"') for line in text.splitlines()) == 2


def test_the_table_in_the_docs_is_what_the_recorded_results_give() -> None:
    files = [json.loads((RESULTS / f"gemv{name}-h200.json").read_text()) for name in ("", "-hw-dp4a", "-mwv")]
    table = markdown(figures(one for file in files for one in file["results"]))
    assert table in (ROOT / "docs" / "performance.md").read_text()
