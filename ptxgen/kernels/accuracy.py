"""What tolerances and sample activations of all kernels build on: the rounding of f32, and the outlier of real activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.formats import Format

UNIT: Final = 2.0**-24
"""The unit roundoff of f32: an operation rounded to nearest is off by at most UNIT times its exact result."""

OUTLIER: Final = 26.0
"""An activation channel of real models is this many times the root mean square (dimension 408 of Qwen2.5-Coder-1.5B)."""


def gamma(roundings: int) -> float:
    """How far a product that goes through so many roundings may be off, relative to it: n u / (1 - n u) (Higham, Accuracy and
    Stability of Numerical Algorithms, 3.1)."""
    return roundings * UNIT / (1 - roundings * UNIT)


def with_outlier(rng: np.random.Generator, *shape: int, channel: float = OUTLIER) -> NDArray[np.float32]:
    """Normal activations f32[*shape], of which one channel (of the last axis) is at `channel` times their root mean square."""
    x = rng.standard_normal(shape).astype(np.float32)
    x[..., rng.integers(shape[-1])] = channel
    return x


MEASURED_ROWS: Final = 64
"""Rows of the matrix of `product_errors`."""


def product_errors(
    rng: np.random.Generator, format: Format, k: int, rounded: Callable[[NDArray[np.float32]], NDArray[np.float64]]
) -> dict[str, float]:
    """What rounding activations costs a product with rows of k weights: the root mean square error of y, relative to that of y,
    for normal activations and with one channel at OUTLIER times their root mean square. rounded: what a kernel makes of f32[1,
    k], as f64."""
    weights = format.dequantize(format.random_blocks(rng, MEASURED_ROWS, k)).astype("f8")
    errors = {}
    for situation, channel in (("normal activations", 1.0), (f"one channel at {OUTLIER:g} x rms", OUTLIER)):
        x = with_outlier(rng, 1, k, channel=channel)
        exact = weights @ x[0].astype("f8")
        error = weights @ rounded(x)[0] - exact
        errors[situation] = float(np.sqrt(np.mean(error**2) / np.mean(exact**2)))
    return errors
