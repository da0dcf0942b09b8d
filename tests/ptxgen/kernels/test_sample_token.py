"""sample_token: the token of the host's definition under every filter, equal logits, and logits that cannot be sampled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as limits
from hypothesis import strategies as st
from numpy.typing import NDArray

from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import find
from ptxgen.kernels.token.argmax import NOT_A_NUMBER
from ptxgen.kernels.token.sample_token import SampleToken
from ptxgen.kernels.token.sampling import settings
from tests.ptxgen.kernels.checking import check

OFF = (0, 1.0, 0.0)  # top_k, top_p, min_p


def drawn(
    x: NDArray[np.float32], temperature: float = 1.0, filters: tuple[int, float, float] = OFF, seed: int = 1, draw: int = 0
) -> int:
    """The token, which is the reference's."""
    arguments = {
        "out": np.zeros(1, np.uint32),
        "x": x,
        "settings": settings(temperature, *filters),
        "random": np.array([seed, draw], np.uint64),
    }
    return int(check(SampleToken(n=x.size), arguments)["out"][0])


@given(
    n=st.sampled_from([37, 3001]),
    kinds=st.sampled_from([1, 3, 1000]),
    temperature=st.sampled_from([0.0, 1e-40, 0.1, 1.0, 100.0, 1e300]),
    top_k=st.sampled_from([0, 1, 2, 20, 2999, 10**9]),
    top_p=st.sampled_from([1e-12, 0.3, 0.5, 0.999, 1 - 2**-53, 1.0]),
    min_p=st.sampled_from([0.0, 1e-6, 0.1, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)
@example(n=37, kinds=1, temperature=1.0, top_k=20, top_p=0.5, min_p=0.0, seed=2**64 - 1)  # half of the first equals
@limits(max_examples=60, deadline=None)
def test_the_token_is_that_of_the_host(
    n: int, kinds: int, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(size=kinds) * 5, [-0.0, 0.0, -np.inf, -3e38]]).astype(np.float32)
    x = rng.choice(values, n)
    x[rng.integers(n)] = 0.5
    token = drawn(x, temperature, (top_k, top_p, min_p), seed, draw=seed >> 1)
    assert np.isfinite(x[token])


def test_of_equal_logits_the_filters_keep_the_lowest_ids() -> None:
    x = np.where(np.arange(37) % 2, 0.0, -0.0).astype(np.float32)  # the two zeros are equal
    x[:3] = -1
    assert {drawn(x, filters=(2, 1.0, 0.0), draw=draw) for draw in range(12)} == {3, 4}
    assert {drawn(x, filters=(4, 0.5, 0.0), draw=draw) for draw in range(12)} == {3, 4}


def test_a_launch_again_draws_the_next_number_of_the_seed() -> None:
    kernel = SampleToken(n=37)
    arguments = kernel.inputs(np.random.default_rng(1)) | {
        "x": np.zeros(37, np.float32),
        "settings": settings(1.0, *OFF),
        "random": np.array([5, 2**64 - 3], np.uint64),
    }
    tokens = []
    for _ in range(5):
        results = check(kernel, arguments)
        arguments["random"] = results["random"]
        tokens.append(int(results["out"][0]))
    assert results["random"].tolist() == [5, 2]
    assert len(set(tokens)) > 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_cannot_be_sampled_give_no_token(bad: float) -> None:
    x = np.full(37, -np.inf, np.float32)
    if np.isnan(bad):
        x[:] = 1
    x[36] = bad
    assert drawn(x) == NOT_A_NUMBER


@pytest.mark.parametrize("n", [0, 2**22 + 1])
def test_an_impossible_vocabulary_is_refused_by_name(n: int) -> None:
    with pytest.raises(ArgumentError, match="sample_token: n must be"):
        find("sample_token").make(n=n)
