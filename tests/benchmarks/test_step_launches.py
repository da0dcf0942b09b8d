"""The launches of a step by their stamps: tried on the emulator, whose times mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.decode_switches import AS_IT_COMES
from benchmarks.step_launches import launches, main
from executor.device import open_device
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")


def test_every_launch_is_in_a_row_of_its_operation_and_none_ends_before_it_begins(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=2, hidden=64, heads=2, ff=64, context=256)
    with open_device("emulator") as device:
        rows = launches(path, device, AS_IT_COMES, steps=2)
    found = {one["operation"]: one["launches"] for one in rows}
    assert (found["embed"], found["attn_norm"], found["ffn_down"], found["argmax"]) == (1, 2, 2, 1)
    assert rows[0]["operation"] == "embed"
    for one in rows:
        assert one["lasts"] >= 0
        assert one["ends"] == pytest.approx(one["begins"] + one["lasts"], abs=0.02)
        assert one["starts"] <= one["begins"]


def test_gathers_of_a_model_that_two_devices_share_have_rows(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, ff=64, context=256)
    words = ["--file", str(path), "--device", "emulator,emulator", "--steps", "1", "-o", str(tmp_path / "x.json")]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0
    rows = json.loads((tmp_path / "x.json").read_text())["results"]
    gathers = [one["operation"] for one in rows if one["operation"].endswith("_gather")]
    assert gathers == [f"{name}_gather" for name in ("attention", "attn_output", "ffn_swiglu", "ffn_down", "output")]


def test_a_word_that_is_no_switch_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"no model")
    words = ["--file", str(tmp_path / "m.gguf"), "--variant", "fast", "--device", "emulator", "-o", str(tmp_path / "x.json")]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, "no rule 'fast'" in done.output) == (2, True)
