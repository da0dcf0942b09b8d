"""Choosing a token: the filters' definitions, repeatability, and logits and settings that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from executor.base.errors import ModelError
from executor.model.sampling import Sampler
from ptxgen.errors import ArgumentError

Logits = NDArray[np.float32]
LOGITS = hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(-30, 30, width=32))


def drawn(sampler: Sampler, logits: Logits, times: int = 300) -> set[int]:
    return {sampler.sample(logits) for _ in range(times)}


def chances(*probabilities: float) -> Logits:
    return np.log(np.asarray(probabilities, np.float64)).astype(np.float32)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert Sampler().is_greedy
    assert Sampler().sample(np.asarray([0, 5, -np.inf, 5], np.float32)) == 1


@given(logits=LOGITS, temperature=st.floats(1e-300, 3), seed=st.integers(0, 2**64 - 1))
def test_the_same_seed_draws_the_same_tokens(logits: Logits, temperature: float, seed: int) -> None:
    first, second = (Sampler(temperature, top_k=40, top_p=0.9, min_p=0.01, seed=seed) for _ in range(2))
    assert [first.sample(logits) for _ in range(5)] == [second.sample(logits) for _ in range(5)]


@given(logits=LOGITS, k=st.integers(1, 60))
def test_top_k_keeps_the_k_largest(logits: Logits, k: int) -> None:
    sampler = Sampler(5.0, top_k=k, seed=1)
    assert drawn(sampler, logits, 50) <= set(np.argsort(-logits, kind="stable")[:k].tolist())


@given(logits=LOGITS)
def test_one_candidate_or_a_tiny_temperature_is_greedy(logits: Logits) -> None:
    best = Sampler().sample(logits)
    assert Sampler(1.0, top_k=1).sample(logits) == best
    assert Sampler(1.0, top_p=1e-9).sample(logits) == best
    assert logits[Sampler(1.0, min_p=1.0).sample(logits)] == logits[best]
    assert logits[Sampler(5e-324).sample(logits)] == logits[best]


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    logits = chances(0.1, 0.5, 0.15, 0.25)
    assert drawn(Sampler(1.0, top_p=0.45, seed=1), logits) == {1}
    assert drawn(Sampler(1.0, top_p=0.7, seed=1), logits) == {1, 3}
    assert drawn(Sampler(1.0, top_p=0.8, seed=1), logits) == {1, 2, 3}


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = chances(0.1, 0.5, 0.15, 0.25)
    assert drawn(Sampler(1.0, min_p=0.4, seed=1), logits) == {1, 3}
    assert drawn(Sampler(1.0, min_p=0.4, top_p=0.999, seed=1), logits) == {1, 3}


def test_filters_run_before_the_temperature() -> None:
    logits = chances(0.1, 0.5, 0.15, 0.25)
    assert drawn(Sampler(100.0, top_p=0.7, seed=1), logits) == {1, 3}
    assert drawn(Sampler(100.0, min_p=0.4, seed=1), logits) == {1, 3}


def test_top_p_counts_what_top_k_left() -> None:
    assert drawn(Sampler(1.0, top_k=2, top_p=0.6, seed=1), chances(0.1, 0.5, 0.15, 0.25)) == {1}


def test_draws_follow_the_probabilities_at_the_temperature() -> None:
    sampler = Sampler(0.5, seed=7)
    logits = chances(0.2, 0.5, 0.3)
    counts = np.bincount([sampler.sample(logits) for _ in range(4000)], minlength=3) / 4000
    squared = np.asarray([0.04, 0.25, 0.09])
    np.testing.assert_allclose(counts, squared / squared.sum(), atol=0.03)


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = np.asarray([-np.inf, 0, -np.inf, 0], np.float32)
    assert drawn(Sampler(1.0, seed=1), logits) == {1, 3}


@pytest.mark.parametrize("bad", [[1, np.nan], [np.inf, 0], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_cannot_be_sampled(bad: list[float], temperature: float) -> None:
    with pytest.raises(ModelError, match="cannot be sampled"):
        Sampler(temperature).sample(np.asarray(bad, np.float32))


def test_logits_of_the_wrong_shape() -> None:
    for shape in ((0,), (2, 2)):
        with pytest.raises(ArgumentError, match="one dimension"):
            Sampler().sample(np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"min_p": 2.0},
        {"seed": -1},
        {"seed": 1 << 64},
    ],
)
def test_settings_out_of_range_name_what_is_allowed(settings: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(settings))} is .*; allowed: "):
        Sampler(**settings)  # type: ignore[arg-type]
