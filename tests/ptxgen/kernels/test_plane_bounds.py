"""The tolerance of digits: it holds whatever values within the bound are quantised, and leaves no room where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.quantize.int8_planes import quantize
from ptxgen.kernels.quantize.plane_bounds import plane_bounds

NAMES = ("digits", "scales", "sums")

all_digits = pytest.mark.parametrize("digits", [1, 2, 3])


def off(x: NDArray[Any], y: NDArray[Any], digits: int) -> dict[str, NDArray[Any]]:
    """How far what is made of y is from what is made of x."""
    wanted, made = quantize(x, digits)._asdict(), quantize(y, digits)._asdict()
    return {name: np.abs(made[name].astype(np.float64) - wanted[name]) for name in NAMES}


@all_digits
@pytest.mark.parametrize("units", [6, 300, 2**20])
@pytest.mark.parametrize("size", [1.0, 1e-38, 1e30])
def test_the_bounds_hold_for_values_anywhere_in_theirs(digits: int, units: int, size: float) -> None:
    rng = np.random.default_rng(units)
    x = size * rng.normal(size=(2, 2048)) * 10.0 ** rng.uniform(-3, 3, (2, 2048))
    x[0, 64:96] = 0.0
    bound = units * UNIT * np.abs(x) + 2.0**-147
    for _ in range(4):
        y = (x + 0.75 * bound * rng.choice([-1.0, 0.0, 0.5, 1.0], x.shape)).astype(np.float32)  # a quarter for the rounding
        assert (np.abs(y - x) <= bound).all()
        allowed = plane_bounds(x, bound, digits)
        for name, difference in off(x, y, digits).items():
            assert (difference <= allowed[name]).all(), name


@all_digits
def test_what_is_known_to_the_last_bit_has_planes_that_must_be_exact(digits: int) -> None:
    x = np.arange(-121.0, 128.0, 8.0).reshape(1, 32)  # the peak is 127, so each quotient is near a whole number
    allowed = plane_bounds(x, np.zeros_like(x), digits)
    assert not allowed["digits"][:, :2].any()  # the quotient is no finer than a third digit
    assert allowed["scales"].max() <= 4 * UNIT * quantize(x, digits).scales.max()


def test_a_digit_beyond_its_bound_is_seen_in_nearly_every_place() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1, 4096))
    allowed = plane_bounds(x, 6 * UNIT * np.abs(x), 2)["digits"]
    assert (allowed == 0).mean() > 0.98  # so a digit that is off by one fails


def test_a_value_that_may_be_anything_may_have_any_digit() -> None:
    x = np.zeros((1, 32))
    allowed = plane_bounds(x, np.full_like(x, 1.0), 2)
    assert (allowed["digits"] >= 127).all()
    assert (allowed["sums"] == 32 * 32639).all()
