"""Whole models on the emulator against the float64 reference, and the real model against its recorded text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.device.protocol import Device
from executor.gguf.gguf_file import GgufFile
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from tests.executor.model.variants import TOKENS, VARIANTS, Variant
from tests.paths import GOLDEN
from tests.real_models import EXACT_IDS, LLAMA_CPP_IDS, LOGITS_TOKENS, PROMPT, PROMPT_IDS, gemma3_path, smollm2_path
from tests.reference_model import ReferenceModel
from tests.synthetic import Q, write_model

OUTPUTS = GOLDEN / "outputs"

MIXES: Mapping[str, Mapping[str, Q]] = {
    "IQ3_XXS": {"": Q.IQ3_XXS, "attn_v": Q.IQ4_XS, "attn_output": Q.IQ3_S, "token_embd": Q.IQ3_S, "output": Q.Q5_K},
    "IQ1_M": {"": Q.IQ1_M, "attn_v": Q.IQ1_S, "ffn_down": Q.IQ2_XXS, "token_embd": Q.IQ2_S, "output": Q.Q5_K},
    "TQ1_0": {"": Q.TQ1_0, "ffn_down": Q.TQ2_0, "token_embd": Q.TQ2_0, "output": Q.Q6_K},
    "NVFP4": {"": Q.NVFP4, "token_embd": Q.NVFP4, "output": Q.Q8_0},
    "IQ2_M": {"": Q.IQ2_S, "attn_k": Q.IQ2_XS, "ffn_down": Q.IQ2_XXS, "token_embd": Q.IQ3_S, "output": Q.Q5_K},
}
"""Types as quantisers mix them, of formats of which there is no variant."""
MIX_PROMPT = [1, 500, 7, 7, 311, 42, 9, 260, 3, 77, 12]  # a tile of eight rows, and the rest


@pytest.fixture(scope="module")
def smollm2(device: Device) -> LanguageModel:
    return LanguageModel.load(smollm2_path(), device)


@dataclass(frozen=True)
class Computed:
    """The logits of a small model, and its file."""

    variant: Variant
    path: Path
    logits: NDArray[np.float32]


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def computed(request: pytest.FixtureRequest, device: Device, tmp_path_factory: pytest.TempPathFactory) -> Computed:
    path = request.param.write(tmp_path_factory.mktemp("variant"))
    with LanguageModel.load(path, device) as model:
        return Computed(request.param, path, model.logits(TOKENS))


def test_logits_are_those_of_the_float64_reference(computed: Computed) -> None:
    logits = computed.logits.astype(np.float64)
    exact = ReferenceModel(computed.path).logits(list(TOKENS))
    cosines = (logits * exact).sum(1) / np.linalg.norm(logits, axis=1) / np.linalg.norm(exact, axis=1)
    assert cosines.min() >= 0.999999
    assert np.abs(logits - exact).max() <= 1e-4 * exact.std()


def test_logits_have_the_recorded_bits_of_a_gpu(computed: Computed) -> None:
    recorded = json.loads((OUTPUTS / "model_logits.json").read_text())
    name = computed.variant.name
    assert name in recorded, f"no GPU has recorded {name}: run tests/gpu with --record-models"
    assert sha256(computed.logits.tobytes()).hexdigest() == recorded[name]


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_of_other_formats_has_the_logits_of_float64_and_its_next_token(mix: str, device: Device, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types=MIXES[mix], layers=1, hidden=256, heads=4, ff=512, tied=False)
    exact = ReferenceModel(path).logits(MIX_PROMPT)
    with LanguageModel.load(path, device) as model:
        logits = model.logits(MIX_PROMPT).astype(np.float64)
        made = model.generate(MIX_PROMPT, max_tokens=2, sampler=Sampler())
    assert np.abs(logits - exact).max() <= 1e-4 * exact.std()
    assert made.tokens[0] == int(exact[-1].argmax())


@pytest.mark.slow
def test_smollm2_prompt_has_the_known_ids(smollm2: LanguageModel) -> None:
    assert tuple(smollm2.tokenizer.encode(PROMPT)) == PROMPT_IDS


@pytest.mark.slow
def test_smollm2_continues_as_exact_arithmetic_does(smollm2: LanguageModel) -> None:
    made = smollm2.generate(PROMPT_IDS, max_tokens=len(EXACT_IDS), sampler=Sampler())
    assert tuple(made.tokens) == EXACT_IDS
    assert made.stopped == "length"


@pytest.mark.slow
def test_smollm2_at_the_fast_precision_is_saved_by_the_routing_of_outliers(device: Device) -> None:
    """Without it the ids are llama.cpp's, which also rounds activations to int8 in blocks of 32."""
    with LanguageModel.load(smollm2_path(), device, context=64, profile=GpuProfile("fast")) as model:
        routed = model.generate(PROMPT_IDS, max_tokens=len(EXACT_IDS), sampler=Sampler())
        model.decoder.flagged = frozenset()
        unrouted = model.generate(PROMPT_IDS, max_tokens=len(EXACT_IDS), sampler=Sampler())
    assert tuple(routed.tokens) == EXACT_IDS
    assert tuple(unrouted.tokens) == LLAMA_CPP_IDS


