"""What looks for races on a GPU sees bits that move, and none where there are none."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from executor.choice.choice import GpuProfile
from executor.device.emulated import EmulatedDevice
from tests.executor.model.moving_bits import WAYS, moving
from tests.synthetic import Q, write_model

TIMES = 3


@pytest.mark.parametrize("ways", [("8 sequences",), pytest.param(tuple(WAYS), marks=pytest.mark.slow)], ids=len)
def test_bits_that_move_are_found_by_every_way_and_none_where_there_are_none(
    ways: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=64, vocab=320)
    run, chance = EmulatedDevice._run, random.Random(1)

    def forgetful(device: EmulatedDevice, launch: Any) -> None:
        """Half of the launches of SwiGLU do not happen."""
        if "swiglu" not in launch.kernel.entry or chance.random() < 0.5:
            run(device, launch)

    with EmulatedDevice() as device:
        assert moving(path, device, GpuProfile(), TIMES, ways) == {}
        monkeypatch.setattr(EmulatedDevice, "_run", forgetful)
        assert set(moving(path, device, GpuProfile(), TIMES, ways)) == set(ways)
