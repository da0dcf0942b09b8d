"""The gathers of several devices: tried on the emulator, whose times mean nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from benchmarks.all_gather import main, timed
from executor.device import open_devices
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError, PtxGenError

pytestmark = pytest.mark.usefixtures("shared_kernels")


def test_a_size_is_timed() -> None:
    with open_devices(["emulator"] * 4) as devices:
        one: Mapping[str, Any] = timed(devices, columns=1028, launches=3, runs=1)
    assert (one["bytes"], one["ranks"], one["blocks"]) == (4112, 4, 2)
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


def test_no_bytes_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--bytes", "0", "--devices", "emulator,emulator", "-o", str(tmp_path / "x.json")])
    assert isinstance(done.exception, ArgumentError)
    assert not list(tmp_path.iterdir())
