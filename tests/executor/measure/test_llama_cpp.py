"""llama.cpp's benchmark programs as peers: stand-ins on PATH print what the real ones print; these run where they are there."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.measure.llama_cpp import LlamaCpp, LlamaCppError
from executor.measure.speed import SpeedCase, speed_cases
from tests.llama_cpp import BATCHED_ROW, BENCH_ROW, DEVICES, asked, stand_in
from tests.synthetic import write_model

CASES = speed_cases([512], 128, [0, 1024], [1, 4], batch_depth=512)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for both, alone on PATH but for the shell's own tools."""
    stand_in(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_each_case_gets_the_speed_of_its_own_row(programs: Path) -> None:
    peer = LlamaCpp.find(Path("model.gguf"))
    assert peer.speeds(CASES) == {
        SpeedCase("prompt", 512): 7100.002165,
        SpeedCase("depth", 128): 118.881588,
        SpeedCase("depth", 128, depth=1024): 110.5,
        SpeedCase("batch", 128, depth=512, sequences=1): 36.532974,
        SpeedCase("batch", 128, depth=512, sequences=4): 73.35,
    }
    assert peer.facts["build_commit"] == "8cf427ff"
    assert (peer.facts["gpu_info"], peer.facts["type_k"]) == ("NVIDIA GeForce RTX 4080", "f16")


def test_the_programs_are_asked_for_the_same_work_on_the_same_gpu_and_cache(programs: Path) -> None:
    model = programs / "my model.gguf"
    peer = LlamaCpp.find(model, kv_type="q8_0").on(0)
    peer.speeds(CASES)
    common = f"-m '{model}' -ngl 99 -dev CUDA0 -ctk q8_0 -ctv q8_0"
    assert asked(programs, "llama-bench")[-2:] == [
        f"-r 1 -fa 1 -o jsonl {common} -p 512 -n 0 -d 0",
        f"-r 3 -fa 1 -o jsonl {common} -p 0 -n 128 -d 0,1024",
    ]
    batched = f"-fa on --output-format jsonl {common} -c 3072 -npp 512 -ntg 128 -npl 1,1,4,4"
    assert asked(programs, "llama-batched-bench") == [batched]
    assert peer.commands[-1] == f"llama-batched-bench {batched}".replace(str(model), model.name)
    peer.speeds(CASES)
    assert len(peer.commands) == 3  # those of the last run


def test_both_programs_get_the_words_and_variables_of_the_user(programs: Path) -> None:
    ask = "echo $GGML_CUDA_GRAPH_OPT >&2; exit 1"
    stand_in(programs, bench=ask, batched=ask)
    peer = LlamaCpp.find(Path("m.gguf"), words=["-ub", "2048"], environment={"GGML_CUDA_GRAPH_OPT": "yes"})
    for case in (CASES[0], CASES[-1]):
        with pytest.raises(LlamaCppError, match=r"-ub 2048 .* ended with exit code 1:\n.*\n  yes"):
            peer.speeds([case])
        assert peer.commands[0].startswith("GGML_CUDA_GRAPH_OPT=yes llama-")


def test_a_missing_program_is_named_with_what_to_build(programs: Path) -> None:
    (programs / "llama-batched-bench").unlink()
    with pytest.raises(LlamaCppError, match=r"^llama-batched-bench of llama.cpp not found on PATH: build it"):
        LlamaCpp.find(Path("m.gguf"))


def test_a_llama_cpp_that_does_not_see_the_gpu_is_refused(programs: Path) -> None:
    assert "CUDA0" in DEVICES
    with pytest.raises(LlamaCppError, match=r"cannot use GPU 1: its --list-devices names no CUDA1, but says\n  Available"):
        LlamaCpp.find(Path("m.gguf")).on(1)


def test_a_program_that_fails_is_shown_with_what_it_said(programs: Path) -> None:
    stand_in(programs, bench="echo 'main: error: failed to load model' >&2; exit 1")
    with pytest.raises(
        LlamaCppError, match=r"(?s)llama-bench -r 1 .* ended with exit code 1:\n.*\n  main: error: failed to load"
    ):
        LlamaCpp.find(Path("m.gguf")).speeds(CASES)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("", r"llama-bench did not print one row with n_prompt 512, n_gen 0, n_depth 0 and a speed samples_ts: nothing"),
        ("| model | size |", r"not print one row with .*:\n  \| model \| size \|"),
        ('{"n_prompt": 512, "n_gen": 0', r"printed a line that is no JSON \(.*\):\n  \{\"n_prompt\": 512"),
        (json.dumps(BENCH_ROW | {"samples_ts": [0.0]}), r"not print one row with .* and a speed samples_ts:\n  \{"),
        (json.dumps(BENCH_ROW) + "\n" + json.dumps(BENCH_ROW), r"not print one row with n_prompt 512"),
    ],
    ids=["nothing", "a table", "half a line", "no speed", "twice"],
)
def test_what_cannot_be_read_is_shown(programs: Path, printed: str, said: str) -> None:
    stand_in(programs, bench=f"cat <<'END'\n{printed}\nEND")
    with pytest.raises(LlamaCppError, match=said):
        LlamaCpp.find(Path("m.gguf")).speeds(CASES)


def test_a_batch_that_did_not_fit_is_missed(programs: Path) -> None:
    """llama-batched-bench leaves out what its cache has no room for, and says nothing."""
    stand_in(programs, batched=f"for _ in 1 2; do echo {shlex.quote(json.dumps(BATCHED_ROW))}; done")
    with pytest.raises(LlamaCppError, match=r"llama-batched-bench did not print 2 rows with pl 4, pp 512, tg 128 and a speed"):
        LlamaCpp.find(Path("m.gguf")).speeds(CASES)


@pytest.mark.skipif(shutil.which("llama-bench") is None, reason="needs llama.cpp's programs on PATH")
def test_the_real_programs_time_every_case(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", types=Q.F32, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=512)
    peer = LlamaCpp.find(model)
    cases = speed_cases([4, 8], 2, [0, 8], [1, 2], batch_depth=4)
    assert set(peer.speeds(cases)) == set(cases)
    assert peer.facts["build_commit"]
