"""Figures that open a page are those of the files that it names. Tables that a script writes are compared where it is tested
(tests/benchmarks)."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.one_sequence_report import USUAL, figures, markers
from tests.paths import ROOT

README = " ".join((ROOT / "README.md").read_text().split())
EIGHT_B = "Llama-3.1-8B Q4_K_M"


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def test_the_first_table_of_performance_is_the_newest_of_one_sequence() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    before, _, after = page.partition(markers(USUAL)[0])
    assert "\n|" not in before
    assert after.lstrip().startswith("![")


def test_the_readmes_figures_of_one_sequence_are_those_of_their_files() -> None:
    for gpu, sentence in (
        ("h200", "decodes at {} tokens/s with dot products right to 1e-5, at {} with"),
        ("h100", "{} and {}, and"),
    ):
        by_model = {figure.model: figure for figure in figures([result(f"one-sequence-{gpu}")])}
        eight = by_model[EIGHT_B]
        ours = [f"{eight.ours[precision]['median']:.0f}" for precision in ("accurate", "fast")]
        assert sentence.format(*ours) in README
        assert f"llama.cpp at {eight.theirs['median']:.0f}" in README or f"llama.cpp {eight.theirs['median']:.0f}" in README
        if gpu == "h200":
            others = [figure.ratio("accurate") for name, figure in by_model.items() if name != EIGHT_B]
            assert f"five others are {min(others):.2f} to {max(others):.1f} times as fast as llama.cpp" in README


def test_the_readmes_figures_of_two_gpus_are_those_of_their_files() -> None:
    made = {
        (model, one["gpus"]): one["tokens_per_second"]["median"]
        for model in ("8b", "70b")
        for one in result(f"several-llama-3.1-{model}-two-h200")["results"]
        if one["by"] == "ptxgen"
    }
    assert f"Two H200s share the model at {made['8b', 2]:.0f}, and" in README
    assert f"at {made['70b', 2]:.0f} tokens/s where one makes {made['70b', 1]:.0f}, with" in README
