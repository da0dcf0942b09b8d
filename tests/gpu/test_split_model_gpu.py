"""A model that two GPUs share has the bits that the emulator gave for one. Not its ranks on one GPU: graphs of a GPU do not
always run at the same time, and these wait for each other (on an H200 they give up with a trap)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from executor.choice.choice import GpuProfile
from executor.device.cuda import CudaDevice
from executor.device.cuda_gpu import driver
from executor.device.several import SeveralDevices
from executor.model.generation import LanguageModel
from tests.executor.model.mixture import MIXED_VARIANTS, RECORDED, digest, mixed_logits
from tests.executor.model.variants import TOKENS, Variant

pytestmark = pytest.mark.gpu

NORMS = GpuProfile().with_rules("deferred_norms", "last_block_reduction", "horizontal_fusion", "dependent_launches")
"""All that a layer of several ranks gathers are digits."""
SHARED = [variant for variant in MIXED_VARIANTS if variant.name != "llama-576"]
"""Two ranks divide their heads of keys and values."""


@pytest.fixture
def two() -> Iterator[SeveralDevices]:
    if int(driver().cuDeviceGetCount()[1]) < 2:
        pytest.skip("needs two GPUs")
    with SeveralDevices([CudaDevice(rank) for rank in range(2)]) as devices:
        yield devices


@pytest.mark.parametrize("variant", SHARED, ids=str)
def test_rows_have_the_bits_that_the_emulator_gave(variant: Variant, two: SeveralDevices, tmp_path: Path) -> None:
    assert digest(mixed_logits(variant.write(tmp_path), two)) == json.loads(RECORDED.read_text())[variant.name]


def test_tokens_have_the_bits_of_one_gpu(two: SeveralDevices, tmp_path: Path) -> None:
    path = SHARED[1].write(tmp_path)
    for profile in (None, GpuProfile("fast"), NORMS):
        with LanguageModel.load(path, two.devices[0], profile=profile) as one:
            alone = one.logits(TOKENS), one.generate(TOKENS, max_tokens=40).tokens
        with LanguageModel.load(path, two, profile=profile) as model:
            assert np.array_equal(model.logits(TOKENS), alone[0])
            assert model.generate(TOKENS, max_tokens=40).tokens == alone[1]
