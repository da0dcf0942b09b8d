"""`ptxrun check`: what it says of models that run and of others, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.choice.choice import GpuProfile
from executor.device.dry_run import DryRunDevice
from executor.gguf.gguf_file import GgufFile
from executor.model import check
from executor.model.expected_speed import expected_seconds, named_gpu
from executor.model.explain import explain
from executor.model.memory_needed import memory_needed
from executor.model.model_file import read_spec
from tests.cli.invoke import facts, invoke, refused
from tests.paths import ROOT
from tests.synthetic import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a window in five layers of six."""
    path, window = tmp_path_factory.mktemp("model") / "m.gguf", {"gemma3.attention.sliding_window": 64}
    return write_model(path, "gemma3", Q.Q4_K, layers=7, hidden=256, heads=4, kv_heads=2, ff=512, metadata=window)


@pytest.fixture(scope="module")
def said(model: Path) -> Any:
    return facts("ptxrun", "check", model, "--gpu", "l4", "--context", "512")


def test_the_kernels_are_those_that_explain_names(model: Path, said: Any) -> None:
    device = DryRunDevice.of(named_gpu("l4"))
    with GgufFile.open(model) as file:
        rows = explain(file, GpuProfile.for_device(device.as_device))
    assert (said["runs"], said["gpu"], said["text"]) == (True, "L4", True)
    assert [{**row, "prompt_kernel": None} for row in said["matrices"]] == [
        row.facts() | {"prompt_kernel": None} for row in rows
    ]
    assert said["prompt_rows"] == 512
    assert all("gemm" in row["prompt_kernel"] or "gemv" in row["prompt_kernel"] for row in said["matrices"])


@pytest.mark.slow
def test_the_memory_is_what_loading_takes(model: Path, said: Any) -> None:
    device = DryRunDevice.of(named_gpu("l4"))
    with GgufFile.open(model) as file:
        needed = memory_needed(file, read_spec(file), 512, device.target, GpuProfile.for_device(device.as_device))
    assert said["memory"] == vars(needed) | {"total": needed.total, "of_the_gpu": 24 << 30}


def test_a_token_reads_all_matrices_and_of_the_cache_what_windows_leave(said: Any) -> None:
    empty, full = said["expected"]
    assert (empty["cache_bytes"], full["cache_bytes"]) == (0, 2 * 4 * 2 * 64 * (6 * 64 + 512))
    weights = sum(row["n"] * row["k"] * sum(row["tensors"].values()) for row in said["matrices"])
    assert weights * 0.5 < empty["weight_bytes"] == full["weight_bytes"] < weights * 1.1
    assert full["tokens_per_second"] < empty["tokens_per_second"]


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_the_expected_speed_is_near_what_was_measured(gpu: str) -> None:
    record = json.loads((ROOT / "benchmarks" / "results" / f"one-sequence-{gpu}.json").read_text())
    layers = {"Llama-3.1-8B": 32, "Llama-3.2-1B": 16, "Qwen2.5-1.5B": 28, "Qwen2.5-7B": 28, "Qwen3-0.6B": 28}
    for result in record["results"]:
        read = int(result["weight_bytes_a_step"] + result["cache_bytes_a_step"])
        measured = 1 / result["tokens_per_second"]["accurate"]["median"]
        assert expected_seconds(read, layers[result["model"].split()[0]], named_gpu(gpu)) == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize(("name", "title"), [(None, "H200 SXM"), ("RTX 4090", "GeForce RTX 4090"), ("sm_80", "A100 SXM 80 GB")])
def test_a_gpu_is_named_by_its_name_or_its_generation(name: str | None, title: str) -> None:
    assert named_gpu(name).title == title


@pytest.mark.slow
def test_the_table_has_a_line_for_each_matrix_and_the_estimate_says_that_it_is_one(model: Path, said: Any) -> None:
    shown = invoke("ptxrun", "check", model, "--gpu", "l4", "--context", "512")
    assert shown.exit_code == 0
    assert shown.stdout.startswith("runs: gemma3, 7 layers, ")
    for row in said["matrices"]:
        assert row["kernel"] in shown.stdout
        assert row["prompt_kernel"] in shown.stdout
    assert "expected, not measured: " in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 100


def test_a_model_that_is_not_computed_ends_with_1_and_the_reason(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen3moe", layers=1, metadata={"qwen3moe.expert_count": 8})
    reason = "architecture 'qwen3moe' is not supported; not computed: experts; nearest that runs: Qwen3 0.6B"
    assert facts("ptxrun", "check", path, exit_code=1) == {"model": str(path), "runs": False, "reason": reason}
    shown = invoke("ptxrun", "check", path)
    assert (shown.exit_code, " ".join(shown.stdout.split())) == (1, f"does not run: {reason}")


@pytest.mark.slow
def test_a_model_that_the_gpu_has_no_room_for_ends_with_1_and_the_context_that_fits(
    model: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = said["memory"]["total"] - 1
    monkeypatch.setattr(check, "memory_of", lambda gpu: there)
    reason = facts("ptxrun", "check", model, "--gpu", "l4", "--context", 512, exit_code=1)["reason"]
    assert reason.startswith(f"L4 has {there} bytes, and the model needs {there + 1} bytes: ")
    assert reason.endswith("; a context of about 480 tokens would fit")


@pytest.mark.slow
def test_a_model_without_a_vocabulary_runs_by_token_ids(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", layers=1, hidden=64, heads=2, kv_heads=1, ff=96, types=Q.F16, tokenizer="none")
    assert "only by token ids, as --tokens takes them: the file has no vocabulary" in invoke("ptxrun", "check", path).stdout


def test_a_file_that_is_no_model_ends_with_1_and_one_that_is_not_there_with_2(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"no model")
    assert facts("ptxrun", "check", tmp_path / "m.gguf", exit_code=1)["runs"] is False
    assert "there is no such file" in refused("ptxrun", "check", tmp_path / "none.gguf")
    assert "unknown GPU" in refused("ptxrun", "check", tmp_path / "m.gguf", "--gpu", "abacus")
