"""A layer with a window keeps what it sees: the bits of a cache that keeps all, whatever was run, drafted and taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from executor.choice.choice import GpuProfile
from executor.device import Device
from executor.device.emulated import EmulatedDevice
from executor.memory.kv_cache import KvCache
from executor.model import context
from executor.model.decode_profile import profile_decoding
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from executor.model.scheduling.prompt_lookup import PromptLookup
from executor.model.scheduling.scheduler import Scheduler
from executor.model.step import Row
from ptxgen.errors import ArgumentError
from tests.synthetic import Q, write_model

WINDOW: Final = 20
STEP: Final = 24
ROWS: Final = 64
"""Of a ring: window and step in whole tiles, so that steps are longer than STEP."""
CONTEXT: Final = 224
TEXT: Final = [(37 * place + 5) % 512 for place in range(CONTEXT)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every other layer sees all positions."""
    keys = {"gemma3.attention.sliding_window": WINDOW, "gemma3.attention.sliding_window_pattern": 2}
    sizes: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 64, "ff": 96, "context": CONTEXT}
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", "gemma3", Q.Q8_0, metadata=keys, **sizes)


def load(path: Path, device: Device, *, rings: bool = True) -> LanguageModel:
    """With rings for steps of STEP rows, or with a cache that keeps all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "CHUNK", STEP if rings else CONTEXT)
        return LanguageModel.load(path, device, profile=GpuProfile())


@pytest.fixture(scope="module")
def both(path: Path, device: Device) -> Iterator[tuple[LanguageModel, LanguageModel]]:
    """The model with rings, and with all positions."""
    with load(path, device) as rings, load(path, device, rings=False) as whole:
        assert [layer.ring for layer in rings.decoder.cache.layers] == [ROWS, None]
        assert [layer.ring for layer in whole.decoder.cache.layers] == [None, None]
        yield rings, whole


def same(rings: LanguageModel, whole: LanguageModel) -> None:
    assert rings.decoder.position == whole.decoder.position
    np.testing.assert_array_equal(rings.decoder.logits(), whole.decoder.logits())


@pytest.mark.slow
def test_tokens_one_by_one_have_the_bits_of_a_cache_that_keeps_all(both: tuple[LanguageModel, LanguageModel]) -> None:
    for model in both:
        model.forget()
    for place, token in enumerate(TEXT[: 2 * ROWS + 10]):
        for model in both:
            model.decoder.step(token, head=place % 13 == 0)
        if place % 13 == 0:
            same(*both)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_run_and_taken_back_has_the_bits_of_a_cache_that_keeps_all(
    both: tuple[LanguageModel, LanguageModel], seed: int
) -> None:
    """Prompts in steps, tokens, steps ahead, drafts, another sequence in between, and beginnings of every length kept."""
    rng, kept, lost = np.random.default_rng(seed), 0, 0
    for model in both:
        model.forget()
    text: list[int] = []
    for _ in range(24):
        decoders = [model.decoder for model in both]
        room = CONTEXT - len(text)
        if room < 40 or (text and rng.random() < 0.3):
            length = int(rng.integers(max(0, len(text) - 90), len(text)))
            found = [decoder.rewind(text[:length]) for decoder in decoders]
            assert found[1] == length
            assert found[0] in (0, length)
            kept, lost = kept + (found[0] == length > 0), lost + (found[0] < length)
            if found[0] < length:
                decoders[1].reset()
            text = text[: found[0]]
        fed = [int(token) for token in rng.integers(512, size=int(rng.integers(1, 40)))][: CONTEXT - len(text) - 10]
        for decoder in decoders:
            decoder.feed(fed[:-1])
            decoder.step(fed[-1])
        text += fed
        if rng.random() < 0.5:
            draft = [decoders[1].argmax(), *(int(token) for token in rng.integers(512, size=3))]
            taken = [decoder.verify_draft(draft) for decoder in decoders]
            assert taken[0] == taken[1]
            text += taken[0]
        elif rng.random() < 0.5:
            token = decoders[1].argmax()
            for decoder in decoders:
                decoder.run_ahead()
                decoder.step()
                decoder.run_ahead()
            text.append(token)
        else:
            for decoder in decoders:
                with decoder.cache.set_aside(30), decoder.beside(GpuProfile()) as other:
                    other.feed(fed[:30])
        same(*both)
    assert kept
    assert lost


@pytest.mark.slow
def test_a_conversation_is_answered_as_from_scratch(both: tuple[LanguageModel, LanguageModel]) -> None:
    model, _ = both
    model.forget()
    text, cached = TEXT[:90], []
    for turn in ([], [1, 2, 3], [4]):
        made = model.generate(text + turn, max_tokens=5, sampler=Sampler(), stop_tokens=())
        cached.append(made.cached_prompt_tokens)
        text = text + turn + made.tokens
        logits = model.decoder.logits()
        model.forget()
        assert model.generate(text[: -len(made.tokens)], max_tokens=5, sampler=Sampler(), stop_tokens=()).tokens == made.tokens
        assert np.abs(model.decoder.logits() - logits).max() <= 1e-5 * logits.std()
    assert cached == [0, 94, 102]
    made = model.generate([*text[:50], 9], max_tokens=1, sampler=Sampler(), stop_tokens=())
    assert made.cached_prompt_tokens == 0  # what position 50 sees is gone


@pytest.mark.slow
def test_rings_are_clean_under_the_sanitiser(path: Path) -> None:
    with EmulatedDevice(sanitize=True) as device, load(path, device) as model:
        decoder = model.decoder
        decoder.feed(TEXT[: 2 * ROWS + 32])
        decoder.step(TEXT[0])
        assert np.isfinite(model.decoder.logits()).all()


def test_a_cache_is_cut_only_where_its_windows_are_whole(device: Device) -> None:
    cache = KvCache(device, 2, 1, 32, 1000, windows=[None, WINDOW], step=STEP)
    assert [layer.keys.shape[1] for layer in cache.layers] == [1000, ROWS]
    assert (cache.step, cache.pages) == (ROWS - WINDOW, 16)
    with pytest.raises(ArgumentError, match="at most 44 positions are filled at a time, got 45"):
        cache.advance(45)
    for _ in range(5):
        cache.advance(40)
    first = 200 + 1 - ROWS + WINDOW - 1  # sees the oldest position that is left, should one more have been written
    assert [cache.kept(length) for length in (first - 1, first, 200)] == [0, first, 200]
    with pytest.raises(ArgumentError, match="the next one after the first 155 sees others"):
        cache.truncate(first - 1)
    cache.truncate(first)
    assert (cache.length, cache.kept(first - 1)) == (first, 0)
    cache.truncate(0)
    cache.advance(30)
    assert cache.kept(1) == 1


def test_a_step_is_as_long_as_the_rings_allow(both: tuple[LanguageModel, LanguageModel]) -> None:
    assert [model.decoder.chunk for model in both] == [ROWS - WINDOW, CONTEXT]
    with pytest.raises(ArgumentError, match="at most 42 steps can be profiled: layers with a window forget others"):
        profile_decoding(both[0].decoder, 1, 43)


def test_a_cache_that_grows_gets_rings(device: Device) -> None:
    cache = KvCache(device, 1, 2, 32, 50, windows=[WINDOW], step=STEP)
    cache.advance(40)
    before = np.arange(2 * 50 * 32, dtype=np.float32).reshape(2, 50, 32)
    cache.layers[0].keys.upload(before)
    cache.grow(100)
    (layer,) = cache.layers
    assert (layer.ring, layer.max_len) == (ROWS, 100)
    np.testing.assert_array_equal(layer.keys.to_numpy()[:, :40], before[:, :40])
    cache.grow(200)
    np.testing.assert_array_equal(cache.layers[0].keys.to_numpy()[:, :40], before[:, :40])


@pytest.mark.slow
def test_pages_of_a_window_give_the_answers_of_pages_that_keep_all(both: tuple[LanguageModel, LanguageModel]) -> None:
    """Prompts in several steps, two at a time, drafts, a conversation that goes on, and another that branches off early."""
    model, _ = both
    found = []
    for forgets in (True, False):
        engine = model.engine(slots=2, pages=40, rows=32, page_len=32, forgets=forgets)
        scheduler = Scheduler(engine, model.tokenizer, draft=PromptLookup, owner=model.device.owner)
        assert (engine.window, engine.window_pages) == ((WINDOW, 17) if forgets else (None, 0))
        texts, made = [TEXT[:150], TEXT[:70] * 2, TEXT[:64]], []
        for turn in range(3):
            asked = [scheduler.submit(text, max_tokens=12, stop_tokens=(), logprobs=turn or None) for text in texts]
            results = [request.result() for request in asked]
            made += [(result.tokens, result.logprobs) for result in results]
            texts = [[*texts[0], *results[0].tokens, 5, turn], texts[1], [*texts[0][:100], turn]]
        found.append((made, [request.usage.cached_prompt_tokens for request in asked]))
        assert scheduler.status().pages_held == 0
        scheduler.close()
        engine.free()
    assert found[0][0] == found[1][0]
    assert found[0][1][0] == found[1][1][0] > 150


@pytest.mark.slow
def test_a_step_without_the_pages_of_a_window_is_refused(both: tuple[LanguageModel, LanguageModel]) -> None:
    model, _ = both
    engine = model.engine(slots=1, pages=40, rows=32, page_len=32, forgets=True)
    engine.set_table(0, [0, 1], [None, 3])
    with pytest.raises(ArgumentError, match="slot 0 has no page for position 31"):
        engine.step([Row(0, 1, 31, True)])
    with pytest.raises(ArgumentError, match="slot 0 has no pages for the window of position 50"):
        engine.step([Row(0, 1, 50, True)])
    engine.step([Row(0, 1, 51, True)])
    engine.free()
