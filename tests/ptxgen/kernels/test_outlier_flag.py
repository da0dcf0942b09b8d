"""outlier_flag: what it does to the flag, and what it finds."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.kernels.accuracy import OUTLIER
from ptxgen.kernels.quantize.outlier_flag import OutlierFlag
from tests.ptxgen.kernels.checking import run


def flag(x: NDArray[np.float32], ratio: float = 8.0, before: int = 0) -> int:
    """The flag after a launch."""
    arguments = {"flag": np.array([before], np.uint32), "x": x, "ratio": np.float32(ratio)}
    return int(run(OutlierFlag(n=x.size), arguments)["flag"][0])


def ones(n: int, place: int, value: float) -> NDArray[np.float32]:
    x = np.ones(n, np.float32)
    x[place] = value
    return x


@pytest.mark.parametrize(
    ("n", "place", "value", "wanted"),
    [(1536, 408, OUTLIER, 1), (1536, 408, 5.0, 0), (10000, 42, 7.9, 0), (10000, 42, 9.0, 1), (10000, 9999, -9.0, 1)],
)
def test_a_channel_far_beyond_the_root_mean_square_is_flagged(n: int, place: int, value: float, wanted: int) -> None:
    assert flag(ones(n, place, value)) == wanted


@pytest.mark.parametrize("ratio", [0.0, 8.0, float("inf")])
def test_zeros_are_not_flagged(ratio: float) -> None:
    assert flag(np.zeros(1536, np.float32), ratio) == 0


def test_exactly_the_ratio_is_not_flagged_and_the_next_smaller_ratio_is() -> None:
    x = np.zeros(1024, np.float32)
    x[:16] = 3.0  # the root mean square is 3 / 8
    assert flag(x, 8.0) == 0
    assert flag(x, np.nextafter(np.float32(8.0), np.float32(0.0))) == 1


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1023, 1024, 1535])
def test_what_is_not_finite_is_flagged(value: float, place: int) -> None:
    assert flag(ones(1536, place, value), 1e30) == 1


@pytest.mark.parametrize("scale", [2.0**-149, 2.0**-126, 2.0**120])
def test_the_squares_neither_overflow_nor_vanish(scale: float) -> None:
    x = ones(1536, 700, OUTLIER) * np.float32(scale)
    assert flag(x, 8.0) == 1
    assert flag(x, 30.0) == 0


def test_the_flag_stays_once_it_is_set_and_no_other_bit_changes() -> None:
    calm, massive = ones(1536, 3, 1.0), ones(1536, 3, OUTLIER)
    assert flag(calm, before=1) == 1
    assert flag(calm, before=0xFFFFFFFE) == 0xFFFFFFFE
    assert flag(massive, before=0xFFFFFFFE) == 0xFFFFFFFF
    assert flag(massive, before=1) == 1
