"""A model runs under the sanitiser on the emulator with the limits of a known GPU of each generation, and a token after the
other has the bits that it has without them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

from executor.device.emulated import EmulatedDevice
from executor.model.generation import LanguageModel
from ptxgen.gpus.gpu import GPUS
from tests.synthetic import Q, write_model

BY_GENERATION: Final = ("rtx4090", "t4", "a100", "rtx3060", "orin", "b200", "b300", "thor", "rtx5070")
EMULATED: Final = frozenset(GPUS[name].sm for name in BY_GENERATION) | {90}
"""Generations of which a card is emulated; 90 by nearly every test."""


@pytest.mark.parametrize("name", [BY_GENERATION[0], *(pytest.param(one, marks=pytest.mark.slow) for one in BY_GENERATION[1:])])
def test_a_token_has_the_same_bits_within_the_limits_of_every_generation(name: str, tmp_path: Path) -> None:
    types = {"": Q.Q8_0, "ffn_down": Q.Q4_0}
    path = write_model(tmp_path / "m.gguf", types=types, layers=1, hidden=64, heads=2, kv_heads=1, ff=64, context=32)
    found = []
    for card in (None, GPUS[name]):
        with EmulatedDevice(card=card, sanitize=card is not None) as device, LanguageModel.load(path, device) as model:
            found.append(model.logits([1, 2, 3]))
    np.testing.assert_array_equal(found[0], found[1])
