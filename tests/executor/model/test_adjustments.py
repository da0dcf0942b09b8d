"""Penalties, biases and locally typical sampling: by their definitions, in every way that tokens are chosen."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from executor.base.errors import ModelError, SamplingError
from executor.device import Device
from executor.model.generation import LanguageModel
from executor.model.logit_adjustments import Adjustments
from executor.model.sampling import Sampler
from ptxgen.errors import ArgumentError
from tests.synthetic import Q, write_model

VOCAB = 24
LOGITS = hnp.arrays(np.float32, VOCAB, elements=st.floats(-20, 20, width=32))
IDS = st.lists(st.integers(0, VOCAB - 1), max_size=12)
PENALTIES = st.sampled_from([-1.5, 0.0, 0.25, 2.0])


@given(LOGITS, IDS, IDS, st.sampled_from([0.5, 1.0, 1.25]), PENALTIES, PENALTIES)
def test_penalties_are_what_their_papers_say(
    logits: NDArray[np.float32], prompt: list[int], answer: list[int], repetition: float, presence: float, frequency: float
) -> None:
    adjusted = Adjustments(repetition, presence, frequency).adjusted(logits, prompt, answer, 0)
    for id in range(VOCAB):
        x = float(logits[id])
        if id in prompt or id in answer:
            x = x / repetition if x > 0 else x * repetition
        x -= answer.count(id) * frequency + (presence if id in answer else 0)
        assert math.isclose(float(adjusted[id]), x, rel_tol=1e-5, abs_tol=1e-5)


@given(LOGITS, st.sampled_from([0.05, 0.3, 0.9]), st.sampled_from([0, 1, 5]))
def test_what_is_typical_are_the_fewest_nearest_to_the_entropy(logits: NDArray[np.float32], share: float, top_k: int) -> None:
    adjusted = Adjustments(typical_p=share).adjusted(logits, [], [], top_k)
    kept = set(np.flatnonzero(np.isfinite(adjusted)).tolist())
    among = np.argsort(-logits, kind="stable")[: top_k or None]
    x = logits[among].astype(np.float64)
    p = np.exp(x - x.max())
    p /= p.sum()
    with np.errstate(divide="ignore"):
        surprise = np.where(p > 0, -np.log(p), np.inf)
    away = np.abs(surprise - (p[p > 0] * surprise[p > 0]).sum())
    order = np.argsort(away, kind="stable")
    reached = np.cumsum(p[order])
    fewest = int(np.searchsorted(reached, share)) + 1
    sure = set(among[order[: max(fewest - 1, 0)]].tolist())  # that at the edge may be another by rounding
    assert len(kept) in range(fewest - 1, fewest + 2)
    close = {int(among[at]) for at in order if abs(away[at] - away[order[min(fewest, len(order)) - 1]]) < 1e-4}
    assert sure - close <= kept


def test_a_bias_forbids_and_prefers() -> None:
    logits = np.asarray([0, 3, 2, 1], np.float32)
    assert Sampler(logit_bias={1: -math.inf}).sample(logits) == 2
    assert Sampler(logit_bias={3: 100}).sample(logits) == 3
    assert not Sampler(logit_bias={3: 100}).is_greedy
    drawn = Sampler(1.0, seed=1, logit_bias=dict.fromkeys((0, 1, 2), -math.inf))
    assert {drawn.sample(logits) for _ in range(20)} == {3}
    with pytest.raises(ArgumentError, match="logit_bias names token 4; the vocabulary has ids 0 to 3"):
        Sampler(logit_bias={4: 1}).sample(logits)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty is 0; allowed: above 0"),
        ({"presence_penalty": math.inf}, "presence_penalty is inf; allowed: a finite number"),
        ({"frequency_penalty": "1"}, "frequency_penalty is '1'; allowed: a finite number"),
        ({"typical_p": 0}, "typical_p is 0; allowed: above 0, up to 1"),
        ({"logit_bias": [1]}, "logit_bias is a list; allowed: numbers by token id"),
        ({"logit_bias": {-1: 1}}, "a token of logit_bias is -1"),
        ({"logit_bias": {1: math.nan}}, "logit_bias of token 1 is nan; allowed: a finite number, or -inf"),
        ({"logit_bias": {1: math.inf}}, "logit_bias of token 1 is inf; allowed: a finite number, or -inf"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Sampler(**settings)


def test_another_seed_keeps_all_settings() -> None:
    sampler = Sampler(0.5, 3, 0.9, 0.1, 7, typical_p=0.8, logit_bias={1: 2}, presence_penalty=1)
    other = sampler.with_seed(8)
    assert (other.seed, other.adjustments, other.settings.tolist()) == (8, sampler.adjustments, sampler.settings.tolist())


SETTINGS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"temperature": 0.8, "seed": 5, "frequency_penalty": 0.7, "presence_penalty": 0.5},
    {"temperature": 1.2, "seed": 6, "typical_p": 0.6, "top_k": 40},
    {"logit_bias": {7: 40.0}, "frequency_penalty": 30.0},
]


def test_a_model_and_a_scheduler_say_the_same_with_them(tmp_path: Path, device: Device) -> None:
    path = write_model(
        tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64
    )  # fmt: skip
    with LanguageModel.load(path, device, context=64) as model:
        plain = model.generate([5, 6, 5], max_tokens=10, stop_tokens=()).tokens
        for settings in SETTINGS:
            alone = model.generate([5, 6, 5], max_tokens=10, stop_tokens=(), sampler=Sampler(**settings)).tokens
            assert alone != plain
            with model.scheduler(slots=2, context=64) as scheduler:
                requests = [
                    scheduler.submit([5, 6, 5], max_tokens=10, stop_tokens=(), sampler=Sampler(**settings)) for _ in range(2)
                ]
                scheduler.run()
            assert [request.tokens for request in requests] == [alone, alone]
        beyond = Sampler(logit_bias={model.spec.vocab: 1.0})
        with pytest.raises(ArgumentError, match=f"logit_bias names token {model.spec.vocab}; the vocabulary has ids 0 to"):
            model.stream([5], sampler=beyond)
        with (
            model.scheduler(slots=1, context=64) as scheduler,
            pytest.raises(ArgumentError, match=f"logit_bias names token {model.spec.vocab}"),
        ):
            scheduler.submit([5], max_tokens=1, sampler=beyond)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"logit_bias": dict.fromkeys(range(4), -math.inf)}, "logit_bias"),
        ({"logit_bias": {0: 3e38, 1: 1e39}, "frequency_penalty": 1}, "logit_bias"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"frequency_penalty": -1e39, "temperature": 1.0}, "frequency_penalty"),
        ({"presence_penalty": -1e39, "typical_p": 0.5}, "presence_penalty"),
    ],
)
def test_settings_that_leave_no_token_are_at_fault_and_not_the_model(settings: dict[str, Any], setting: str) -> None:
    with pytest.raises(SamplingError, match=f"^{setting} leaves no token to choose") as caught:
        Sampler(**settings).sample(np.array([1, 2, 3, 4], np.float32), [0, 1], [0, 1])
    assert caught.value.setting == setting
    for wrong in (np.nan, np.inf):
        with pytest.raises(ModelError, match="the largest must be finite"):
            Sampler(**settings).sample(np.array([1, wrong, 3, 4], np.float32), [0, 1], [0, 1])
