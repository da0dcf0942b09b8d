"""What tolerances and sample activations of all kernels build on: the rounding of f32, and the outlier of real activations."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

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
