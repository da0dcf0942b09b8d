"""A prompt that begins as the sequence before costs its new tokens alone, and is answered as from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.device.emulated import EmulatedDevice
from executor.device.protocol import Device
from executor.model.answer import Generation
from executor.model.decoder import Decoder
from executor.model.generation import LanguageModel
from executor.model.row_steps import RowSteps
from executor.model.sampling import Sampler
from tests.synthetic import Q, write_model

FIRST = [(37 * token + 5) % 512 for token in range(12)]
ANSWER = 4
CONTEXTS = (32, 30)
"""Tokens of a prompt run many at a time in the first, one by one in the second."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", types=Q.Q8_0, layers=2, hidden=64, heads=2, kv_heads=1, ff=96, context=128)


@pytest.fixture(scope="module", params=CONTEXTS)
def loaded(request: pytest.FixtureRequest, path: Path, device: Device) -> Iterator[LanguageModel]:
    with LanguageModel.load(path, device, context=request.param, profile=GpuProfile()) as loaded:
        yield loaded


@pytest.fixture
def model(loaded: LanguageModel) -> LanguageModel:
    """One that knows nothing of the test before."""
    loaded.forget()
    return loaded


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each step of any model had."""
    counts: list[int] = []
    step, run = Decoder.step, RowSteps.run

    def one(self: Decoder, *arguments: Any, **options: Any) -> None:
        step(self, *arguments, **options)
        counts.append(1)

    def many(self: RowSteps, rows: Any, *arguments: Any) -> Any:
        scores = run(self, rows, *arguments)
        counts.append(len(rows))
        return scores

    monkeypatch.setattr(Decoder, "step", one)
    monkeypatch.setattr(RowSteps, "run", many)
    return counts


def generate(model: LanguageModel, prompt: list[int], max_tokens: int = ANSWER, **options: Any) -> Generation:
    return model.generate(prompt, max_tokens=max_tokens, sampler=Sampler(), stop_tokens=(), **options)


def check_answer(model: LanguageModel, prompt: list[int], fed: list[int], cached: int, max_tokens: int = ANSWER) -> list[int]:
    """The answer, after the prompt but for `cached` tokens was fed; it must be that of a new sequence."""
    before = sum(fed)
    made = generate(model, prompt, max_tokens)
    assert (made.cached_prompt_tokens, made.prompt_tokens) == (cached, len(prompt))
    assert sum(fed) - before == len(prompt) - cached + len(made.tokens) - 1
    logits = model.decoder.logits()
    text = prompt + made.tokens
    model.forget()
    anew = generate(model, prompt, max_tokens)
    assert anew.cached_prompt_tokens == 0
    assert anew.tokens == made.tokens
    exact = model.decoder.logits()
    assert np.abs(logits - exact).max() <= 1e-5 * exact.std()
    return text


def test_a_conversation_costs_its_new_tokens(model: LanguageModel, fed: list[int]) -> None:
    text = check_answer(model, FIRST, fed, 0)
    for question in ([7, 8, 9], [11]):  # the last token of an answer was never fed
        text = check_answer(model, text + question, fed, len(text) - 1)


def test_the_same_prompt_again_runs_its_last_token_alone(model: LanguageModel, fed: list[int]) -> None:
    check_answer(model, FIRST, fed, 0)
    check_answer(model, FIRST, fed, len(FIRST) - 1)


def test_an_edited_turn_and_a_shorter_prompt_go_back_to_what_is_common(model: LanguageModel, fed: list[int]) -> None:
    text = check_answer(model, FIRST, fed, 0)
    check_answer(model, [*FIRST[:10], 1, 2, *text[12:]], fed, 10)
    check_answer(model, FIRST[:9], fed, 8)
    check_answer(model, FIRST[:1], fed, 0)
    check_answer(model, FIRST, fed, 1)
    check_answer(model, [500, *FIRST], fed, 0)


def test_two_conversations_by_turns_share_what_they_have_in_common(model: LanguageModel, fed: list[int]) -> None:
    texts = [[*FIRST[:5], 1], [*FIRST[:5], 2]]
    for turn in range(2):
        for which in range(2):
            texts[which] = check_answer(model, texts[which] + [9, turn], fed, 0 if (turn, which) == (0, 0) else 5)


def test_a_full_context_is_reused_as_far_as_it_goes(model: LanguageModel, fed: list[int]) -> None:
    made = generate(model, FIRST, 100)
    assert (made.stopped, model.decoder.position) == ("context", model.context)
    text = FIRST + made.tokens
    check_answer(model, text[: model.context], fed, model.context - 1)
    check_answer(model, text[: model.context - 3], fed, model.context - 4)


@pytest.mark.parametrize("tokens", [1, 3])
def test_after_an_answer_that_was_cut_short_what_had_run_is_known(model: LanguageModel, fed: list[int], tokens: int) -> None:
    seen: list[int] = []

    def cancel(token: int) -> None:
        seen.append(token)
        if len(seen) == tokens:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(model, FIRST, on_token=cancel)
    check_answer(model, [*FIRST, *seen, 1], fed, len(FIRST) + tokens - 1)


@pytest.mark.parametrize("launches", [0, 1, 7, 30, 50])
def test_after_a_step_that_failed_nothing_is_taken_for_known_that_is_not(
    model: LanguageModel, fed: list[int], launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer text in the cache, of which the failed step overwrites something."""
    generate(model, FIRST)
    edited, run, left = FIRST[:6] + [3] * 9, EmulatedDevice._run, [launches]

    def broken(self: EmulatedDevice, *arguments: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        run(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(EmulatedDevice, "_run", broken)
        with pytest.raises(KeyboardInterrupt):
            generate(model, edited)
    known = model.decoder.position
    assert known >= 6
    before = keys_and_values(model)
    check_answer(model, FIRST, fed, 6)
    generate(model, edited[:known])
    assert np.abs(keys_and_values(model)[..., :known, :] - before).max() <= 1e-5


def keys_and_values(model: LanguageModel) -> NDArray[np.float32]:
    """f32[layers, 2, kv_heads, position, head_dim]"""
    layers, length = model.decoder.cache.layers, model.decoder.position
    return np.array([[part.to_numpy()[:, :length] for part in (one.keys, one.values)] for one in layers])


def test_what_another_profile_or_weight_computed_is_not_taken(model: LanguageModel, fed: list[int]) -> None:
    check_answer(model, FIRST, fed, 0)
    model.decoder.profile = GpuProfile(gemv={"q8_0": "q8_0_gemv"})
    try:
        check_answer(model, FIRST[:3], fed, 0)
        check_answer(model, FIRST[:3], fed, 2)
    finally:
        model.decoder.profile = GpuProfile()
    gamma = model.decoder.weights["blk.0.attn_norm.weight"].buffer
    model.decoder.weights.generation += 1
    check_answer(model, FIRST, fed, 0)
    gamma.touch()
    check_answer(model, FIRST, fed, 0)
    check_answer(model, FIRST, fed, len(FIRST) - 1)


def test_tokens_that_were_run_by_hand_are_known_if_the_host_saw_them(model: LanguageModel, fed: list[int]) -> None:
    decoder = model.decoder
    decoder.feed(FIRST[:4])
    decoder.step(FIRST[4])
    decoder.step()
    decoder.step(FIRST[5])
    check_answer(model, FIRST, fed, 5)
    model.logits(FIRST[:3])
    check_answer(model, FIRST, fed, 3)
    decoder.cache.truncate(7)
    check_answer(model, FIRST, fed, 7)
    decoder.reset()
    check_answer(model, FIRST, fed, 0)


def test_forgetting_must_wait_for_the_answer(model: LanguageModel) -> None:
    with pytest.raises(ModelError, match="generating; forgetting must wait"):
        generate(model, FIRST, on_token=lambda token: model.forget())


@pytest.mark.parametrize("context", CONTEXTS)
def test_an_invariant_profile_has_the_bits_of_a_new_sequence(path: Path, device: Device, fed: list[int], context: int) -> None:
    """Those of an answer are computed again where a prompt's tokens run many at a time, for they did not."""
    with LanguageModel.load(path, device, context=context, profile=GpuProfile().with_rules("batch_invariant")) as model:
        text = FIRST[:8]
        for cached in (0, 7 if context == CONTEXTS[0] else 8 + ANSWER - 1):
            made = generate(model, text)
            assert made.cached_prompt_tokens == cached
            logits, kept = model.decoder.logits(), keys_and_values(model)
            model.forget()
            assert generate(model, text).tokens == made.tokens
            np.testing.assert_array_equal(model.decoder.logits(), logits)
            np.testing.assert_array_equal(keys_and_values(model), kept)
            text = text + made.tokens + [7, 8, 9]
