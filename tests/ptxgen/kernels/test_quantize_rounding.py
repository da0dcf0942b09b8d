"""The quantisers do without most divisions: their integers are those of correctly rounded quotients all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.kernels.quantize.int8_planes import BLOCK, LARGEST, quantize
from ptxgen.kernels.quantize.quantize import Quantize
from tests.ptxgen.kernels.running import emulate

BLOCKS = 2048
SHAPE = (BLOCKS, BLOCK)

Values = Callable[[np.random.Generator, int], NDArray[Any]]


def any_bits(rng: np.random.Generator, digits: int) -> NDArray[Any]:
    """Subnormals, infinities and NaN among them."""
    return np.frombuffer(rng.bytes(4 * BLOCKS * BLOCK), np.float32).reshape(SHAPE)


def peaks_of_every_size(rng: np.random.Generator, digits: int) -> NDArray[Any]:
    """Blocks of values down to 2^-26 of the peak, which has any exponent that f32 has."""
    below = rng.integers(0, 27, SHAPE)
    below[:, 0] = 0
    signed = rng.uniform(1.0, 2.0, SHAPE) * rng.choice([-1.0, 1.0], SHAPE)
    x: NDArray[Any] = np.ldexp(signed, rng.integers(-149, 128, (BLOCKS, 1)) - below).astype(np.float32)
    return x


def beside_ties(rng: np.random.Generator, digits: int) -> NDArray[Any]:
    """Values whose quotient is half an integer, and the next f32 on either side; peaks on both sides of 2^-60."""
    peaks = np.ldexp(rng.uniform(1.0, 2.0, (BLOCKS, 1)), rng.integers(-70, 20, (BLOCKS, 1))).astype(np.float32)
    halves = rng.integers(0, LARGEST[digits], SHAPE) + 0.5
    x = (halves * (peaks / np.float32(LARGEST[digits]))).astype(np.float32)
    x = (x.view(np.int32) + rng.integers(-1, 2, SHAPE)).astype(np.int32).view(np.float32)
    x[:, :1] = peaks
    signed: NDArray[Any] = x * rng.choice([-1.0, 1.0], SHAPE).astype(np.float32)
    return signed


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("values", [any_bits, peaks_of_every_size, beside_ties])
def test_every_integer_is_that_of_the_rounded_quotient(values: Values, digits: int) -> None:
    kernel = Quantize(digits, n=BLOCK * BLOCKS)
    rng = np.random.default_rng(digits)
    x = values(rng, digits).reshape(1, -1)
    results, _ = emulate(kernel, {**kernel.inputs(rng), "x": x}, sanitize=False)
    for name, wanted in quantize(x, digits)._asdict().items():
        assert np.array_equal(results[name], wanted, equal_nan=name == "scales"), name