@pytest.mark.slow
def test_smollm2_logits_have_the_recorded_bits_of_a_gpu_at_64_positions(smollm2: LanguageModel) -> None:
    recorded = json.loads((OUTPUTS / "model_logits.json").read_text())["SmolLM2-135M-Instruct.Q4_1"]
    assert [sha256(row.tobytes()).hexdigest() for row in smollm2.logits(LOGITS_TOKENS)] == recorded


@pytest.mark.slow
def test_a_model_is_sanitiser_clean_for_three_tokens(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen3", {"": Q.Q4_K, "ffn_down": Q.Q6_K}, layers=1)
    with open_device("emulator", sanitize=True) as device:
        LanguageModel.load(path, device, context=16).generate([1, 2], max_tokens=2, sampler=Sampler())


def test_a_new_sequence_does_not_see_the_last_one(device: Device, tmp_path: Path) -> None:
    model = LanguageModel.load(write_model(tmp_path / "m.gguf", layers=2), device)
    first = model.logits([5, 6, 7])
    model.logits([9, 9, 9, 9, 9])
    assert np.array_equal(model.logits([5, 6, 7]), first)


def test_generation_ends_where_the_context_does(device: Device, tmp_path: Path) -> None:
    model = LanguageModel.load(write_model(tmp_path / "m.gguf", layers=1), device, context=6)
    made = model.generate([1, 2, 3], max_tokens=100, sampler=Sampler())
    assert made.stopped == "context"
    assert len(made.tokens) == 4  # three more positions hold tokens, and the last of them still gives one


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_damaged_weights_are_an_error_and_no_token(temperature: float, device: Device, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", layers=1)
    with GgufFile.open(path) as file:
        at = file.tensors["output_norm.weight"].offset
    content = bytearray(path.read_bytes())
    content[at : at + 4] = np.float32(np.nan).tobytes()
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"logits .*(nan|NaN)"):
        LanguageModel.load(path, device).generate([1], max_tokens=1, sampler=Sampler(temperature=temperature, seed=1))


def test_the_end_of_the_text_ends_generation_unless_told_otherwise(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LanguageModel.load(write_model(tmp_path / "m.gguf", layers=1), device)
    free = model.generate([1, 2, 3], max_tokens=5, sampler=Sampler(), stop_tokens=())
    monkeypatch.setattr(model.tokenizer, "eos_ids", frozenset({free.tokens[2]}))
    made = model.generate([1, 2, 3], max_tokens=5, sampler=Sampler())
    assert (made.stopped, made.tokens) == ("eos", free.tokens[: free.tokens.index(free.tokens[2])])
    told = model.generate([1, 2, 3], max_tokens=5, sampler=Sampler(), stop_tokens=())
    assert (told.stopped, told.tokens) == ("length", free.tokens)


def test_a_stop_token_ends_generation_and_is_left_out(device: Device, tmp_path: Path) -> None:
    model = LanguageModel.load(write_model(tmp_path / "m.gguf", layers=1), device)
    seen: list[int] = []
    free = model.generate([1, 2, 3], max_tokens=5, sampler=Sampler())
    made = model.generate([1, 2, 3], max_tokens=5, sampler=Sampler(), stop_tokens={free.tokens[2]}, on_token=seen.append)
    cut = free.tokens.index(free.tokens[2])
    assert made.stopped == "eos"
    assert made.tokens == seen == free.tokens[:cut]


@pytest.mark.slow
def test_gemma3_270m_continues_for_64_tokens_as_float64_does(device: Device) -> None:
    with LanguageModel.load(gemma3_path(), device) as model:
        prompt = model.tokenizer.encode(PROMPT)
        answer = model.generate(prompt, max_tokens=64, sampler=Sampler(), stop_tokens=())
    exact = ReferenceModel(gemma3_path()).logits([*prompt, *answer.tokens[:-1]])
    assert list(answer.tokens) == exact[len(prompt) - 1 :].argmax(1).tolist()
