"""Steps of many rows on a GPU: the bits of the emulator, whatever is in the step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from executor.device.protocol import Device
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
