"""RMSNorm fused with the quantisation: the digits of gamma * x, whose scales are normalised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.errors import ArgumentError
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.quantize.int8_planes import BLOCK, unwritten
from ptxgen.kernels.quantize.quantize import Quantize
from ptxgen.target import WARP_SIZE
from tests.ptxgen.dsl.test_mathlib import evaluate
from tests.ptxgen.kernels.checking import run

SHAPES = [(32, 2), (576, 2), (576, 3), (1056, 1), (2048, 2), (4096, 1), (8192, 2), (8224, 3)]


def arguments_of(kernel: RmsNorm) -> dict[str, Any]:
    """With blocks of zeros, of subnormals and of the largest f16 wherever there is room."""
    given = kernel.inputs(np.random.default_rng(kernel.hidden))
    given["x"][0, 32:64] = 0.0
    given["x"][0, 64:96] *= np.float32(2.0**-130)
    given["x"][0, 96:128] = 65504.0
    return given


def of_product(kernel: RmsNorm, given: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """What the quantisation makes of gamma * x."""
    assert kernel.digits is not None
    written = unwritten(1, kernel.digits, kernel.hidden)
    return run(Quantize(kernel.digits, n=kernel.hidden), {**written, "x": given["x"] * given["gamma"]})


def assert_planes_of_product(kernel: RmsNorm, given: dict[str, Any], factor: np.float32) -> None:
    """The digits and sums are those of gamma * x, and the scales too, times `factor`, to the bit."""
    together, apart = run(kernel, given), of_product(kernel, given)
    for name in ("digits", "sums"):
        assert apart[name].tobytes() == together[name].tobytes(), f"{kernel}: {name} differs"
    assert np.array_equal(together["scales"], apart["scales"] * factor, equal_nan=True)


def factor_of(x: NDArray[np.float32], eps: float) -> np.float32:
    """What a row is multiplied by, to the bit, with its squares added in the order of squares.py, one addition at a time."""
    sums = (x * x).reshape(-1, BLOCK)
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    lanes = np.zeros(WARP_SIZE, np.float32)
    for first in range(0, len(sums), WARP_SIZE):
        own = sums[first : first + WARP_SIZE, 0]
        lanes[: len(own)] += own
    away = WARP_SIZE // 2
    while away:
        lanes = lanes + lanes[np.arange(WARP_SIZE) ^ away]
        away //= 2
    mean = lanes[0] * np.float32(1 / x.size) + np.float32(eps)
    return np.float32(evaluate(mathlib.rsqrt_of_normal, np.array([mean]))[0])


@pytest.mark.parametrize(("hidden", "digits"), SHAPES)
def test_the_planes_are_those_of_gamma_x_and_the_scales_are_normalised(hidden: int, digits: int) -> None:
    kernel = RmsNorm(hidden, digits=digits)
    given = arguments_of(kernel)
    assert_planes_of_product(kernel, given, factor_of(given["x"][0], given["eps"]))


@pytest.mark.parametrize("hidden", [576, 8224])
def test_the_f32_result_is_scaled_by_the_same_factor(hidden: int) -> None:
    kernel = RmsNorm(hidden, digits=2)
    given = arguments_of(kernel)
    expected = given["x"] * factor_of(given["x"][0], given["eps"]) * given["gamma"]
    assert run(kernel, given)["y"].tobytes() == expected.tobytes()


@pytest.mark.parametrize(("large", "factor"), [(1e30, 0.0), (np.inf, 0.0), (np.nan, np.nan)])
def test_a_row_whose_squares_overflow_stands_for_zeros_and_one_with_nan_for_nan(large: float, factor: float) -> None:
    kernel = RmsNorm(1056, digits=2)
    given = arguments_of(kernel)
    given["x"][0, 1040] = large
    with np.errstate(invalid="ignore"):
        assert_planes_of_product(kernel, given, np.float32(factor))


def test_epsilon_is_what_the_launch_says() -> None:
    kernel = RmsNorm(96, digits=2)
    given = arguments_of(kernel)
    loose = run(kernel, given | {"eps": np.float32(1.0)})
    assert (np.abs(loose["y"]) < np.abs(run(kernel, given)["y"])).any()
    assert_planes_of_product(kernel, given | {"eps": np.float32(1.0)}, factor_of(given["x"][0], 1.0))


def test_each_block_makes_the_planes_of_1024_values() -> None:
    assert RmsNorm(4096, digits=2).launch().grid == (4, 1, 1)
    assert RmsNorm(4128, digits=2).launch().grid == (5, 1, 1)


@pytest.mark.parametrize("hidden", [0, 48, 16416, True])
def test_an_impossible_row_is_refused_by_name(hidden: int) -> None:
    with pytest.raises(ArgumentError, match=r"rmsnorm_digits: hidden must be a multiple of 32, 1\.\.16384, got"):
        RmsNorm(hidden, digits=2)


@pytest.mark.parametrize("digits", [0, 4])
def test_an_impossible_number_of_planes_is_refused_by_name(digits: int) -> None:
    with pytest.raises(ArgumentError, match=r"rmsnorm_digits: digits must be an integer, 1\.\.3, got"):
        RmsNorm(64, digits=digits)
