"""Steps of many rows on a GPU: the bits of the emulator, whatever is in the step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executor.choice.choice import GpuProfile
from executor.device.protocol import Device
from executor.model.decoder import Decoder
from executor.model.engine import Engine
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from executor.model.scheduling.token_sequence import TokenSequence
from executor.text.grammar import Grammar
from tests.executor.model.mixture import MIXED_VARIANTS, RECORDED, digest, mixed_logits
from tests.executor.model.variants import VARIANTS, Variant
from tests.synthetic import Q, write_model

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
    with LanguageModel.load(VARIANTS[-1].write(tmp_path), gpu, profile=GpuProfile().with_rules("batch_invariant")) as model:

        def answers() -> list[list[int]]:
            with model.scheduler(slots=4, context=96, rows=8) as running:
                requests = [running.submit([5 + at, 9], max_tokens=20 + 20 * at, stop_tokens=()) for at in range(3)]
                requests.append(running.submit([7, 9], max_tokens=60, stop_tokens=requests[0].result().tokens[-3:]))
                running.run()
                return [request.tokens for request in requests]

        ahead = answers()
        monkeypatch.setattr(Engine, "step_ahead", lambda self: None)
        assert answers() == ahead


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "top_k": 30, "seed": 3}])
def test_what_a_grammar_allowed_was_chosen_as_the_host_chooses(
    settings: dict[str, Any], gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and among others, one of them without a grammar; with the bits of many rows, which go through pinned memory."""
    shape: dict[str, Any] = {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 96}
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, tokenizer="gpt2", vocab=40_000, **shape)
    letters = Grammar.regex("[a-z ]{9,60}")
    with LanguageModel.load(path, gpu, profile=GpuProfile().with_rules("batch_invariant")) as model:

        def answers() -> list[list[int]]:
            model.forget()
            alone = model.generate([5, 9], max_tokens=30, grammar=letters, sampler=Sampler(**settings), stop_tokens=())
            with model.scheduler(slots=16, context=96, rows=16) as running:
                requests = [
                    running.submit(
                        [5 + at, 9], max_tokens=10 + at, grammar=letters if at else None, sampler=Sampler(**settings),
                        stop_tokens=(),
                    )
                    for at in range(16)
                ]  # fmt: skip
                running.run()
                return [alone.tokens, *(request.tokens for request in requests)]

        chosen = answers()
        monkeypatch.setattr(Decoder, "can_draw", property(lambda self: False))
        monkeypatch.setattr(TokenSequence, "is_chosen_on_device", False)
        assert answers() == chosen
