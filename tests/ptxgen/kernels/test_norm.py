"""RMSNorm: the traps that its reference alone would not show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import OUTLIER
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.checking import check, run


@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-5, 1.0])
def test_epsilon_is_what_the_launch_says(eps: float) -> None:
    kernel = RmsNorm(hidden=64)
    arguments = kernel.inputs(np.random.default_rng(1)) | {"eps": np.float32(eps)}
    arguments["x"] *= np.float32(1e-3)
    check(kernel, arguments)


def test_no_epsilon_stands_in_the_text() -> None:
    assert "0f3727C5AC" not in emit(RmsNorm(hidden=64)).text.upper()


def test_a_row_of_zeros_stays_zero() -> None:
    kernel = RmsNorm(hidden=300)
    arguments = kernel.inputs(np.random.default_rng(2)) | {"x": np.zeros((1, 300), np.float32)}
    assert not run(kernel, arguments)["y"].any()


def test_a_massive_channel_keeps_the_others_exact() -> None:
    kernel = RmsNorm(hidden=1536)
    arguments = kernel.inputs(np.random.default_rng(3))
    arguments["x"][0, 408] = OUTLIER * np.sqrt(1536)
    check(kernel, arguments)


@pytest.mark.parametrize("digits", [None, 2])
@pytest.mark.parametrize("hidden", [32, 4096])
@pytest.mark.parametrize("alike", [True, False])
def test_a_row_is_right_below_the_root_mean_square_that_the_docstring_names_and_zeros_above(
    digits: int | None, hidden: int, alike: bool
) -> None:
    assert "sqrt(3.4e38 / hidden)" in str(RmsNorm.__doc__)
    limit = np.sqrt(float(np.finfo(np.float32).max) / hidden)
    kernel = RmsNorm(hidden, digits=digits)
    arguments = kernel.inputs(np.random.default_rng(6))
    shape = np.ones((1, hidden)) if alike else np.eye(1, hidden) * np.sqrt(hidden)  # root mean square 1
    margin = 2.0**-16  # more than all roundings of the sum together
    check(kernel, arguments | {"x": (shape * limit * (1 - margin)).astype(np.float32)})
    above = run(kernel, arguments | {"x": (shape * limit * (1 + margin)).astype(np.float32)})
    assert not above["y"].any()


def test_the_examples_in_the_docstring_are_the_formula() -> None:
    for hidden, said in ((1, "1.8e19 at\n    hidden=1"), (4096, "2.9e17 at 4096")):
        assert said in str(RmsNorm.__doc__)
        assert said.startswith(f"{np.sqrt(3.4e38 / hidden):.1e}".replace("+", ""))


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    rows, single = RmsNorm(hidden=300, m=3), RmsNorm(hidden=300)
    arguments = rows.inputs(np.random.default_rng(4))
    together = run(rows, arguments)["y"]
    for row in range(3):
        alone = run(single, {**arguments, "x": arguments["x"][row : row + 1], "y": arguments["y"][row : row + 1]})["y"]
        assert alone.tobytes() == together[row].tobytes()


def test_a_norm_that_is_added_has_the_bits_of_the_norm_and_the_sum() -> None:
    kernel, plain = RmsNorm(hidden=300, m=2, residual=True), RmsNorm(hidden=300, m=2)
    arguments = kernel.inputs(np.random.default_rng(7))
    normed = run(plain, arguments)["y"]
    assert run(kernel, arguments)["y"].tobytes() == (arguments["y"] + normed).tobytes()


def test_a_norm_without_gamma_has_the_bits_of_one_with_ones() -> None:
    kernel, plain = RmsNorm(hidden=300, weighted=False), RmsNorm(hidden=300)
    arguments = kernel.inputs(np.random.default_rng(8))
    ones = run(plain, arguments | {"gamma": np.ones(300, np.float32)})["y"]
    assert run(kernel, arguments)["y"].tobytes() == ones.tobytes()


@pytest.mark.parametrize(
    "shape", [{"residual": True, "weighted": False}, {"residual": True, "digits": 2}, {"weighted": False, "digits": 2}]
)
def test_a_norm_that_is_added_or_has_no_gamma_has_no_form(shape: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="not weighted, residual and a form exclude each other"):
        RmsNorm(hidden=64, **shape)


def test_heads_are_normalised_each_by_itself() -> None:
    kernel = PerHeadRmsNorm(heads=3, head_dim=64)
    arguments = kernel.inputs(np.random.default_rng(5))
    arguments["x"][1] *= np.float32(1000.0)
    result = check(kernel, arguments)["x"] / arguments["gamma"]
    assert np.allclose(np.mean(result.astype(np.float64) ** 2, axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("hidden", [0, -1, 16385, True, 2.5])
def test_an_impossible_row_is_refused_by_name(hidden: int) -> None:
    with pytest.raises(ArgumentError, match=r"rmsnorm: hidden must be an integer, 1\.\.16384, got"):
        RmsNorm(hidden=hidden)


@pytest.mark.parametrize("head_dim", [0, 36, 264])
def test_an_impossible_head_is_refused_by_name(head_dim: int) -> None:
    with pytest.raises(ArgumentError, match=r"per_head_rmsnorm: head_dim must be 32, 512 or a multiple of 8, 40\.\.256, got"):
        PerHeadRmsNorm(heads=1, head_dim=head_dim)
