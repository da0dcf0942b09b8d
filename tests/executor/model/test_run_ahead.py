"""Greedy decoding starts the next step before the last token was read, and nothing shows that but the order of things."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.device.emulated import EmulatedDevice
from executor.gguf.gguf_file import GgufFile
from executor.model.answer import Generation
from executor.model.decoder import Decoder
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from ptxgen.errors import ArgumentError
from ptxgen.kernels.token.argmax import NOT_A_NUMBER
from tests.executor.model.recording import Recording

PROMPT = [5, 77, 301, 12]
CONTEXT = 32


@pytest.fixture
def model(recorded: LanguageModel, recording: Recording) -> LanguageModel:
    """One that knows nothing of the test before."""
    recorded.forget()
    recorded.generate(PROMPT, max_tokens=2, sampler=Sampler())
    recorded.forget()
    recording.order.clear()
    return recorded


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Calls something while each token is waited for."""

    def call(something: Callable[[], Any]) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "run_ahead", lambda self: None)
            return something()

    return call


def generate(model: LanguageModel, prompt: list[int] = PROMPT, count: int = 6, **options: Any) -> Generation:
    return model.generate(prompt, max_tokens=count, sampler=Sampler(), **{"stop_tokens": (), **options})


def left(model: LanguageModel) -> dict[str, Any]:
    """What can be seen of a sequence, and what follows in it."""
    decoder = model.decoder
    seen: dict[str, Any] = {"position": decoder.position, "argmax": decoder.argmax(), "logits": decoder.logits().tolist()}
    if decoder.position < decoder.context:
        decoder.step()
        seen |= {"next": decoder.argmax(), "next logits": decoder.logits().tolist()}
    known = decoder.rewind([*PROMPT, *range(100)])
    return {**seen, "known": known}


def test_each_step_is_started_before_the_token_before_it_was_read(model: LanguageModel, recording: Recording) -> None:
    generate(model, [5], 4)
    assert recording.order == ["step", *["step", "read"] * 3, "read"]


@pytest.mark.parametrize("count", [1, 2, 6, 100])
def test_an_answer_that_ends_by_its_length_or_the_context_starts_no_step_too_many(
    model: LanguageModel, recording: Recording, plainly: Callable[..., Any], count: int
) -> None:
    made, after = generate(model, count=count), left(model)
    steps = recording.order.count("step")
    recording.order.clear()
    model.forget()
    plain = plainly(lambda: generate(model, count=count))
    assert (made.tokens, made.stopped, after) == (plain.tokens, plain.stopped, left(model))
    assert recording.order.count("step") == steps


@pytest.mark.parametrize("look", ["", "argmax", "logits", "step", "verify", "feed"])
def test_a_token_that_ends_the_answer_leaves_nothing_of_the_step_after_it(
    model: LanguageModel, recording: Recording, plainly: Callable[..., Any], look: str
) -> None:
    """Whatever is looked at first."""
    end = generate(model).tokens[3]

    def answer() -> tuple[int, list[object]]:
        model.forget()
        recording.order.clear()
        made, decoder = generate(model, stop_tokens=[end]), model.decoder
        steps = recording.order.count("step")
        first: object = None
        if look == "argmax":
            first = decoder.argmax()
        elif look == "step":
            decoder.step(9)
        elif look == "verify":
            first = decoder.verify_draft([end, 3])
        elif look == "feed":
            decoder.feed([4, 5])
            decoder.step(6)
        if look:
            first = first, decoder.logits().tolist()
        return steps, [made.tokens, made.stopped, first, left(model)]

    ahead, seen = answer()
    plain, expected = plainly(answer)
    assert seen == expected
    assert (seen[1], ahead) == ("eos", plain + 1)


def test_a_conversation_goes_on_after_an_answer_that_ended_early(model: LanguageModel, plainly: Callable[..., Any]) -> None:
    end = generate(model).tokens[3]

    def talk() -> list[object]:
        model.forget()
        text, said = list(PROMPT), list[object]()
        for question in ([7, 8], [9], [10, 11, 12]):
            made = generate(model, text, stop_tokens=[end])
            said.append((made.tokens, made.stopped, made.cached_prompt_tokens))
            text += made.tokens + question
        return said

    assert talk() == plainly(talk)


def test_a_callback_finds_the_sequence_that_it_would_find_without(model: LanguageModel, plainly: Callable[..., Any]) -> None:
    def watched() -> list[object]:
        model.forget()
        seen: list[object] = []
        generate(model, on_token=lambda token: seen.append((token, model.decoder.position, model.decoder.argmax())))
        generate(model, [9, 8], on_token=lambda token: seen.append((token, model.decoder.logits().tolist())))
        return seen

    assert watched() == plainly(watched)


def change_profile(decoder: Decoder) -> None:
    decoder.profile = GpuProfile(gemv={"q8_0": "q8_0_gemv"})


