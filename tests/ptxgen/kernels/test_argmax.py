"""argmax: ties, signs, infinities and NaN, in a slice and across those that blocks share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array
from ptxgen.kernels.token.argmax import NOT_A_NUMBER, ArgMax
from ptxgen.kernels.token.rank import ranks_of
from tests.ptxgen.kernels.checking import check

SIZES = [5, 1024, 4100, 12291, 20000, 140004]
"""Of one slice and several; the loads of some are of one value; the last slice of some is short; the last size has slices of
more than one pass."""


def argmax(x: NDArray[np.float32], *, seed: int | None = None) -> int:
    kernel = ArgMax(n=x.size)
    return int(check(kernel, kernel.inputs(np.random.default_rng(0)) | {"x": x}, seed=seed)["out"][0])


def first_of(n: int, slice: int) -> int:
    """Where a slice of a row of n starts."""
    return slice * ArgMax(n=n).slice_size


@given(n=st.sampled_from(SIZES), seed=st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_the_lowest_of_equal_largest_values_is_found(n: int, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-100, 4, n).astype(np.float32)
    assert argmax(x, seed=seed) == int(np.argmax(x))


@given(
    n=st.sampled_from([33, 4098, 12291]),
    values=st.lists(st.floats(width=32), min_size=1, max_size=12),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=20, deadline=None)
def test_it_is_the_first_largest_of_numpy_whatever_the_values_are(n: int, values: list[float], seed: int) -> None:
    x = np.random.default_rng(seed).choice(np.array(values, np.float32), n)
    assert argmax(x, seed=seed) == (NOT_A_NUMBER if np.isnan(x).any() else int(np.argmax(x)))


@pytest.mark.parametrize("n", [17004, 17003])
@pytest.mark.parametrize(("slice", "place"), [(0, 0), (0, 1), (1, -1), (1, 0), (2, 1), (4, -1), (4, 0), (5, -1)])
def test_one_largest_value_is_found_at_the_edges_of_slices(n: int, slice: int, place: int) -> None:
    x = np.full(n, -3.0, np.float32)
    at = min(first_of(n, slice), n) + place
    x[at] = -2.0
    assert argmax(x) == at


@pytest.mark.parametrize("slices", [(0, 1), (1, 2), (3, 4), (0, 4)])
def test_of_equal_values_in_several_slices_the_first_is_found(slices: tuple[int, int]) -> None:
    x = np.full(17003, -3.0, np.float32)
    places = [first_of(x.size, slice) + 5 for slice in slices]
    x[places] = 7.0
    assert argmax(x) == places[0]


def test_zeros_of_both_signs_are_equal() -> None:
    assert argmax(np.array([-1.0, -0.0, 0.0, -0.0], np.float32)) == 1


def test_zeros_of_both_signs_are_equal_in_other_slices() -> None:
    x = np.full(9000, -1.0, np.float32)
    x[[first_of(9000, 1), first_of(9000, 2)]] = -0.0, 0.0
    assert argmax(x) == first_of(9000, 1)


@pytest.mark.parametrize("n", [1, 3, 2000, 9001])
def test_minus_infinity_everywhere_gives_the_first(n: int) -> None:
    assert argmax(np.full(n, -np.inf, np.float32)) == 0


def test_infinity_wins() -> None:
    assert argmax(np.array([1.0, -np.inf, np.inf, 3e38], np.float32)) == 2


@pytest.mark.parametrize(("n", "place"), [(2000, 0), (2000, 500), (2000, 1999), (9001, 0), (9001, 4000), (9001, 9000)])
@pytest.mark.parametrize("nan", [0x7FC00000, 0xFFC00000, 0x7FFFFFFF], ids=hex)
def test_a_nan_anywhere_gives_no_token(n: int, place: int, nan: int) -> None:
    x = np.random.default_rng(1).normal(size=n).astype(np.float32)
    x[n // 2] = np.inf
    x.view(np.uint32)[place] = nan
    assert argmax(x) == NOT_A_NUMBER


def test_a_nan_in_any_slice_takes_the_token_from_its_own_row_only() -> None:
    kernel = ArgMax(n=9001, m=4)
    given = kernel.inputs(np.random.default_rng(2))
    given["x"][1, first_of(9001, 2)] = given["x"][3, 7] = np.nan
    expected = given["x"].argmax(axis=1)
    assert check(kernel, given)["out"].tolist() == [expected[0], NOT_A_NUMBER, expected[2], NOT_A_NUMBER]


@pytest.mark.parametrize("n", [1, 4096, 4097, 128256, 151936, 262144, 2**30 - 1])
def test_slices_are_a_row_without_an_empty_one_and_no_more_than_the_last_block_has_lanes(n: int) -> None:
    kernel = ArgMax(n=n)
    assert 1 <= kernel.slices <= 32
    assert kernel.slice_size * (kernel.slices - 1) < n <= kernel.slice_size * kernel.slices
    assert kernel.slice_size % kernel.width == 0
    assert kernel.launch().blocks == kernel.slices
    assert ArgMax(n=n, m=3).launch().blocks == 3 * kernel.slices


def test_one_slice_needs_no_memory_of_its_own() -> None:
    assert ArgMax(n=4096).scratch == ()
    assert set(ArgMax(n=4096).signature()) == {"out", "x"}
    counters = ArgMax(n=4097, m=3).signature()["counters"]
    assert isinstance(counters, Array)
    assert counters.zeros
    assert counters.shape == (3,)


def test_ranks_sort_as_values_do_and_a_nan_comes_first() -> None:
    x = np.array([np.inf, 3e38, 1.5, 1e-45, 0.0, -0.0, -1e-45, -1.5, -np.inf], np.float32)
    assert (np.diff(ranks_of(x).astype(np.int64)) > 0).all()
    assert ranks_of(np.array([0x7FFFFFFF], np.uint32).view(np.float32)).tolist() == [0]
    assert ranks_of(x).min() > 0
