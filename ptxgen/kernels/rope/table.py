"""The table of rotations, made on the host in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ptxgen.errors import ArgumentError


def rope_table(max_len: int, rotary_dim: int, base: float, freq_factors: ArrayLike | None = None) -> NDArray[np.float32]:
    """f32[max_len, rotary_dim / 2, 2]: cosine and sine of position * base^(-2i / rotary_dim) / freq_factors[i].

    `freq_factors` are the rotary_dim / 2 numbers of the tensor `rope_freqs.weight` (Llama 3). Raises ArgumentError.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise ArgumentError(f"rotary_dim must be even and positive, got {rotary_dim}")
    if max_len < 1:
        raise ArgumentError(f"max_len must be 1 or more, got {max_len}")
    if not (np.isfinite(base) and base > 0):
        raise ArgumentError(f"the base of rope must be positive and finite, got {base}")
    half = rotary_dim // 2
    frequencies = base ** (-2.0 * np.arange(half, dtype=np.float64) / rotary_dim)
    if freq_factors is not None:
        factors = np.asarray(freq_factors, dtype=np.float64)
        if factors.shape != (half,) or not (np.isfinite(factors) & (factors > 0)).all():
            raise ArgumentError(f"freq_factors must be {half} positive finite numbers, got shape {factors.shape}")
        frequencies = frequencies / factors
    angles = np.arange(max_len, dtype=np.float64)[:, None] * frequencies
    table = np.empty((max_len, half, 2), np.float32)
    table[..., 0], table[..., 1] = np.cos(angles), np.sin(angles)
    return table
