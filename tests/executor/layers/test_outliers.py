"""The outlier predicate on host arrays: the known cases, what it makes of its input, and that the kernel agrees to the bit."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from executor.layers.outliers import is_massive_activation_outlier
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import OUTLIER
from ptxgen.kernels.quantize.outlier_flag import OutlierFlag
from tests.ptxgen.kernels.checking import run


def on_the_emulator(x: NDArray[np.float32], ratio: float) -> bool:
    arguments = {"flag": np.zeros(1, np.uint32), "x": x, "ratio": np.float32(ratio)}
    return bool(run(OutlierFlag(n=x.size), arguments)["flag"][0])


def test_one_channel_of_26_times_the_rms_is_an_outlier_and_one_of_5_times_is_none() -> None:
    x = np.ones(1536, np.float32)
    x[408] = OUTLIER
    assert is_massive_activation_outlier(x)
    x[408] = 5.0
    assert not is_massive_activation_outlier(x)


def test_the_threshold_lies_between_7_9_and_9() -> None:
    x = np.ones(10000, np.float32)
    x[42] = 7.9
    assert not is_massive_activation_outlier(x, 8.0)
    x[42] = 9.0
    assert is_massive_activation_outlier(x, 8.0)


@pytest.mark.parametrize("values", [[], np.zeros((0, 64)), [0.0] * 64, np.zeros((3, 500), np.float32), [-0.0], [5.0]])
def test_nothing_zeros_and_equal_values_have_no_outlier(values: Any) -> None:
    assert is_massive_activation_outlier(values) is False


def test_exactly_the_ratio_is_no_outlier() -> None:
    x = np.zeros(64, np.float32)
    x[0] = 1.0  # the root mean square is 1 / 8
    assert not is_massive_activation_outlier(x, 8.0)
    assert is_massive_activation_outlier(np.append(x, np.float32(0.0)), 8.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_what_f32_cannot_hold_as_a_number_is_an_outlier(value: float) -> None:
    assert is_massive_activation_outlier([1.0, value], 1e30)


def test_squares_that_f32_cannot_hold_are_summed() -> None:
    x = np.full(1536, 1e30, np.float32)
    assert not is_massive_activation_outlier(x)
    x[7] = 2e31
    assert is_massive_activation_outlier(x)


@pytest.mark.parametrize("ratio", [-1.0, float("nan")])
def test_an_impossible_ratio_is_refused_by_name(ratio: float) -> None:
    with pytest.raises(ArgumentError, match="ratio must be 0 or more"):
        is_massive_activation_outlier([1.0], ratio)


@pytest.mark.parametrize("values", [["a"], [1j], [None]])
def test_values_that_are_no_numbers_are_refused(values: Any) -> None:
    with pytest.raises(ArgumentError, match="real numbers"):
        is_massive_activation_outlier(values)


@given(
    n=st.sampled_from([1, 33, 1025, 2500]),
    seed=st.integers(0, 10**6),
    ratio=st.floats(0.0, 60.0, width=32) | st.sampled_from([float("inf")]),
    odd=st.floats(width=32),
)
@settings(max_examples=40, deadline=None)
def test_the_kernel_gives_the_same_answer(n: int, seed: int, ratio: float, odd: float) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=n) * 10.0 ** rng.integers(-20, 15)).astype(np.float32)
    x[rng.integers(n)] = odd
    assert is_massive_activation_outlier(x, ratio) is on_the_emulator(x, ratio)


def undecided(seed: int) -> NDArray[np.float32]:
    """2048 values whose squares add up to half a unit in the last place (of float64) less than max^2 * 2048 / 64: at the ratio
    8 the roundings of the sum decide, and with them its order."""
    x = np.random.default_rng(seed).normal(size=2048).astype(np.float32)
    x[1000:1006] = 0.0
    rest = sum(Fraction(float(v)) ** 2 for v in x)
    x[1000] = sqrt((rest + 1) / 31)  # 32 times its square shall be its square and all the others
    assert x[1000] == np.abs(x).max()
    square = Fraction(float(x[1000])) ** 2
    missing = 31 * square - rest - Fraction(float(np.spacing(float(32 * square)))) / 2
    for i in range(1001, 1006):  # each leaves at most 2^-21 of what is missing
        x[i] = np.nextafter(np.float32(sqrt(missing)), np.float32(0.0))
        missing -= Fraction(float(x[i])) ** 2
        assert missing >= 0
    return x


def test_the_kernel_gives_the_same_answer_where_the_last_bit_of_the_sum_decides() -> None:
    answers = []
    for seed in range(30):
        x = undecided(seed)
        answers.append(is_massive_activation_outlier(x, 8.0))
        assert answers[-1] is on_the_emulator(x, 8.0)
    assert set(answers) == {True, False}


@given(n=st.sampled_from([2, 100, 1500]), seed=st.integers(0, 10**6), steps=st.integers(-3, 3))
@settings(max_examples=60, deadline=None)
def test_the_answer_is_the_exact_one_for_ratios_next_to_the_threshold(n: int, seed: int, steps: int) -> None:
    x = np.random.default_rng(seed).normal(size=n).astype(np.float32)
    squares = [Fraction(float(v)) ** 2 for v in x]
    ratio = np.float32(sqrt(max(squares) * n / sum(squares)))
    for _ in range(abs(steps)):
        ratio = np.nextafter(ratio, np.float32(np.inf if steps > 0 else 0.0))
    left, right = max(squares) * n, Fraction(float(ratio)) ** 2 * sum(squares)
    # closer than this the predicate does not promise the exact answer
    if abs(left - right) > (Fraction(n, 1024) + 12) * Fraction(1, 2**53) * left:
        assert is_massive_activation_outlier(x, float(ratio)) is (left > right)
