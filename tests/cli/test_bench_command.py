"""`ptxrun bench` on the emulator, and beside stand-ins for llama.cpp's programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.commands.session import KV_TYPES
from ptxgen.kernels.attention import kv_type
from tests.cli.invoke import facts, invoke, refused
from tests.llama_cpp import bench_rows, stand_in
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

EMULATOR = ("--device", "emulator")
SMALL = ("--tokens", "2", "--prompt", "2", "--batch-depth", "2", "--rounds", "2", *EMULATOR)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", types=Q.F32, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)


def test_json_has_every_case_and_what_it_was_measured_on(model: Path) -> None:
    said = facts("ptxrun", "bench", model, *SMALL, "--depth", "0,5", "--batch", "2")
    cases = [(row["kind"], row["tokens"], row["depth"], row["sequences"]) for row in said["results"]]
    assert cases == [("prompt", 2, 0, 1), ("depth", 2, 0, 1), ("depth", 2, 5, 1), ("batch", 2, 2, 2)]
    speeds = [row["tokens_per_second"] for row in said["results"]]
    assert all(0 < speed["least"] <= speed["median"] <= speed["most"] and speed["rounds"] == 2 for speed in speeds)
    position = 2 * 4 * 32  # keys and values in four bytes of one head of 32, in one layer
    prompt, first, deeper, batch = (row["bytes_a_step"] for row in said["results"])
    assert prompt is None
    assert first == pytest.approx(said["weight_bytes_a_step"] + 1.5 * position, rel=0.01)
    assert deeper - first == pytest.approx(5 * position, rel=0.05)
    assert batch - first == pytest.approx((2 * 3.5 - 1.5) * position, rel=0.05)
    assert (said["kv_type"], said["precision"], said["machine"]["kind"]) == ("f32", "accurate", "emulator")
    assert said["read_limit_bytes_per_second"] is None
    assert all(row["share_of_read_limit"] is None and row["ratio"] is None for row in said["results"])


def test_the_table_fits_and_says_what_the_emulator_cannot(model: Path) -> None:
    result = invoke("ptxrun", "bench", model, *SMALL)
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.rstrip("\n").split("\n")
    assert head.split() == ["work", "sequences", "depth", "tokens", "tokens/s", "spread"]
    assert [row.split()[:4] for row in rows] == [
        ["prompt", "1", "0", "2"],
        ["decode", "1", "0", "2"],
        ["decode", "1", "2", "2"],
    ]
    assert "no limit of reading" in result.stderr


def test_beside_llama_cpp_each_case_has_its_speed_and_the_ratio(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    rows = "\n".join(json.dumps(row) for row in bench_rows(prompt=2, tokens=2))
    batched = '{"pp": 2, "tg": 2, "pl": 1, "speed_tg": 36.5}'
    stand_in(tmp_path, bench=f"cat <<'END'\n{rows}\nEND", batched=f"echo '{batched}'; echo '{batched}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    plot = tmp_path / "speed.svg"
    result = invoke("ptxrun", "bench", model, *SMALL, "--vs", "llama.cpp", "--plot", plot)
    assert result.exit_code == 0, result.output
    head, *lines = result.stdout.rstrip("\n").split("\n")
    assert head.rstrip().endswith("spread  llama.cpp tokens/s  ratio")
    assert [line.split()[-2] for line in lines] == ["7100", "118.9", "36.5"]
    assert all(len(line) <= 100 for line in lines)
    assert "build_commit 8cf427ff" in result.stderr
    assert "llama.cpp" in plot.read_text()


def test_without_llama_cpp_nothing_is_done_but_saying_what_to_build(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refused("ptxrun", "bench", model, *SMALL, "--vs", "llama.cpp")
    assert said.startswith("llama-bench and llama-batched-bench of llama.cpp not found on PATH: build it")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--depth", "0,x"), "--depth '0,x' is not numbers of positions separated by commas, such as 0,1024,8192"),
        (("--depth", "-1"), "--depth '-1' is not numbers of positions"),
        (("--batch", "0"), "--batch '0' is not numbers of sequences"),
        (("--prompt", "0"), "--prompt '0' is not numbers of tokens"),
        (("--vs-args", "-ub 2048"), "--vs-args and --vs-env are for the programs that --vs runs; add --vs llama.cpp"),
        (("--vs", "llama.cpp", "--vs-args", "'x"), '--vs-args "\'x" is not what a shell could read: No closing quotation'),
        (("--vs", "llama.cpp", "--vs-env", "OPT"), "--vs-env 'OPT' is not NAME=VALUE, such as GGML_CUDA_GRAPH_OPT=1"),
        (
            ("--depth", "60", "--tokens", "8", "--prompt", "1", "--batch-depth", "1"),
            "a sequence needs room for 96 tokens, and the model has a context of 64",
        ),
        (("--plot", "speed.pdf"), "--plot speed.pdf: a picture ends in .png or .svg"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(model: Path, words: tuple[str, ...], said: str) -> None:
    assert refused("ptxrun", "bench", model, *EMULATOR, *words).startswith(said)


def test_the_debug_mode_does_not_go_with_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_DEBUG", "1")
    assert "GPU_DEBUG" in refused("ptxrun", "bench", model, *SMALL)


def test_the_kinds_of_cache_are_those_of_the_kernels() -> None:
    assert tuple(kv_type.KV_TYPES) == KV_TYPES
