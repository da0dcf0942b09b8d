"""The times that the tutorial of GEMVs tells stand in the files that it names."""

from __future__ import annotations

import json
import re

import pytest

from tests.paths import ROOT

PAGE = (ROOT / "docs" / "tutorials" / "gemv.md").read_text()
ROW = re.compile(r"^\| ([^|]+) \| `(\w+)` \| ([^|]*)\| ([\d.]+) \| `([\w.-]+)` \|$", re.MULTILINE)


def measured(file: str, kernel: str, parameters: dict[str, int]) -> list[float]:
    """The medians of a kernel at 4096 x 14336 with these parameters, in microseconds."""
    results = json.loads((ROOT / "benchmarks" / "results" / file).read_text())["results"]
    wanted = {"k": 4096, "n": 14336, **parameters}.items()
    return [one["microseconds"]["median"] for one in results if one["kernel"] == kernel and wanted <= one["parameters"].items()]


@pytest.mark.parametrize("row", ROW.findall(PAGE), ids=lambda row: row[0])
def test_a_step_takes_what_its_file_says(row: tuple[str, ...]) -> None:
    _, kernel, settings, told, file = row
    parameters = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", settings)}
    assert [f"{us:.3g}" for us in measured(file, kernel, parameters)] == [f"{float(told):.3g}"]


def test_all_steps_and_their_headings_tell_the_same_times() -> None:
    times = [row[3] for row in ROW.findall(PAGE)]
    assert len(times) == 7
    assert re.findall(r"^### .*: ([\d.]+) us$", PAGE, re.MULTILINE) == times[:6]
    assert f"{measured('gemv-mwv-h200.json', 'mwv_dp4a_q4k_gemv', {'digits': 1, 'num_warps': 2})[0]:.1f}" == "15.4"
