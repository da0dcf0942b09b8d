"""RMSNorm fused with the quantisation after it: the very bits of the separate kernels one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.errors import ArgumentError
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.norm.rmsnorm_digits import RmsNormDigits
from ptxgen.kernels.quantize.activation_digits import unwritten
from ptxgen.kernels.quantize.quantize import Quantize
from tests.ptxgen.kernels.checking import run

SHAPES = [(32, 2), (576, 2), (576, 3), (1056, 1), (2048, 2), (4096, 1), (8192, 2), (8224, 3)]


def arguments_of(kernel: RmsNormDigits) -> dict[str, Any]:
    """With blocks of zeros, of subnormals and of the largest f16 wherever there is room."""
    given = kernel.inputs(np.random.default_rng(kernel.hidden))
    given["x"][0, 32:64] = 0.0
    given["x"][0, 64:96] *= np.float32(2.0**-130)
    given["x"][0, 96:128] = 65504.0
    return given


def one_after_the_other(kernel: RmsNormDigits, given: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """What rmsnorm and the quantisation leave in the arrays that the kernel writes."""
    results = run(RmsNorm(hidden=kernel.hidden), {name: given[name] for name in ("y", "x", "gamma", "eps")})
    written = unwritten(1, kernel.digits, kernel.hidden)
    return results | run(Quantize(kernel.digits, n=kernel.hidden), {**written, "x": results["y"]})


def assert_same_bits(kernel: RmsNormDigits, given: dict[str, Any]) -> None:
    together, apart = run(kernel, given), one_after_the_other(kernel, given)
    assert set(together) == set(apart)
    for name, values in apart.items():
        assert values.tobytes() == together[name].tobytes(), f"{kernel}: {name} differs"


@pytest.mark.parametrize(("hidden", "digits"), SHAPES)
def test_rmsnorm_digits_has_the_bits_of_rmsnorm_and_the_quantisation(hidden: int, digits: int) -> None:
    kernel = RmsNormDigits(hidden, digits)
    assert_same_bits(kernel, arguments_of(kernel))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_row_that_overflows_gives_what_the_separate_kernels_give(bad: float) -> None:
    kernel = RmsNormDigits(1056, 2)
    given = arguments_of(kernel)
    given["x"][0, 1040] = bad
    assert_same_bits(kernel, given)


def test_epsilon_is_what_the_launch_says() -> None:
    kernel = RmsNormDigits(96, 2)
    given = arguments_of(kernel)
    loose = run(kernel, given | {"eps": np.float32(1.0)})
    assert (np.abs(loose["y"]) < np.abs(run(kernel, given)["y"])).any()
    assert_same_bits(kernel, given | {"eps": np.float32(1.0)})


def test_each_block_makes_the_digits_of_1024_values() -> None:
    assert RmsNormDigits(4096).launch().grid == (4, 1, 1)
    assert RmsNormDigits(4128).launch().grid == (5, 1, 1)


@pytest.mark.parametrize("hidden", [0, 48, 16416, True])
def test_an_impossible_row_is_refused_by_name(hidden: int) -> None:
    with pytest.raises(ArgumentError, match=r"rmsnorm_digits: hidden must be a multiple of 32, 1\.\.16384, got"):
        RmsNormDigits(hidden)


@pytest.mark.parametrize("digits", [0, 4])
def test_an_impossible_number_of_digits_is_refused_by_name(digits: int) -> None:
    with pytest.raises(ArgumentError, match=r"rmsnorm_digits: digits must be an integer, 1\.\.3, got"):
        RmsNormDigits(64, digits)
