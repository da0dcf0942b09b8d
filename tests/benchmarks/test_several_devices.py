"""One sequence on one device and shared by two: what is compared and kept, on the emulator, whose times mean nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from benchmarks import several_devices
from benchmarks.models import MODELS, Shape, write_q4_k_m
from executor.base.errors import DeviceFailed
from executor.gguf.gguf_file import GgufFile
from executor.model.generation import LanguageModel
from tests.llama_cpp import asked, bench_rows, stand_in

pytestmark = pytest.mark.usefixtures("shared_kernels")


def run(output: Path, *words: str, devices: str = "emulator,emulator") -> Result:
    words = ("--models", "tiny", "--devices", devices, "--tokens", "3", "--rounds", "2", "--commit", "abc", *words)
    return CliRunner().invoke(several_devices.main, [*words, "-o", str(output)])


def results(output: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(output.read_text())["results"]
    return found


def test_each_number_of_devices_is_timed_with_the_bits_of_one(tmp_path: Path) -> None:
    done = run(tmp_path / "r.json", "--precisions", "fast", "--splits", "")
    assert done.exit_code == 0, done.output
    one, two = results(tmp_path / "r.json")
    assert [(row["by"], row["gpus"], row["way"]) for row in (one, two)] == [("ptxgen", 1, "fast"), ("ptxgen", 2, "fast")]
    assert two["same_tokens"] is two["same_logits"] is True
    assert two["x"] == two["tokens_per_second"]["median"] / one["tokens_per_second"]["median"]
    assert two["weight_bytes_of_each"] < one["weight_bytes_of_each"]
    assert "tiny, ptxgen fast on 2: " in done.output


def test_other_bits_are_said_and_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = LanguageModel.logits

    def wrong(self: LanguageModel, tokens: Any) -> Any:
        return np.nextafter(computed(self, tokens), np.float32(self.device.ranks - 1))

    monkeypatch.setattr(LanguageModel, "logits", wrong)
    done = run(tmp_path / "r.json", "--precisions", "fast", "--splits", "")
    assert done.exit_code == 1
    two = results(tmp_path / "r.json")[1]
    assert (two["same_tokens"], two["same_logits"]) == (True, False)
    assert "same bits: NO" in done.output


def test_what_fails_has_a_row_that_says_why_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{json.dumps(row)}\n" for row in bench_rows(tokens=3))
    stand_in(tmp_path, bench=f"cat <<'END'\n{rows}END\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def fail(*_: object, **__: object) -> None:
        raise DeviceFailed("rank 1 is gone", "rank 1 is gone")

    monkeypatch.setattr(LanguageModel, "load", fail)
    done = run(tmp_path / "r.json", "--precisions", "fast", "--splits", "row")
    assert done.exit_code == 1
    found = results(tmp_path / "r.json")
    assert [(row["by"], row["gpus"], row["way"]) for row in found] == [
        ("ptxgen", 1, ""), ("ptxgen", 2, ""), ("llama.cpp", 1, "-sm none"), ("llama.cpp", 2, ""),
    ]  # fmt: skip
    assert [row.get("error") for row in found[:2]] == ["rank 1 is gone"] * 2
    assert found[2]["tokens_per_second"]["median"] == 118.881588
    assert "names no CUDA1" in found[3]["error"]
    assert all("-dev CUDA0 -sm none -ts 1" in line for line in asked(tmp_path, "llama-bench"))


def test_a_word_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = run(tmp_path / "r.json", "--splits", "row,half")
    assert (done.exit_code, "'half' is not one of layer, row, tensor" in done.output) == (2, True)


def test_layers_after_the_distinct_ones_have_their_weights_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape("llama", 8, 256, 256, 4, 2, 64, 256, rope_base=1e4, rope_factor=0.0, eps=1e-5, tied=False, context=64)
    monkeypatch.setitem(MODELS, "small", shape)
    write_q4_k_m("small", tmp_path / "all.gguf")
    write_q4_k_m("small", tmp_path / "some.gguf", distinct=2)
    with GgufFile.open(tmp_path / "all.gguf") as file, GgufFile.open(tmp_path / "some.gguf") as some:
        assert [(one.name, one.ggml_type, one.shape) for one in file.tensors.values()] == [
            (one.name, one.ggml_type, one.shape) for one in some.tensors.values()
        ]
        gates = [[each.data(f"blk.{layer}.ffn_gate.weight").tobytes() for layer in range(8)] for each in (file, some)]
        downs = [some.data(f"blk.{layer}.ffn_down.weight").tobytes() for layer in range(8)]
    assert len(set(gates[0])) == 8
    assert gates[1] == gates[0][:2] * 4
    kinds = [some.tensors[f"blk.{layer}.ffn_down.weight"].ggml_type for layer in range(8)]
    assert [len({down for down, one in zip(downs, kinds, strict=True) if one == kind}) for kind in set(kinds)] == [2, 2]
