"""Tokens that a grammar allows are chosen where the logits are: those that the host chooses, and nothing shows where but the
order of things."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.gguf.gguf_file import GgufFile
from executor.model.answer import Generation
from executor.model.generation import LanguageModel
from executor.model.row_steps import StepScores
from executor.model.sampling import Sampler
from executor.model.scheduling.token_sequence import TokenSequence
from executor.text.grammar import Grammar
from ptxgen.errors import ArgumentError
from tests.executor.model.recording import Compare, Recording
from tests.synthetic import Q, write_model

PROMPT = [5, 77, 301, 12]
CONTEXT = 64
LETTERS = Grammar.regex("[a-z ]{12}")
SETTINGS: list[dict[str, Any]] = [{}, {"temperature": 1.5, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "seed": 3}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(
        folder / "m.gguf", types=Q.Q8_0, tokenizer="gpt2", layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=CONTEXT
    )


@pytest.fixture(scope="module")
def loaded(path: Path, recording: Recording) -> Iterator[LanguageModel]:
    with LanguageModel.load(path, recording, context=CONTEXT, profile=GpuProfile()) as model:
        yield model


@pytest.fixture
def model(loaded: LanguageModel, recording: Recording) -> LanguageModel:
    """One that knows nothing of the test before."""
    loaded.forget()
    for settings in SETTINGS:  # captures, which are steps, too
        generate(loaded, Sampler(**settings), 2)
    loaded.forget()
    recording.order.clear()
    return loaded


def generate(model: LanguageModel, sampler: Sampler, count: int = 6, **options: Any) -> Generation:
    return model.generate(PROMPT, max_tokens=count, sampler=sampler, **{"stop_tokens": (), "grammar": LETTERS, **options})


def left(model: LanguageModel) -> list[object]:
    """What can be seen of a sequence, and what follows in it."""
    decoder = model.decoder
    seen: list[object] = [decoder.position, decoder.argmax(), decoder.logits().tolist()]
    decoder.step()
    return [*seen, decoder.argmax(), decoder.position, decoder.rewind([*PROMPT, *range(100)])]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("count", [4, 40])
def test_the_tokens_are_those_that_the_host_chooses(
    model: LanguageModel, same: Compare, settings: dict[str, Any], count: int
) -> None:
    def answer() -> object:
        sampler = Sampler(**settings)
        made = generate(model, sampler, count)
        return made.tokens, made.text, made.stopped, sampler.draws, left(model)

    same(answer)
    assert (
        generate(model, Sampler(**settings), count).tokens != generate(model, Sampler(**settings), count, grammar=None).tokens
    )


@pytest.mark.parametrize("settings", SETTINGS)
def test_each_step_is_started_before_the_token_before_it_was_read(
    model: LanguageModel, recording: Recording, settings: dict[str, Any]
) -> None:
    model.generate([5], max_tokens=4, sampler=Sampler(**settings), stop_tokens=(), grammar=LETTERS)
    assert recording.order == ["step", *["step", "read"] * 3, "read"]


def test_an_answer_that_its_grammar_ends_leaves_nothing_of_the_step_after_it(model: LanguageModel, same: Compare) -> None:
    for look in (lambda: None, model.decoder.argmax, lambda: model.decoder.logits().tolist()):
        same(lambda look=look: [generate(model, Sampler(), 40).stopped, look(), left(model)])  # type: ignore[misc]
    assert generate(model, Sampler(), 40).stopped == "grammar"


def test_a_callback_finds_the_sequence_that_it_would_find_without(model: LanguageModel, same: Compare) -> None:
    def watched() -> object:
        seen: list[object] = []
        for look in (model.decoder.argmax, lambda: model.decoder.logits().tolist()):
            generate(model, Sampler(), on_token=lambda token, look=look: seen.append((token, look())))
        return seen

    same(watched)


def test_after_it_the_likeliest_token_is_that_of_the_logits(model: LanguageModel) -> None:
    for count in (3, 40):
        model.forget()
        generate(model, Sampler(), count)
        assert model.decoder.argmax() == int(np.argmax(model.decoder.logits()))


def test_a_token_is_chosen_after_a_step_with_a_head_alone(model: LanguageModel) -> None:
    decoder = model.decoder
    allowed = np.full(-(-model.spec.vocab // 32), 0xFFFFFFFF, np.uint32)
    with decoder.choosing():
        decoder.step(5, head=False)
        with pytest.raises(ArgumentError, match="no step with a head has just left logits for position 1"):
            decoder.choose(allowed, None)
        decoder.step(5)
        decoder.choose(allowed, None)
        assert decoder.chosen() == int(np.argmax(decoder.logits()))
        decoder.run_ahead()
        with pytest.raises(ArgumentError, match="no step with a head has just left logits for position 2"):
            decoder.choose(allowed, None)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
def test_logits_with_a_nan_are_named(
    path: Path, recording: Recording, tmp_path: Path, settings: dict[str, Any]
) -> None:  # fmt: skip
    with GgufFile.open(path) as file:
        at = file.tensors["output_norm.weight"].offset
    content = bytearray(path.read_bytes())
    content[at : at + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "damaged.gguf").write_bytes(content)
    with LanguageModel.load(tmp_path / "damaged.gguf", recording, context=CONTEXT, profile=GpuProfile()) as model:
        with pytest.raises(ModelError, match="the logits cannot be sampled: token 0 has nan"):
            generate(model, Sampler(**settings))
        with model.scheduler(slots=1, context=CONTEXT) as scheduler:
            request = scheduler.submit(PROMPT, max_tokens=4, grammar=LETTERS, sampler=Sampler(**settings))
            with pytest.raises(ModelError, match="the logits cannot be sampled"):
                request.result()


def test_who_watches_launches_sees_the_choice_after_argmax(model: LanguageModel) -> None:
    expected = generate(model, Sampler(), 3).tokens
    model.forget()
    names: list[str] = []
    model.decoder.launcher.observers.append(lambda record: names.append(record.kernel.name))
    try:
        assert generate(model, Sampler(), 3).tokens == expected
    finally:
        model.decoder.launcher.observers.clear()
    assert [name for name in names if "argmax" in name] == ["argmax", "batched_allowed_argmax"] * 3


def test_among_others_they_are_those_that_the_host_chooses_in_steps_ahead(
    model: LanguageModel, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy and drawn ones, with a grammar and without, of which some end before others; no logits leave the device."""

    def answers() -> list[tuple[list[int], object]]:
        with model.scheduler(slots=4, context=CONTEXT, rows=8) as scheduler:
            requests = [
                scheduler.submit([5 + at, 9], max_tokens=12, stop_tokens=(), sampler=Sampler(**settings), grammar=grammar)
                for at, (settings, grammar) in enumerate(
                    (settings, grammar) for settings in SETTINGS for grammar in (None, Grammar.regex("[a-z]{7}x?"))
                )
            ]
            recording.order.clear()
            scheduler.run()
            return [(request.tokens, request.stopped) for request in requests]

    def refuse(scores: StepScores, index: int) -> Any:
        raise AssertionError("the logits were read")

    with monkeypatch.context() as patch:
        patch.setattr(StepScores, "logits", refuse)
        chosen = answers()
    assert recording.order[:8] == ["step", "read", *["step"] * 2, *["read", "step"] * 2]
    monkeypatch.setattr(TokenSequence, "is_chosen_on_device", False)
    assert answers() == chosen
    assert {stopped for _, stopped in chosen} == {"length", "grammar"}
