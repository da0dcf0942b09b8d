"""The scheduler over real kernels: answers are those of lone runs by bits, and nothing is lost or kept."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import soak_scheduler
from executor.choice.attention import AttentionChoice
from executor.choice.choice import GpuProfile
from executor.device.protocol import Device
from executor.model.engine import Engine
from executor.model.generation import LanguageModel
from executor.model.row_steps import GraphSize, StepScores, likely_sizes
from executor.model.sampling import Sampler
from executor.model.scheduling.scheduler import Scheduler
from executor.model.scheduling.token_sequence import TokenSequence
from executor.model.step import Draw, Row
from ptxgen.kernels.attention.suited import suited
from ptxgen.kernels.token.argmax import NOT_A_NUMBER
from ptxgen.target import Target
from tests.executor.model.recording import Recording
from tests.synthetic import Q, write_model

VOCABULARY = 512
CONTEXT = 96
ALONE = suited(Target.parse("sm_90"), heads=32, kv_heads=8, head_dim=128, kv_type="f16")
START = [11, 7, 300, 5] * 9
"""What some prompts begin with: a page and a bit."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Iterator[LanguageModel]:
    folder = tmp_path_factory.mktemp("model")
    path = write_model(folder / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=64, context=CONTEXT)
    with LanguageModel.load(path, device, context=CONTEXT, profile=GpuProfile()) as loaded:
        yield loaded


def scheduler(model: LanguageModel, **options: object) -> Scheduler:
    return model.scheduler(context=CONTEXT, rows=8, **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("sequences", [1000])
def test_sequences_that_come_and_go_have_the_bits_of_their_lone_runs(device: Device, tmp_path: Path, sequences: int) -> None:
    """In too small a cache. On a GPU: benchmarks/soak_scheduler.py."""
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=64, vocab=320)
    invariant, context = GpuProfile().with_rules("batch_invariant"), soak_scheduler.CONTEXT
    with LanguageModel.load(path, device, context=context, profile=invariant) as model:
        found = soak_scheduler.soak(model, sequences, slots=3, pages=5, rows=8)
    assert found["wrong"] == []
    assert set(found["finished"]) == {"length", "context", "cancelled", "failed"}
    assert min(found["preemptions"], found["accepted_tokens"]) > 0
    assert min(found["rows_compared"], found["cached_prompt_tokens"]) > sequences


def test_tokens_that_are_drawn_where_the_logits_are_are_those_that_the_host_draws(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside greedy ones, and ones that need the logits, in steps of one row and more."""
    settings: list[dict[str, Any]] = [
        {"temperature": 1.5, "seed": 1},
        {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 2},
        {},
        {"temperature": 1.0, "seed": 2**64 - 1, "presence_penalty": 0.5},
        {"temperature": 1.0, "seed": 3},
    ]
    looked = 0
    logits = StepScores.logits

    def counted(scores: StepScores, index: int) -> NDArray[np.float32]:
        nonlocal looked
        looked += 1
        return logits(scores, index)

    monkeypatch.setattr(StepScores, "logits", counted)

    def answers() -> list[list[int]]:
        with scheduler(model, slots=3) as running:
            requests = [
                running.submit([5 + at, 9, 7], max_tokens=5 + 2 * at, sampler=Sampler(**one), stop_tokens=(),
                               logprobs=0 if at == 4 else None)
                for at, one in enumerate(settings)
            ]  # fmt: skip
            running.run()
            return [request.tokens for request in requests]

    drawn, of_device = answers(), looked
    monkeypatch.setattr(TokenSequence, "is_chosen_on_device", False)
    assert answers() == drawn
    assert of_device == 11 + 13  # of the one with a penalty and the one that wants probabilities
    assert looked - of_device == 5 + 7 + 9 + 11 + 13
    assert len({tuple(tokens[:5]) for tokens in drawn}) == 5


@pytest.mark.slow
def test_a_step_of_a_size_that_there_was_takes_no_memory_however_tokens_are_chosen(model: LanguageModel) -> None:
    with scheduler(model, slots=2) as running:
        engine = running.engine
        assert isinstance(engine, Engine)
        engine.set_table(0, [0])
        rows = [Row(0, 5, 0, True), Row(0, 6, 1, True)]
        engine.step(rows)
        before = model.device.memory().allocated
        bits, draw = np.full(-(-engine.vocab // 32), 2**32 - 1, np.uint32), Draw.of(Sampler(1.0, seed=1))
        assert draw is not None
        for draws, allowed in (({0: draw}, {}), ({}, {1: bits}), ({0: draw}, {0: bits})):
            scores = engine.step(rows)
            scores.draw(draws, allowed)
            scores.chosen()
            assert model.device.memory().allocated == before


def test_what_cannot_be_drawn_fails_as_on_the_host(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with scheduler(model, slots=2) as running:
        good, bad = (running.submit([5, 9, token], max_tokens=4, sampler=Sampler(1.0, seed=1)) for token in (1, 2))
        chosen = StepScores.chosen
        monkeypatch.setattr(StepScores, "chosen", lambda scores: [*chosen(scores)[:-1], NOT_A_NUMBER])
        running.step()
        monkeypatch.undo()
        running.run()
    assert (good.stopped, bad.stopped) == ("length", "failed")
    assert "logits cannot be sampled" in str(bad.error)


def test_what_was_prepared_is_captured_no_more(model: LanguageModel) -> None:
    told: list[tuple[str, int, int]] = []
    with scheduler(model, slots=4) as running:
        engine = running.engine
        assert isinstance(engine, Engine)
        running.prepare(lambda *progress: told.append(progress))
        made = engine.steps.captures
        assert told == [("preparing steps", done, made) for done in range(1, made + 1)]
        assert engine.steps.count == 0
        requests = [running.submit([1, 2, 3, 4, 5, token], max_tokens=9, stop_tokens=()) for token in range(7)]
        running.run()
        assert [len(request.tokens) for request in requests] == [9] * 7
        running.prepare()
        assert engine.steps.captures == made
        in_a_step = running.submit([5], max_tokens=2, on_token=lambda _: running.prepare())
        running.run()
        assert "in the middle of a step" in str(in_a_step.error)


def test_sizes_that_are_likely_are_those_that_steps_take() -> None:
    """Few enough to be captured at a start; with and without tiles."""
    tiles = AttentionChoice(2, 32, 32, ALONE, "")
    for attention in (tiles, replace(tiles, parts=0)):
        sizes = likely_sizes(512, 64, attention)
        assert len(set(sizes)) == len(sizes) <= 60
        for rows, scored, gathered, lone in sizes:
            asked = rows // 2 + 1 if gathered else rows
            alone = lone if attention.tiled(rows) and lone < rows else None
            assert GraphSize.of(asked, scored, lone=alone) == (rows, scored, gathered, lone)


def test_while_all_decode_each_step_is_started_before_the_last_one_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all decode the same for longer than a page, then with one that ends before the other."""
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=2, hidden=64, heads=2, kv_heads=1, ff=96, context=CONTEXT)
    with Recording() as device, LanguageModel.load(path, device, context=CONTEXT, profile=GpuProfile()) as model:

        def answers(ends: Collection[int] = ()) -> list[tuple[list[int], object]]:
            with model.scheduler(context=CONTEXT, rows=2) as running:
                device.order.clear()
                requests = [running.submit([token], max_tokens=36, stop_tokens=ends) for token in (5, 9)]
                running.run()
                return [(request.tokens, request.stopped) for request in requests]

        ahead = answers()
        assert device.order == ["step", *["step", "read"] * 35, "read"]
        free = ahead[0][0]
        end = free[3:4]
        ahead += answers(end)
        monkeypatch.setattr(Engine, "step_ahead", lambda self: None)
        assert [*answers(), *answers(end)] == ahead
        assert device.order == ["step", "read"] * 36
        assert [(len(tokens), stopped) for tokens, stopped in ahead[2:]] == [(free.index(*end), "eos"), (36, "length")]


