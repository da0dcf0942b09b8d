"""Switches of a profile, one sequence each: tried on the emulator, whose times mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.decode_switches import AS_IT_COMES, main, switched
from executor.choice.choice import GpuProfile

pytestmark = pytest.mark.usefixtures("shared_kernels")


def test_a_variant_sets_what_it_names_and_nothing_else() -> None:
    came = GpuProfile().with_rules("dependent_launches")
    assert switched(came, AS_IT_COMES) == came
    assert switched(came, "repack, horizontal_fusion") == came.with_rules("repack", "horizontal_fusion")
    assert switched(came, "no dependent_launches") == GpuProfile()


@pytest.mark.parametrize("variant", ["fast", "", "precision", "norepack"])
def test_a_word_that_is_no_switch_is_named(variant: str) -> None:
    with pytest.raises(click.UsageError, match=rf"there is no rule '{variant}'; known: .*repack, .*, or 'as it comes'"):
        switched(GpuProfile(), variant)


def test_each_variant_of_a_model_is_a_row_with_both_precisions(tmp_path: Path) -> None:
    path = tmp_path / "switches.json"
    words = ["--models", "tiny", "--variant", "as it comes", "--variant", "no repack", "--tokens", "2", "--runs", "1"]
    done = CliRunner().invoke(main, [*words, "--device", "emulator", "-o", str(path)])
    assert done.exit_code == 0, done.output
    record = json.loads(path.read_text())
    assert [(one["model"], one["variant"]) for one in record["results"]] == [("tiny", "as it comes"), ("tiny", "no repack")]
    assert all(one[precision]["median"] > 0 for one in record["results"] for precision in ("accurate", "fast"))


def test_an_unknown_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--models", "llama-9", "-o", str(tmp_path / "x.json")])
    assert done.exit_code == 2
    assert "'llama-9' is no model; allowed: llama-3.2-1b" in done.output
    assert not list(tmp_path.iterdir())
