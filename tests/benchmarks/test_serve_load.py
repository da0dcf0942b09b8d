"""The benchmark of the server: what it times is what was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.serve_load import main, prompts_of
from tests.executor.serve.conftest import model_file


def test_each_round_has_prompts_of_its_own_and_each_run_the_same() -> None:
    assert prompts_of(2, 0, 100, 5) == prompts_of(2, 0, 100, 5)
    assert prompts_of(2, 0, 100, 5) != prompts_of(2, 1, 100, 5)
    assert {len(prompt) for prompt in prompts_of(3, 0, 100, 5)} == {5}


@pytest.mark.slow
def test_server_and_scheduler_are_timed_on_the_emulator(
    tmp_path: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(kernels))
    monkeypatch.setenv("PTXGEN_BATCH_INVARIANT", "1")  # as other tests have it, so that their kernels do
    output = tmp_path / "serve.json"
    model = model_file(tmp_path)
    words = ["--model", str(model), "--device", "emulator", "--clients", "2", "--prompt", "4", "--tokens", "6"]
    words += ["--rounds", "1", "--client-processes", "1", "--kv-type", "f32", "-o", str(output)]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    record = json.loads(output.read_text())
    assert [result["clients"] for result in record["results"]] == [2]
    for result in record["results"]:
        assert result["share"] == pytest.approx(result["server"]["median"] / result["scheduler"]["median"])
        assert 0 < result["first_token_seconds"]["median"] <= result["first_token_seconds"]["p95"] < 120
    assert record["machine"]["kind"] == "emulator"
    assert "2 clients: server" in done.output
