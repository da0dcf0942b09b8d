"""The frequencies of rotary embeddings, in float64: radians that a pair of values turns by from one position to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ptxgen.errors import ArgumentError


@dataclass(frozen=True)
class Yarn:
    """YaRN (Peng et al. 2023, section 3.2): frequencies that turn at least `beta_fast` times in `original_context` positions
    stay, those that turn at most `beta_slow` times are scaled, and those in between are mixed."""

    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def scaled_share(self, dim: int, base: float) -> NDArray[np.float64]:
        """f64[dim / 2]: how much of each frequency is scaled, 0 to 1. The limits are whole pairs, as in llama.cpp."""

        def pair_of(turns: float) -> float:
            return float(dim * np.log(self.original_context / (turns * 2 * np.pi)) / (2 * np.log(base)))

        low = max(0.0, np.floor(pair_of(self.beta_fast)))
        high = min(dim - 1.0, np.ceil(pair_of(self.beta_slow)))
        share: NDArray[np.float64] = np.clip((np.arange(dim // 2) - low) / max(0.001, high - low), 0.0, 1.0)
        return share


def frequencies(
    dim: int, base: float, divisors: ArrayLike | None = None, *, scale: float = 1.0, yarn: Yarn | None = None
) -> NDArray[np.float64]:
    """f64[dim / 2]: base^(-2i / dim) / divisors[i], times `scale`; with `yarn`, only the share that it says is scaled.

    divisors: dim / 2 finite numbers other than 0, such as the tensor `rope_freqs.weight` of Llama 3. scale 0 turns nothing.
    Raises ArgumentError for an odd or non-positive dim, a base that is not positive and finite, and other divisors."""
    if dim < 2 or dim % 2:
        raise ArgumentError(f"rotary_dim must be even and positive, got {dim}")
    if not (np.isfinite(base) and base > 0):
        raise ArgumentError(f"the base of rope must be positive and finite, got {base}")
    half = dim // 2
    found: NDArray[np.float64] = base ** (-2.0 * np.arange(half, dtype=np.float64) / dim)
    if divisors is not None:
        factors = np.asarray(divisors, dtype=np.float64)
        if factors.shape != (half,) or not (np.isfinite(factors) & (factors != 0)).all():
            raise ArgumentError(f"freq_factors must be {half} finite numbers other than 0, got shape {factors.shape}")
        found = found / factors
    if yarn is not None and base <= 1:
        raise ArgumentError(f"the base of a rotation with YaRN must be above 1, got {base}")
    share = 1.0 if yarn is None else yarn.scaled_share(dim, base)
    return found * (1.0 + share * (scale - 1.0))
