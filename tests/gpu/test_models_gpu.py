"""Whole models on a GPU: the bits of the emulator, the float64 reference, the recorded text of the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from executor.device import open_device
from executor.device.protocol import Device
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from tests.executor.model.variants import TOKENS, VARIANTS, Variant
from tests.real_models import EXACT_IDS, LOGITS_TOKENS, PROMPT_IDS, smollm2_path
from tests.reference_model import ReferenceModel

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def emulator() -> Iterator[Device]:
    with open_device("emulator") as opened:
        yield opened


@pytest.fixture(scope="session")
def record(pytestconfig: pytest.Config) -> Iterator[dict[str, object]]:
    """What the GPU gave; written to the folder of --record-models, for CI to hold the emulator against. Models that did not run
    keep what was recorded there."""
    found: dict[str, object] = {}
    yield found
    folder = pytestconfig.getoption("--record-models")
    if folder:
        path = Path(folder) / "model_logits.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | found, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_gpu_logits_are_right_and_have_the_bits_of_the_emulator(
    variant: Variant, gpu: Device, emulator: Device, record: dict[str, object], tmp_path: Path
) -> None:
    path = variant.write(tmp_path)
    logits = LanguageModel.load(path, gpu).logits(TOKENS)
    record[variant.name] = sha256(logits.tobytes()).hexdigest()
    exact = ReferenceModel(path).logits(list(TOKENS))
    cosines = (logits * exact).sum(1) / np.linalg.norm(logits, axis=1) / np.linalg.norm(exact, axis=1)
    assert cosines.min() >= 0.999999
    assert np.abs(logits - exact).max() <= 1e-4 * exact.std()
    assert np.array_equal(logits.view(np.uint32), LanguageModel.load(path, emulator).logits(TOKENS).view(np.uint32))


def test_smollm2_has_the_bits_of_the_emulator_at_64_positions(
    gpu: Device, emulator: Device, record: dict[str, object]
) -> None:  # fmt: skip
    logits = LanguageModel.load(smollm2_path(), gpu).logits(LOGITS_TOKENS)
    record["SmolLM2-135M-Instruct.Q4_1"] = [sha256(row.tobytes()).hexdigest() for row in logits]
    assert np.array_equal(
        logits.view(np.uint32), LanguageModel.load(smollm2_path(), emulator).logits(LOGITS_TOKENS).view(np.uint32)
    )


def test_smollm2_continues_on_the_gpu_as_on_the_emulator(gpu: Device) -> None:
    model = LanguageModel.load(smollm2_path(), gpu)
    assert tuple(model.generate(PROMPT_IDS, max_tokens=len(EXACT_IDS), sampler=Sampler()).tokens) == EXACT_IDS
