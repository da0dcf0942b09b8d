"""Tokens that are drawn on the device are those that the host draws, and nothing shows where they were drawn but the order of
things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.gguf.gguf_file import GgufFile
from executor.model.answer import Generation
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from ptxgen.errors import ArgumentError
from tests.executor.model.recording import Compare, Recording

PROMPT = [5, 77, 301, 12]
CONTEXT = 32
SETTINGS: dict[str, Any] = {"temperature": 1.5, "top_k": 300, "top_p": 0.95, "min_p": 0.01, "seed": 3}


@pytest.fixture
def model(recorded: LanguageModel, recording: Recording) -> LanguageModel:
    recorded.forget()
    recorded.generate(PROMPT, max_tokens=1, sampler=Sampler())
    recorded.forget()
    recording.order.clear()
    return recorded


def generate(model: LanguageModel, sampler: Sampler, count: int = 6, **options: Any) -> Generation:
    return model.generate(PROMPT, max_tokens=count, sampler=sampler, **{"stop_tokens": (), **options})


def left(model: LanguageModel) -> list[object]:
    """What can be seen of a sequence, and what follows in it."""
    decoder = model.decoder
    seen: list[object] = [decoder.position, decoder.argmax(), decoder.logits().tolist()]
    decoder.step()
    return [*seen, decoder.argmax(), decoder.position, decoder.rewind([*PROMPT, *range(100)])]


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        {"temperature": 1.0, "seed": 2**64 - 1},
        {"temperature": 0.7, "top_k": 2, "seed": 0},
        {"temperature": 3.0, "min_p": 0.3, "seed": 1},
        {"temperature": 1.0, "top_p": 0.4, "seed": 2},
    ],
)
def test_the_tokens_are_those_that_the_host_draws(model: LanguageModel, same: Compare, settings: dict[str, Any]) -> None:
    same(lambda: [generate(model, Sampler(**settings)).tokens, left(model)])


def test_each_step_is_started_before_the_token_before_it_was_read(model: LanguageModel, recording: Recording) -> None:
    model.generate([5], max_tokens=4, sampler=Sampler(**SETTINGS), stop_tokens=())
    assert recording.order == ["step", *["step", "read"] * 3, "read"]


def test_a_token_that_ends_the_answer_leaves_nothing_of_the_step_after_it(model: LanguageModel, same: Compare) -> None:
    end = generate(model, Sampler(**SETTINGS)).tokens[3]
    for look in (lambda: None, model.decoder.argmax, lambda: model.decoder.logits().tolist()):
        same(lambda look=look: [generate(model, Sampler(**SETTINGS), stop_tokens=[end]).tokens, look(), left(model)])  # type: ignore[misc]


def test_a_sampler_goes_on_where_the_answer_before_ended(model: LanguageModel, same: Compare) -> None:
    end = generate(model, Sampler(**SETTINGS)).tokens[3]

    def talk() -> object:
        sampler = Sampler(**SETTINGS)
        said = [generate(model, sampler, stop_tokens=[end]).tokens for _ in range(3)]
        return said, sampler.draws

    same(talk)


def test_a_callback_finds_the_sequence_that_it_would_find_without(model: LanguageModel, same: Compare) -> None:
    def watched() -> object:
        seen: list[object] = []
        for look in (model.decoder.argmax, lambda: model.decoder.logits().tolist()):
            generate(model, Sampler(**SETTINGS), on_token=lambda token, look=look: seen.append((token, look())))
        return seen

    same(watched)


def test_an_answer_that_was_broken_off_can_be_drawn_again(model: LanguageModel, same: Compare) -> None:
    def broken() -> object:
        sampler = Sampler(**SETTINGS)

        def on_token(token: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            generate(model, sampler, on_token=on_token)
        return generate(model, sampler).tokens, generate(model, Sampler()).tokens

    same(broken)


def test_after_a_drawn_answer_no_token_is_likeliest_where_none_was_looked_for(model: LanguageModel) -> None:
    generate(model, Sampler(**SETTINGS))
    model.forget()
    with pytest.raises(ArgumentError, match="give a token"):
        model.decoder.step()


def test_logits_with_a_nan_are_named(recorded_path: Path, recording: Recording, tmp_path: Path) -> None:
    with GgufFile.open(recorded_path) as file:
        at = file.tensors["output_norm.weight"].offset
    content = bytearray(recorded_path.read_bytes())
    content[at : at + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "damaged.gguf").write_bytes(content)
    with (
        LanguageModel.load(tmp_path / "damaged.gguf", recording, context=CONTEXT, profile=GpuProfile()) as model,
        pytest.raises(ModelError, match="the logits cannot be sampled: token 0 has nan"),
    ):
        generate(model, Sampler(1.0))


def test_who_watches_launches_sees_a_draw_in_the_place_of_argmax(model: LanguageModel) -> None:
    expected = generate(model, Sampler(**SETTINGS), 3).tokens
    model.forget()
    names: list[str] = []
    model.decoder.launcher.observers.append(lambda record: names.append(record.kernel.name))
    try:
        assert generate(model, Sampler(**SETTINGS), 3).tokens == expected
    finally:
        model.decoder.launcher.observers.clear()
    assert names.count("sample_token") == 3
    assert "argmax" not in names
