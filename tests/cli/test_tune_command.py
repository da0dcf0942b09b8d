"""`ptxrun tune` and `ptxrun explain`, and --precision of the commands that run a model, on the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.choice.persistent import EMULATED_BLOCKS
from executor.model import step_times
from ptxgen.commands import console
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.gpus.gpu import GPUS
from tests.cli.invoke import facts, invoke, refused
from tests.executor.tune.step_clock import Cost, set_clock
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("quick_kernels")

EMULATOR = ("--device", "emulator")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    types = {"": Q.Q8_0, "ffn_down": Q.Q4_0}
    return write_model(path, types=types, layers=2, hidden=64, heads=2, kv_heads=1, ff=96, context=32)


def test_explain_says_how_a_token_goes_from_one_attention_to_the_next(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts("ptxrun", "explain", model, *EMULATOR)["persistent_layers"] is None
    monkeypatch.setenv("PTXGEN_PERSISTENT_LAYERS", "1")
    expected: dict[str, Any] = {"blocks": EMULATED_BLOCKS, "kept_from_it_by": []}
    assert facts("ptxrun", "explain", model, *EMULATOR)["persistent_layers"] == expected
    assert facts("ptxrun", "explain", model, "--gpu", "l4")["persistent_layers"]["blocks"] == GPUS["l4"].multiprocessors
    monkeypatch.setenv("PTXGEN_GEMV_Q4_0", "mwv_q4_0_gemv")
    expected["kept_from_it_by"] = ["ffn_down"]
    assert facts("ptxrun", "explain", model, *EMULATOR)["persistent_layers"] == expected


def test_explain_says_by_what_devices_gather(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "do not divide its key-value heads of 1" in refused("ptxrun", "explain", model, "--devices", "emulator,emulator")
    model = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, ff=64, context=32)
    assert facts("ptxrun", "explain", model, *EMULATOR)["gathers"] is None
    devices = ("--devices", "emulator,emulator")
    monkeypatch.setenv("PTXGEN_PERSISTENT_LAYERS", "1")
    said = facts("ptxrun", "explain", model, *devices)
    assert (said["gathers"], said["persistent_layers"]) == ("kernels of ours (all reach each other)", None)
    assert "gathers: kernels of ours" in invoke("ptxrun", "explain", model, *devices).stdout
    assert "leave one of the two out" in refused("ptxrun", "explain", model, *devices, *EMULATOR)
    monkeypatch.setenv("PTXGEN_GATHERS", "nccl")
    assert "NCCL gathers on GPUs" in refused("ptxrun", "explain", model, *devices)


def test_explain_says_for_each_matrix_which_kernel_and_why(model: Path) -> None:
    said = facts("ptxrun", "explain", model, *EMULATOR)
    assert (said["precision"], said["tables"]) == ("accurate", [])
    by_role = {role: row for row in said["matrices"] for role in row["tensors"]}
    assert set(by_role) == {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output"}
    down = by_role["ffn_down"]
    assert (down["format"], down["k"], down["n"], down["tensors"]) == ("Q4_0", 96, 64, {"ffn_down": 2})
    assert (down["kernel"], down["parameters"]["digits"], down["microseconds"]) == ("hw_dp4a_q4_0_gemv", 3, None)
    assert down["reason"] == "accurate: 3 int8 planes of the activations"
    assert 0 < down["error"] < 1e-5
    fast = facts("ptxrun", "explain", model, "--precision", "fast", *EMULATOR)
    assert {row["parameters"]["digits"] for row in fast["matrices"]} == {1}
    assert all(1e-3 < row["error"] < 2e-2 for row in fast["matrices"])


def basic_takes(step: float) -> Cost:
    """The basic kernels take 1 us alone and so many in a step, other products 4, and all else, as the addition that basic
    kernels need after them, 0.5."""

    def cost(kernel: KernelType, alone: bool) -> float:
        if kernel.name in ("q4_0_gemv", "q8_0_gemv"):
            return 1.0 if alone else step
        return 4.0 if kernel.family == "gemv" else 0.5

    return cost


def test_what_was_tuned_is_used_and_explained(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, basic_takes(3.0))
    table = tmp_path / "table.json"
    words = ("tune", model, "--kernels", "q8_0_gemv", "--runs", "1", "-o", table, *EMULATOR)
    done = facts("ptxrun", *words)
    assert (done["measured"], done["known"], done["left_out"]) == (4, 0, [])
    assert {winner["kernel"] for winner in done["winners"]} == {"q8_0_gemv"}
    assert {taken["entry"]["kernel"] for taken in done["taken"]} == {"q8_0_gemv"}
    assert done["written"]
    (step,) = done["steps"]
    assert step["seconds_with_kept"] == step["seconds_with_all"] < step["seconds_before"]
    assert step["noise_seconds"] == pytest.approx(0)
    again = facts("ptxrun", *words)
    assert (again["known"], again["written"]) == (4, False)
    monkeypatch.setenv("PTXGEN_TUNING", str(table))
    shown = invoke("ptxrun", "explain", model, *EMULATOR)
    assert max(map(len, shown.stdout.splitlines())) <= 100
    said = facts("ptxrun", "explain", model, *EMULATOR)
    assert said["tables"] == [str(table)]
    q = next(row for row in said["matrices"] if "attn_q" in row["tensors"])
    assert (q["kernel"], q["clock"]) == ("q8_0_gemv", "host")
    assert q["microseconds"] > 0
    assert q["reason"].startswith("accurate: the fastest of what was measured on emulator on 20")
    down = next(row for row in said["matrices"] if "ffn_down" in row["tensors"])
    assert down["kernel"] == "hw_dp4a_q4_0_gemv"


@pytest.mark.parametrize("precision", ["accurate", "fast"])
def test_a_kernel_that_makes_steps_slower_is_dropped_and_no_table_is_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    set_clock(monkeypatch, basic_takes(3.8), noise=0.001)
    words = ("tune", model, "--kernels", "q4_0_gemv", "--precision", precision, "-o", tmp_path / "t.json", *EMULATOR)
    done = facts("ptxrun", *words)
    assert [winner["kernel"] for winner in done["winners"]] == ["q4_0_gemv"]
    (step,), (dropped,) = done["steps"], done["dropped"]
    assert (done["written"], done["taken"]) == (False, [])
    assert step["seconds_with_all"] > step["seconds_with_kept"] == step["seconds_before"]
    assert 0 < step["noise_seconds"] < step["seconds_with_all"] - step["seconds_before"]
    assert (dropped["entry"]["kernel"], dropped["rows"]) == ("q4_0_gemv", 1)
    assert dropped["reason"].startswith("slower: a step takes")
    assert [path.name for path in tmp_path.iterdir()] == ["t.measured.json"]
    shown = invoke("ptxrun", *words)
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert "dropped: Q4_0 96 x 64, 1 row: q4_0_gemv: slower" in shown.stderr
    assert "none of 1 makes a step faster; no table is written" in shown.stderr


def test_an_interrupt_among_the_steps_leaves_the_table_and_what_was_measured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t.json"
    words = ("tune", model, "--kernels", "q4_0_gemv", "--runs", "1", "-o", table, *EMULATOR)
    set_clock(monkeypatch, basic_takes(3.0))
    assert facts("ptxrun", *words)["written"]
    old = table.read_bytes()
    set_clock(monkeypatch, basic_takes(3.8))
    with monkeypatch.context() as patch:
        patch.setattr(step_times, "step_times", interrupted)
        stopped = invoke("ptxrun", *words)
    assert (stopped.exit_code, table.read_bytes()) == (130, old)
    done = facts("ptxrun", *words)
    assert (done["known"], [taken["entry"] for taken in done["taken"]]) == (1, [None])
    assert table.read_bytes() != old


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_tuning_says_that_the_emulators_times_mean_nothing_for_a_gpu(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, basic_takes(3.0))
    monkeypatch.setenv("PTXGEN_TUNING", str(tmp_path / "t.json"))  # which is not there yet
    shown = invoke("ptxrun", "tune", model, "--kernels", "q4_0_gemv", "--runs", "1", *EMULATOR)
    assert "say nothing about a GPU" in shown.stderr
    assert f"1 measured, 0 already known, 0 left out: {tmp_path / 't.measured.json'}" in shown.stderr
    assert f"1 taken, 0 dropped, 0 more tried: {tmp_path / 't.json'}" in shown.stderr
    assert "us with what is kept" in shown.stdout
    assert "q4_0_gemv" in shown.stdout


def test_rows_are_tuned_where_they_are_asked_for(model: Path, tmp_path: Path) -> None:
    words = ("tune", model, "--kernels", "hw_dp4a_q4_0_gemv", "--runs", "1", "-o", tmp_path / "t.json", *EMULATOR)
    (winner,) = facts("ptxrun", *words, "--rows", "3")["winners"]
    assert (winner["kernel"], winner["rows"], winner["parameters"]["digits"]) == ("hw_dp4a_q4_0_gemv", 3, 3)
    assert "--rows has 5000; a step has at most 4096" in refused("ptxrun", *words, "--rows", "5000")
    assert "--rows is '0,x'; allowed: whole numbers of at least 1, as 1,8,64" in refused("ptxrun", *words, "--rows", "0,x")


def test_without_a_place_to_keep_it_tuning_asks_for_a_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", "0")
    assert "name a file with -o" in refused("ptxrun", "tune", model, *EMULATOR)


def test_the_precision_of_a_run_is_the_options_then_the_environments(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits(*words: str) -> np.ndarray:
        path = tmp_path / "l.npz"
        assert invoke("ptxrun", "logits", model, "--tokens", "5,6", "-o", path, *EMULATOR, *words).exit_code == 0
        return np.asarray(np.load(path)["logits"])

    accurate, fast = logits(), logits("--precision", "fast")
    assert np.any(accurate != fast)
    monkeypatch.setenv("PTXGEN_PRECISION", "fast")
    assert np.array_equal(logits(), fast)
    assert np.array_equal(logits("--precision", "accurate"), accurate)


def test_a_variable_that_makes_no_sense_is_one_clear_line(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_PRECISION", "exact")
    said = refused("ptxrun", "generate", model, "-p", "the", *EMULATOR)
    assert said == "environment variable PTXGEN_PRECISION is 'exact'; allowed: accurate or fast; 0 for the default"


def test_help_lists_the_variables() -> None:
    assert "PTXGEN_GEMV_<FORMAT>" in invoke("ptxrun", "--help").stdout


def test_the_table_counts_matrices_in_words_and_an_error_of_nothing_is_0(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_GEMV_Q8_0", "0")
    shown = invoke("ptxrun", "explain", model, *EMULATOR).stdout
    assert "2 x attn_q" in shown
    assert "2xattn_q" not in shown
    assert [console.magnitude(error) for error in (0.0, 1.4e-7, 2e-2)] == ["0", "1e-07", "2e-02"]
