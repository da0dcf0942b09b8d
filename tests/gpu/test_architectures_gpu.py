"""Every architecture on a GPU, by each way that a token goes, beyond its windows: against float64 and the emulator's bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from executor.device import open_device
from executor.device.protocol import Device
from executor.model.architectures import ARCHITECTURES
from executor.model.generation import LanguageModel
from tests.executor.model.mixture import mixed_logits
from tests.executor.model.variants import TOKENS
from tests.executor.model.ways import farthest, written

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def emulator() -> Iterator[Device]:
    with open_device("emulator") as opened:
        yield opened


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_ways_through_an_architecture_are_right(name: str, gpu: Device, tmp_path: Path) -> None:
    assert farthest(written(name, tmp_path), gpu) <= 1e-4


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_has_the_bits_of_the_emulator(name: str, gpu: Device, emulator: Device, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    for logits in (mixed_logits, lambda path, device: LanguageModel.load(path, device).logits(TOKENS)):
        assert np.array_equal(logits(path, gpu).view(np.uint32), logits(path, emulator).view(np.uint32))