def test_a_second_turn_computes_only_its_new_tokens(model: LanguageModel) -> None:
    with scheduler(model, slots=1) as running:
        first = running.submit(START, max_tokens=3).result()
        second = running.submit([*START, *first.tokens, 9], max_tokens=2)
        answer = second.result()
        assert second.usage.cached_prompt_tokens == 32
        running.pool.forget()
        assert running.submit([*START, *first.tokens, 9], max_tokens=2).result().tokens == answer.tokens


def test_another_profile_finds_no_pages_of_the_one_before(model: LanguageModel) -> None:
    with scheduler(model, slots=1) as running:
        running.submit(START, max_tokens=1).result()
        model.decoder.profile = GpuProfile("fast")
        try:
            request = running.submit(START, max_tokens=1)
            request.result()
        finally:
            model.decoder.profile = GpuProfile()
        assert request.usage.cached_prompt_tokens == 0


def test_the_cache_of_the_models_own_sequence_goes_back_when_an_engine_is_made_unless_it_has_tokens(
    model: LanguageModel,
) -> None:
    decoder, memory = model.decoder, model.device.memory
    answer = model.generate([1, 2, 3], max_tokens=2, sampler=Sampler())
    own, held = decoder.cache.nbytes, memory().allocated
    with scheduler(model, slots=1):
        assert decoder.cache.nbytes == own > 0
    model.forget()
    with scheduler(model, slots=1) as running:
        assert (decoder.cache.nbytes, decoder.position) == (0, 0)
        assert running.submit([1, 2, 3], max_tokens=2).result().tokens == tuple(answer.tokens)
        running.engine.free()  # type: ignore[attr-defined]
        model.device.synchronize()
        assert memory().allocated <= held - own
        again = model.generate([1, 2, 3], max_tokens=2, sampler=Sampler())
    assert (again.tokens, again.cached_prompt_tokens) == (answer.tokens, 0)
    assert decoder.cache.nbytes == own


def test_outliers_that_are_looked_for_while_the_decoder_rests_leave_it_resting(model: LanguageModel) -> None:
    model.forget()
    with scheduler(model, slots=1) as running:
        model.decoder.profile = GpuProfile("fast")
        try:
            running.submit([1, 2, 3], max_tokens=2).result()
            assert model.decoder.cache.nbytes == 0
        finally:
            model.decoder.profile = GpuProfile()


def test_a_scheduler_that_nobody_holds_gives_its_engine_s_memory_back(model: LanguageModel) -> None:
    model.generate([1, 2, 3], max_tokens=1, sampler=Sampler())
    model.device.synchronize()
    before = model.device.memory().allocated
    for _ in range(2):
        with scheduler(model, slots=1) as running:
            running.submit([1, 2, 3], max_tokens=2).result()
        del running
        model.device.synchronize()
        assert model.device.memory().allocated == before
