"""One sequence beside llama.cpp: what is run and kept, and what table and picture say of it. The figures are made up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from benchmarks import one_sequence, one_sequence_report
from benchmarks.models import MODELS, Shape, write_q4_k_m, write_q8_0
from benchmarks.one_sequence import SIX, Subject
from benchmarks.one_sequence_report import USUAL, figures, markdown, markers, picture_of, section
from benchmarks.report import replaced
from executor.gguf.gguf_file import GgufFile
from executor.model.matrices import matrices
from executor.model.model_file import read_spec
from tests.llama_cpp import asked, bench_rows, stand_in
from tests.paths import ROOT


def speed(median: float) -> dict[str, float]:
    return {"median": median, "least": median - 1, "most": median + 1, "rounds": 3}


def result(model: str, accurate: float, theirs: float, other_way: float) -> dict[str, Any]:
    return {
        "model": model, "weight_bytes_a_step": 4_000_000_000, "cache_bytes_a_step": 100_000_000,
        "tokens_per_second": {"accurate": speed(accurate), "fast": speed(1.5 * accurate)},
        "llama_cpp": {"as it comes": speed(theirs), "GGML_CUDA_GRAPH_OPT=1": speed(other_way)},
        "llama_cpp_facts": {"build_commit": "0c1e570", "commands": []},
    }  # fmt: skip


def record(*results: dict[str, Any], product: str = "NVIDIA H200", limit: float | None = 4.1e12) -> dict[str, Any]:
    return {
        "tokens": 128, "rounds": 3, "commit": "0123456789", "command": "python -m benchmarks.one_sequence",
        "read_limit_bytes_per_second": limit, "results": list(results),
        "machine": {"kind": "cuda", "product": product, "cuda_driver": "13.0"},
    }  # fmt: skip


SMALL = result("Qwen3-0.6B Q4_K_M", 600, 300, 250)
LARGE = result("Llama-3.1-8B Q4_K_M", 400, 190, 200)


def test_a_row_has_both_precisions_beside_the_faster_way_of_llama_cpp_the_limit_and_what_must_be() -> None:
    lines = markdown([record(SMALL, LARGE)]).splitlines()
    assert lines[0] == "|tokens/s|`accurate`|x|of limit|`fast`|x|of limit|limit|llama.cpp|x must be|"
    assert lines[2:4] == [
        "|Llama-3.1-8B Q4_K_M|400 (399 to 401)|2.00|40%|600 (599 to 601)|3.00|60%|1000"
        "|200 (199 to 201), GGML_CUDA_GRAPH_OPT=1|2.3|",
        "|Qwen3-0.6B Q4_K_M|600 (599 to 601)|2.00|60%|900 (899 to 901)|3.00|90%|1000|300 (299 to 301), as it comes|2.5|",
    ]
    assert "commit 0123456, llama.cpp 0c1e570, `python -m benchmarks.one_sequence`" in lines[-1]


def test_files_of_some_models_each_make_one_table() -> None:
    assert [one.model for one in figures([record(SMALL), record(LARGE)])] == [LARGE["model"], SMALL["model"]]


def test_a_model_twice_a_strange_one_and_two_gpus_are_refused() -> None:
    with pytest.raises(click.ClickException, match=r"Qwen3-0\.6B Q4_K_M is there twice"):
        figures([record(SMALL), record(SMALL)])
    with pytest.raises(click.ClickException, match=r"Llama-9 is none of Llama-3\.1-8B Q4_K_M"):
        figures([record(SMALL | {"model": "Llama-9"})])
    with pytest.raises(click.ClickException, match="one GPU"):
        figures([record(SMALL), record(LARGE, product="NVIDIA L4")])


BEGIN, END = markers(USUAL)


def test_a_rerun_changes_what_stands_between_the_markers_and_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'bench' is not installed")
    (tmp_path / "page.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    (tmp_path / "r.json").write_text(json.dumps(record(SMALL, LARGE)))
    words = [str(tmp_path / "r.json"), "--page", str(tmp_path / "page.md"), "--plot", str(tmp_path / "bars.svg")]
    done = CliRunner().invoke(one_sequence_report.main, words)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.md").read_text()
    assert page.startswith(f"before\n{BEGIN}\n![")
    assert page.endswith(f"{END}\nafter\n")
    picture = (tmp_path / "bars.svg").read_text()
    assert all(text in picture for text in ("200 by llama.cpp", "limit of reading", "must be", "times llama.cpp"))


@pytest.mark.parametrize("gpu", ["h200", "h100"])
def test_the_documents_say_what_the_recorded_results_give_and_nothing_without_them(gpu: str) -> None:
    paths = sorted((ROOT / "benchmarks" / "results").glob(f"one-sequence-*{gpu}.json"))
    page, picture = (ROOT / "docs" / "performance.md").read_text(), picture_of(gpu)
    if paths:
        assert section([json.loads(path.read_text()) for path in paths], picture.name) in page
    else:
        assert replaced(page, "", *markers(gpu)) == page
    assert picture.exists() == bool(paths)
    assert (picture.name in page) == bool(paths)


def test_the_figure_of_the_usual_gpu_stands_at_the_top_of_the_readme() -> None:
    top, _ = (ROOT / "README.md").read_text().split("## Try it")
    assert f"](docs/{picture_of(USUAL).name})" in top


def test_each_model_is_timed_in_all_ways_in_turn_and_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{json.dumps(row)}\n" for row in bench_rows(tokens=3))
    stand_in(tmp_path, bench=f"cat <<'END'\n{rows}END\necho \"opt ${{GGML_CUDA_GRAPH_OPT:-no}}\" >>{tmp_path}/ways\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(one_sequence, "SIX", {"tiny": Subject("Tiny Q8_0", "tiny", write_q8_0, 2.0)})
    output = tmp_path / "one-sequence.json"
    words = ["--device", "emulator", "--tokens", "3", "--rounds", "2", "--commit", "abc", "-o", str(output)]
    done = CliRunner().invoke(one_sequence.main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    said = json.loads(output.read_text())
    (one,) = said["results"]
    assert (said["commit"], said["rounds"], one["model"]) == ("abc", 2, "Tiny Q8_0")
    assert all(one["tokens_per_second"][name]["rounds"] == 2 for name in ("accurate", "fast"))
    assert {way: facts["median"] for way, facts in one["llama_cpp"].items()} == dict.fromkeys(one["llama_cpp"], 118.881588)
    assert (tmp_path / "ways").read_text().split() == ["opt", "no", "opt", "1", "opt", "1", "opt", "no"]
    assert all("-p 0 -n 3 -d 0" in line for line in asked(tmp_path, "llama-bench"))
    s = MODELS["tiny"]
    assert one["cache_bytes_a_step"] == s.layers * 2 * s.kv_heads * s.head_dim * 4 * (4 + 2)


def test_a_model_that_is_none_of_the_six_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = CliRunner().invoke(one_sequence.main, ["--models", "qwen3-0.6b-q4_k_m,gpt-2", "-o", str(tmp_path / "r.json")])
    assert done.exit_code == 2
    assert "'gpt-2' is not one of llama-3.1-8b-q4_k_m, " in done.output


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_synthetic_model_is_one_of_its_architecture(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(architecture, 8, 256, 512, 4, 2, 64, 512, rope_base=1e6, rope_factor=0.0, eps=1e-6, tied=False, context=64)
    monkeypatch.setitem(MODELS, "small", shape)
    write_q4_k_m("small", tmp_path / "m.gguf")
    with GgufFile.open(tmp_path / "m.gguf") as file:
        (block, *_) = set(read_spec(file).blocks)
        formats = {(role, matrix.format.name): count for matrix in matrices(file) for role, count in matrix.roles}
    assert (bool(block.biases), block.mixer.qk_norm is not None) == (architecture == "qwen2", architecture == "qwen3")
    assert {role for role, format in formats if format == "Q6_K"} == {"attn_v", "ffn_down", "output"}
    assert formats["ffn_down", "Q6_K"] == formats["attn_v", "Q6_K"] == 4


def test_each_of_the_six_has_the_dimensions_of_its_name() -> None:
    parameters = {name: _parameters(MODELS[subject.shape]) for name, subject in SIX.items()}
    rounded = {name: f"{count / 1e9:.1f}" for name, count in parameters.items()}
    assert rounded == {
        "llama-3.1-8b-q4_k_m": "8.0", "llama-3.1-8b-q8_0": "8.0", "llama-3.2-1b-q4_k_m": "1.2", "qwen2.5-1.5b-q4_k_m": "1.5",
        "qwen2.5-7b-q4_k_m": "7.6", "qwen3-0.6b-q4_k_m": "0.6",
    }  # fmt: skip


def _parameters(s: Shape) -> int:
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    return s.layers * s.hidden * (2 * q + 2 * kv + 3 * s.ff) + (1 if s.tied else 2) * s.vocab * s.hidden
