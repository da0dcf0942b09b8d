"""argmax: ties, signs, infinities and NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ptxgen.kernels.token.argmax import NOT_A_NUMBER, ArgMax
from tests.ptxgen.kernels.checking import run


def argmax(x: NDArray[np.float32]) -> int:
    return int(run(ArgMax(n=x.size), {"out": np.zeros(1, np.uint32), "x": x})["out"][0])


@given(n=st.sampled_from([5, 1024, 4100, 16384, 20000]), seed=st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_the_lowest_of_equal_largest_values_is_found(n: int, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-100, 4, n).astype(np.float32)
    assert argmax(x) == int(np.argmax(x))


@pytest.mark.parametrize("place", [0, 1, 4095, 4096, 16383, 16384, 17000, 17003])
def test_one_largest_value_is_found_wherever_it_stands(place: int) -> None:
    x = np.full(17004, -3.0, np.float32)
    x[place] = -2.0
    assert argmax(x) == place


def test_zeros_of_both_signs_are_equal() -> None:
    assert argmax(np.array([-1.0, -0.0, 0.0, -0.0], np.float32)) == 1


@pytest.mark.parametrize("n", [1, 3, 2000])
def test_minus_infinity_everywhere_gives_the_first(n: int) -> None:
    assert argmax(np.full(n, -np.inf, np.float32)) == 0


def test_infinity_wins() -> None:
    assert argmax(np.array([1.0, -np.inf, np.inf, 3e38], np.float32)) == 2


@pytest.mark.parametrize("place", [0, 500, 1999])
def test_a_nan_anywhere_gives_no_token(place: int) -> None:
    x = np.random.default_rng(1).normal(size=2000).astype(np.float32)
    x[place] = np.nan
    assert argmax(x) == NOT_A_NUMBER
