"""A token's choice by its filters: tried on the emulator, whose times mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.sample_token import DRAWS, main, timed
from executor.device import open_device
from ptxgen.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("shared_kernels")


@pytest.mark.parametrize("rows", [1, 3])
def test_argmax_and_each_draw_is_timed(rows: int) -> None:
    with open_device("emulator") as device:
        results = list(timed(device, n=640, runs=1, rows=rows))
    assert [one["draws"] for one in results] == ["argmax", *DRAWS]
    assert all((one["n"], one["rows"]) == (640, rows) and one["us"] > 0 for one in results)


def test_a_vocabulary_of_nothing_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--vocab", "0", "--device", "emulator", "-o", str(tmp_path / "x.json")])
    assert isinstance(done.exception, ArgumentError)
    assert "--vocab '0' is not numbers of logits" in str(done.exception)
    assert not list(tmp_path.iterdir())
