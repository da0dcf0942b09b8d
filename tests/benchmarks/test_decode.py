"""The benchmark of decoding and the model that it is given, on the emulator, whose times mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.decode import main
from benchmarks.models import write_q4_k_m

pytestmark = pytest.mark.usefixtures("shared_kernels")


@pytest.mark.slow
def test_a_file_and_a_synthetic_model_are_timed_alike(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_q4_k_m("tiny", file)
    records = []
    for words in (["--model", str(file)], ["--synthetic", "tiny"]):
        output = tmp_path / "decode.json"
        done = CliRunner().invoke(main, [*words, "--device", "emulator", "-n", "2", "--runs", "1", "-o", str(output)])
        assert done.exit_code == 0, done.output
        records.append(json.loads(output.read_text()))
    assert [(one["model"], one["synthetic_weights"]) for one in records] == [("tiny.gguf", False), ("tiny", True)]
    assert records[0]["launches_per_token"] == records[1]["launches_per_token"] > 0
    assert all(one["tokens_per_second"]["min"] > 0 for one in records)


@pytest.mark.parametrize("words", [[], ["--model", "m.gguf", "--synthetic", "tiny"]], ids=["neither", "both"])
def test_exactly_one_model_is_given(words: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [*words, "-o", str(tmp_path / "decode.json")])
    assert done.exit_code == 2
    assert "give either --model or --synthetic" in done.output
