"""Massive activations, which 8-bit activations cannot hold beside the others: the predicate on host arrays."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from ptxgen.errors import ArgumentError
from ptxgen.kernels.quantize.outlier_flag import has_outlier

OUTLIER_RATIO: Final = 8.0
"""How many times the root mean square an activation must exceed to count as massive."""


def is_massive_activation_outlier(values: ArrayLike, ratio: float = OUTLIER_RATIO) -> bool:
    """Whether the largest |value| is more than `ratio` times the root mean square of all, or one of them is not finite.

    values: numbers of any shape; they and the ratio are rounded to f32, which makes this the very answer of the kernel
    `outlier_flag` (float64 inside; see ptxgen.kernels.quantize.outlier_flag.has_outlier). Exactly the ratio is no outlier;
    nothing and zeros have none. Raises ArgumentError for a ratio that is negative or NaN, and for values that are not real
    numbers.
    """
    given = np.asarray(values)
    if given.dtype.kind not in "biuf":
        raise ArgumentError(f"activations must be real numbers, got an array of {given.dtype}")
    with np.errstate(over="ignore"):  # beyond f32 is infinite, which is flagged
        x, limit = given.astype(np.float32).reshape(-1), float(np.float32(ratio))
    if not limit >= 0.0:
        raise ArgumentError(f"ratio must be 0 or more, got {ratio}")
    return has_outlier(x, limit)