def grow_workspace(decoder: Decoder) -> None:
    decoder.workspace.buffer("normed", (decoder.workspace.buffer("normed", (1,)).allocation.nbytes // 4 + 64,))


def write_a_weight(decoder: Decoder) -> None:
    buffer = decoder.weights["output_norm.weight"].buffer
    buffer.upload(-buffer.to_numpy())  # as it was after two


def run_another_sequence(decoder: Decoder) -> None:
    with decoder.cache.set_aside(decoder.context), decoder.beside(decoder.profile) as other:
        other.feed(range(20, 40))


@pytest.mark.parametrize("change", [change_profile, grow_workspace, write_a_weight, run_another_sequence])
def test_a_callback_may_change_what_the_next_step_runs_on(
    model: LanguageModel, plainly: Callable[..., Any], change: Callable[[Decoder], None]
) -> None:
    def changing() -> object:
        model.forget()
        model.decoder.profile = GpuProfile()
        made = generate(model, on_token=lambda token: change(model.decoder))
        cached = generate(model, [*PROMPT, *made.tokens, 1]).cached_prompt_tokens
        return made.tokens, cached, left(model)

    try:
        assert changing() == plainly(changing)
    finally:
        model.decoder.profile = GpuProfile()


@pytest.mark.parametrize("launches", [0, 3, 8])
def test_ctrl_c_in_a_step_ahead_leaves_the_sequence_before_it(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, launches: int
) -> None:
    expected = generate(model, count=3)
    after = left(model)
    model.forget()
    run, broken, seen = EmulatedDevice._run, [-1], list[int]()

    def breaking(self: EmulatedDevice, *arguments: Any) -> None:
        if not broken[0]:
            broken[0] = -1
            raise KeyboardInterrupt
        broken[0] -= 1
        run(self, *arguments)

    def on_token(token: int) -> None:
        seen.append(token)
        if len(seen) == 2:  # the step after it runs already; break the one after that
            broken[0] = launches

    monkeypatch.setattr(EmulatedDevice, "_run", breaking)
    with pytest.raises(KeyboardInterrupt):
        generate(model, on_token=on_token)
    assert seen == expected.tokens[:2]
    assert left(model) == after


def test_logits_with_a_nan_say_so_with_a_step_ahead_of_them(recorded_path: Path, recording: Recording, tmp_path: Path) -> None:
    with GgufFile.open(recorded_path) as file:
        at = file.tensors["output_norm.weight"].offset
    content = bytearray(recorded_path.read_bytes())
    content[at : at + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "damaged.gguf").write_bytes(content)
    with LanguageModel.load(tmp_path / "damaged.gguf", recording, context=CONTEXT) as model:
        recording.order.clear()
        with pytest.raises(ModelError, match="the logits hold NaN"):
            generate(model, [5])
        assert recording.order == ["step", "step", "read"]
        assert (model.decoder.position, model.decoder.argmax()) == (1, NOT_A_NUMBER)
        assert np.isnan(model.decoder.logits()).any()


def test_logits_that_are_gone_are_not_given(model: LanguageModel) -> None:
    end = generate(model).tokens[3]
    model.forget()
    generate(model, stop_tokens=[end])
    model.forget()
    with pytest.raises(ModelError, match="overwritten by a step that does not count"):
        model.decoder.logits()
    model.decoder.feed([1, 2])
    for look in (model.decoder.logits, model.decoder.argmax):
        with pytest.raises(ModelError, match="overwritten by a step that does not count"):
            look()
    with pytest.raises(ArgumentError, match="give a token"):
        model.decoder.step()
    model.decoder.step(3)
    assert int(model.decoder.logits().argmax()) == model.decoder.argmax()


def test_what_watches_launches_sees_them_in_their_plain_order(
    model: LanguageModel, recording: Recording, recorded_path: Path
) -> None:
    model.decoder.launcher.observers.append(lambda record: None)
    try:
        generate(model, [5], 3)
        assert recording.order == ["read"] * 3
    finally:
        model.decoder.launcher.observers.clear()
    with Recording(sanitize=True) as checking, LanguageModel.load(recorded_path, checking, context=CONTEXT) as checked:
        checking.order.clear()
        generate(checked, [5], 3)
        assert checking.order == ["step", "read"] * 3


def test_a_step_ahead_runs_again_for_what_watches_launches_by_now(model: LanguageModel) -> None:
    end = generate(model).tokens[3]
    model.forget()
    generate(model, stop_tokens=[end])
    seen: list[object] = []
    model.decoder.launcher.observers.append(seen.append)
    try:
        model.decoder.step()
    finally:
        model.decoder.launcher.observers.clear()
    assert len(seen) > 10


def test_a_draft_is_not_run_again_for_its_logits(model: LanguageModel, plainly: Callable[..., Any]) -> None:
    """Other kernels have run it, whose last bits are others."""

    def verified() -> tuple[list[int], list[float]]:
        model.forget()
        generate(model, count=1)
        decoder = model.decoder
        taken = decoder.verify_draft([decoder.argmax()])
        decoder.run_ahead()
        return taken, decoder.logits().tolist()

    assert verified() == plainly(verified)
    assert verified()[0]
