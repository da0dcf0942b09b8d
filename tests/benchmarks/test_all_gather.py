"""The gathers of several devices: tried on the emulator, whose times mean nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from benchmarks.all_gather import main, timed, ways
from executor.device import open_devices
from executor.device.gathers import Gathers
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError, PtxGenError
from tests.executor.device.fake_nccl import installed

pytestmark = pytest.mark.usefixtures("shared_kernels")


def test_a_size_is_timed() -> None:
    with open_devices(["emulator"] * 4) as devices:
        one: Mapping[str, Any] = timed(devices, columns=1028, launches=3, runs=1)
    assert (one["way"], one["rows"], one["bytes"], one["ranks"]) == ("ours", 1, 4112, 4)
    assert 0 < one["least"] <= one["us"] <= one["most"]


def test_what_was_not_gathered_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    download = GpuBuffer.to_numpy

    def without_the_last(self: GpuBuffer) -> NDArray[Any]:
        array = download(self)
        array[..., -1] = 0
        return array

    monkeypatch.setattr(GpuBuffer, "to_numpy", without_the_last)
    with open_devices(["emulator"] * 2) as devices, pytest.raises(PtxGenError, match="has not gathered"):
        timed(devices, columns=4, launches=2, runs=1)


def test_rows_of_a_prompt_are_timed_by_all_that_gathers_them() -> None:
    with open_devices(["emulator"] * 2) as devices:
        assert list(ways(devices)) == ["ours"]
        assert timed(devices, columns=12, launches=3, runs=1, rows=5)["bytes"] == 240
        assert devices.gathers == Gathers()


@pytest.mark.parametrize(("asked", "found"), [("1", ["ours", "nccl"]), ("nccl", ["nccl"]), ("peer", ["ours"])])
def test_both_are_timed_where_there_are_both(asked: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    monkeypatch.setenv("PTXGEN_GATHERS", asked)
    monkeypatch.setattr("benchmarks.all_gather.np.array_equal", lambda *_: True)  # the fake driver runs no kernel
    with open_devices(["cuda:0", "cuda:1"]) as devices:
        timings = [timed(devices, columns=12, launches=2, runs=1, rows=3, way=way) for way in ways(devices)]
    assert [one["way"] for one in timings] == found


def test_no_bytes_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--bytes", "0", "--devices", "emulator,emulator", "-o", str(tmp_path / "x.json")])
    assert isinstance(done.exception, ArgumentError)
    assert not list(tmp_path.iterdir())
