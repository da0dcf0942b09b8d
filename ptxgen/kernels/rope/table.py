"""The table of rotations, made on the host in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ptxgen.errors import ArgumentError
from ptxgen.kernels.rope.frequencies import frequencies


def rotations(max_len: int, turns: NDArray[np.float64], magnitude: float = 1.0) -> NDArray[np.float32]:
    """f32[max_len, pairs, 2]: magnitude times cosine and sine of position * turns[i]; turns: f64[pairs], radians of a position.
    Raises ArgumentError for no position."""
    if max_len < 1:
        raise ArgumentError(f"max_len must be 1 or more, got {max_len}")
    angles = np.arange(max_len, dtype=np.float64)[:, None] * turns
    table = np.empty((*angles.shape, 2), np.float32)
    table[..., 0], table[..., 1] = magnitude * np.cos(angles), magnitude * np.sin(angles)
    return table


def rope_table(max_len: int, rotary_dim: int, base: float, freq_factors: ArrayLike | None = None) -> NDArray[np.float32]:
    """f32[max_len, rotary_dim / 2, 2]: cosine and sine of position * base^(-2i / rotary_dim) / freq_factors[i].

    `freq_factors` are the rotary_dim / 2 numbers of the tensor `rope_freqs.weight` (Llama 3). Raises ArgumentError.
    """
    return rotations(max_len, frequencies(rotary_dim, base, freq_factors))
