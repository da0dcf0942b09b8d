"""The oracle itself against what others computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.real_models import EXACT_IDS, LLAMA_CPP_IDS, PROMPT_IDS, smollm2_path
from tests.reference_model import F64, ReferenceModel
from tests.synthetic import FORMATS, Q, write_model


class RoundedActivations(ReferenceModel):
    """As llama.cpp on a CPU: activations become int8 with an f16 scale, in blocks of 32, before each product."""

    def linear(self, x: F64, name: str) -> F64:
        blocks = x.reshape(len(x), -1, 32)
        scale = np.abs(blocks).max(axis=-1, keepdims=True) / 127
        codes = np.round(blocks / np.where(scale == 0, 1, scale))
        return super().linear((codes * scale.astype(np.float16)).reshape(x.shape), name)


def greedy(model: ReferenceModel, continuation: tuple[int, ...]) -> list[int]:
    """The largest logit at each place of a continuation, each given the true tokens before it."""
    logits = model.logits([*PROMPT_IDS, *continuation[:-1]])
    return [int(index) for index in logits[len(PROMPT_IDS) - 1 :].argmax(axis=-1)]


@pytest.mark.slow
def test_with_rounded_activations_the_reference_gives_the_ids_that_llama_cpp_gave() -> None:
    assert tuple(greedy(RoundedActivations(smollm2_path()), LLAMA_CPP_IDS)) == LLAMA_CPP_IDS


@pytest.mark.slow
def test_exact_arithmetic_leaves_llama_cpp_only_at_its_near_tie() -> None:
    assert tuple(greedy(ReferenceModel(smollm2_path()), EXACT_IDS)) == EXACT_IDS
    assert greedy(ReferenceModel(smollm2_path()), LLAMA_CPP_IDS)[6:] == list(LLAMA_CPP_IDS[6:])


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_a_token_never_sees_what_comes_after_it(arch: str, tmp_path: Path) -> None:
    model = ReferenceModel(write_model(tmp_path / "m.gguf", arch, layers=2))
    np.testing.assert_allclose(model.logits([5, 6, 7, 8])[:3], model.logits([5, 6, 7])[:3], atol=1e-12)


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_position_matters_and_rope_freqs_change_it(arch: str, tmp_path: Path) -> None:
    plain = ReferenceModel(write_model(tmp_path / "plain.gguf", arch, layers=1)).logits([5, 6, 7, 7])
    scaled = ReferenceModel(write_model(tmp_path / "scaled.gguf", arch, layers=1, rope_freqs=True)).logits([5, 6, 7, 7])
    assert np.abs(plain[2] - plain[3]).max() > 1e-3
    np.testing.assert_allclose(plain[0], scaled[0], atol=1e-12)
    assert np.abs(plain[3] - scaled[3]).max() > 1e-3


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_synthetic_weights_have_the_scale_of_trained_ones(kind: Q, tmp_path: Path) -> None:
    model = ReferenceModel(write_model(tmp_path / "m.gguf", types=kind, layers=1))
    weights = model.weight("blk.0.ffn_gate.weight")
    assert weights.std() * np.sqrt(weights.shape[1]) == pytest.approx(1, abs=0.1)
    assert weights.mean() * np.sqrt(weights.shape[1]) == pytest.approx(0, abs=0.05)
