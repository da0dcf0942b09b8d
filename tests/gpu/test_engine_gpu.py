"""Steps of many rows on a GPU: the bits of the emulator, whatever is in the step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from executor.choice.choice import GpuProfile
from executor.device.protocol import Device
from executor.model.engine import Engine
from executor.model.generation import LanguageModel
from tests.executor.model.mixture import MIXED_VARIANTS, RECORDED, digest, mixed_logits
from tests.executor.model.variants import VARIANTS, Variant

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("variant", MIXED_VARIANTS, ids=str)
def test_rows_have_the_bits_that_the_emulator_gave(variant: Variant, gpu: Device, tmp_path: Path) -> None:
    assert digest(mixed_logits(variant.write(tmp_path), gpu)) == json.loads(RECORDED.read_text())[variant.name]


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_rows_over_a_smaller_cache_have_the_bits_that_the_emulator_gave(kv_type: str, gpu: Device, tmp_path: Path) -> None:
    found = digest(mixed_logits(VARIANTS[-1].write(tmp_path), gpu, kv_type))
    assert found == json.loads(RECORDED.read_text())[f"{VARIANTS[-1].name}, {kv_type}"]


def test_steps_ahead_have_the_bits_of_those_that_wait(gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sequences that end one after the other, over the end of a page."""
    with LanguageModel.load(VARIANTS[-1].write(tmp_path), gpu, profile=GpuProfile(batch_invariant=True)) as model:

        def answers() -> list[list[int]]:
            with model.scheduler(slots=4, context=96, rows=8) as running:
                requests = [running.submit([5 + at, 9], max_tokens=20 + 20 * at, stop_tokens=()) for at in range(3)]
                requests.append(running.submit([7, 9], max_tokens=60, stop_tokens=requests[0].result().tokens[-3:]))
                running.run()
                return [request.tokens for request in requests]

        ahead = answers()
        monkeypatch.setattr(Engine, "step_ahead", lambda self: None)
        assert answers() == ahead
