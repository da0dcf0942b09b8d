"""`ptxrun profile` on the emulator."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType as Q

from tests.cli.invoke import facts, invoke, refused
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

EMULATOR = ("--device", "emulator")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.slow
def test_it_prints_where_the_time_goes_and_writes_summary_and_trace(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "profile"
    result = invoke("ptxrun", "profile", model, "-o", folder, "-p", "the", "--steps", "3", "--no-plot", *EMULATOR)
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.split("\n")
    assert head.split() == ["Operation", "Level", "Samples", "us", "each", "us/step", "%", "step", "GFLOP/s", "GB/s", "FLOP/B"]
    assert {"attn_q", "attention", "ffn_down", "output", "between", "all"} <= {row.split(" ")[0] for row in rows}
    assert all(len(row) <= 100 for row in rows)
    assert "3 steps of 17 launches on emulator" in result.stdout
    assert re.search(r"^a step: [\d.]+ us with stamps, [\d.]+ us as it is: [\d.]+ times as long$", result.stdout, re.MULTILINE)
    assert sorted(path.name for path in folder.iterdir()) == ["summary.json", "trace.json"]
    summary = read(folder / "summary.json")
    assert (summary["steps"], summary["prompt_tokens"], summary["limit"]) == (3, 2, None)  # <|begin|>, the
    steps = [event for event in read(folder / "trace.json")["traceEvents"] if event.get("cat") == "step"]
    assert [step["args"]["length"] for step in steps] == [summary["prompt_tokens"] + 2 + number for number in range(3)]


def test_json_is_what_the_summary_holds(model: Path, tmp_path: Path) -> None:
    words = ("profile", model, "-o", tmp_path, "--tokens", "5", "--steps", "2", "--precision", "fast", "--no-plot", *EMULATOR)
    said = facts("ptxrun", *words)
    assert said == read(tmp_path / "summary.json")
    assert (said["prompt_tokens"], said["steps"], said["device"]["kind"]) == (5, 2, "emulator")
    assert said["precision"] == "fast"
    assert said["step_us"] > 0
    assert said["untimed_step_us"] > 0
    assert said["step_to_untimed"] == pytest.approx(said["step_us"] / said["untimed_step_us"])
    for rows in said["tiles"].values():
        added = sum(row["added_us"] for row in rows) / said["steps"] + said["between_launches_us"]
        assert added == pytest.approx(said["step_us"])


def test_the_roofline_is_drawn_where_matplotlib_is_installed(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = invoke("ptxrun", "profile", model, "-o", tmp_path, "--tokens", "1", "--steps", "1", "--by", "level", *EMULATOR)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "roofline.svg").read_text().lstrip().startswith("<?xml")


def test_without_matplotlib_there_is_all_but_the_plot_and_what_that_needs_is_said(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("ptxrun", "profile", model, "-o", tmp_path, "--tokens", "1", "--steps", "1", *EMULATOR)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Operation")
    assert result.stderr.startswith("roofline.svg is not drawn: the roofline plot needs matplotlib")
    assert 'pip install "matplotlib' in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.json", "trace.json"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tokens", "60", "--steps", "5"), "5 steps and 2 to warm up need room for 7 tokens; 5 are left"),
        (("--tokens", "65"), "the prompt has 65 tokens, the context holds 64"),
    ],
)
def test_steps_that_do_not_fit_the_context_are_refused(model: Path, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused("ptxrun", "profile", model, "-o", tmp_path, "--no-plot", *words, *EMULATOR)


def test_the_debug_mode_does_not_go_with_it(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_DEBUG", "1")
    result = invoke("ptxrun", "profile", model, "-o", tmp_path, "--no-plot", "--tokens", "1", *EMULATOR)
    assert result.exit_code == 2
    assert "GPU_DEBUG" in result.stderr


def test_prompt_and_tokens_exclude_each_other(model: Path, tmp_path: Path) -> None:
    result = invoke("ptxrun", "profile", model, "-o", tmp_path, "-p", "the", "--tokens", "3")
    assert result.exit_code == 2
    assert "--prompt or --tokens, not both" in result.stderr


def test_a_folder_that_cannot_be_made_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file' / 'p'}: cannot be made" in refused(
        "ptxrun", "profile", model, "-o", tmp_path / "file" / "p", "--no-plot", *EMULATOR
    )


def test_a_matplotlib_that_does_not_load_is_as_none(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "matplotlib").mkdir()  # as an uninstall leaves it behind, or one of another Python
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('No module named kiwisolver')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = invoke("ptxrun", "profile", model, "-o", tmp_path / "p", "--tokens", "1", "--steps", "1", *EMULATOR)
    assert result.exit_code == 0, result.output
    assert "the roofline plot needs matplotlib (No module named kiwisolver): pip install" in result.stderr
    assert "--no-plot" in result.stderr
    assert (tmp_path / "p" / "trace.json").exists()
