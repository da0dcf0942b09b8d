"""What it means to sample a token, to the bit: which ones the filters leave and which one a random number chooses. In NumPy.

Probabilities are whole numbers: the weight of a logit x is e^(x - largest) in units of 2^-40, cut, where the exponential is a
fixed sequence of f32 operations, each correctly rounded. Sums of whole numbers do not depend on the order, so that every device
finds the same token, in whatever order it adds. A token 2^40 times less likely than the likeliest has the weight 0: it is never
drawn.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.mathlib import EXP_TAIL, LN2_HIGH, LN2_LOW, ROUNDER, ROUNDER_BITS

UNIT_BITS: Final = 40
"""The likeliest token has the weight 2^UNIT_BITS."""

MANTISSA_BITS: Final = 24
LOWEST: Final = -30.0
"""Below the logarithm of 2^-UNIT_BITS: the weight of all that is smaller is 0."""

LANES: Final = 2048
"""The draw goes through the ids 0, LANES, 2 LANES, ..., then 1, LANES + 1, ...: neighbours are in
different bins of a kernel's histogram."""

SMALLEST: Final = 2.0**-126
"""A temperature below has no f32 reciprocal; it takes the largest logit, as 0 does."""


def settings(temperature: float, top_k: int, top_p: float, min_p: float) -> NDArray[np.uint32]:
    """u32[4], as the kernel takes them: the bits of the f32 1 / temperature, top_k (0: all), top_p in units of 2^-32 (0: all),
    the bits of the f32 ln(min_p) (-inf: all)."""
    scale = np.float32(max(1 / max(temperature, SMALLEST), SMALLEST))  # never 0: -inf times it is -inf
    least = np.float32(math.log(min_p) if min_p > 0 else -math.inf)
    most = 1 if temperature < SMALLEST else min(top_k, 2**32 - 1)
    share = 0 if top_p == 1 else max(int(top_p * 2**32), 1)
    return np.array([scale.view(np.uint32), most, share, least.view(np.uint32)], np.uint32)


def sample(logits: NDArray[np.float32], settings: NDArray[np.uint32], random: int) -> int:
    """The id that 64 random bits choose. logits: f32[n], the largest finite, none NaN; settings: of `settings`.

    Candidates stand in the order of their logits, the largest first, the lowest id first among equals (-0 equals +0). A filter
    keeps the first of those that the one before left: top_k that many; top_p the fewest whose weights, at temperature 1, reach
    top_p of their sum, rounded down; min_p those whose logit is at least the f32 sum of the largest and ln(min_p). The token is
    the first one, in the order of LANES, up to which the weights of (x - largest) / temperature sum to more than random / 2^64
    of their total, rounded down."""
    scale, least = settings[[0, 3]].view(np.float32)
    top_k, top_p = int(settings[1]), int(settings[2])
    largest = logits.max()
    ids = np.arange(logits.size)
    if 0 < top_k < logits.size:
        last = np.partition(logits, -top_k)[-top_k]
        above = np.flatnonzero(logits > last)
        ids = np.concatenate([above, np.flatnonzero(logits == last)[: top_k - above.size]])
    ids = ids[logits[ids] > -np.inf]  # whose weight is 0: a grammar leaves few
    with np.errstate(over="ignore"):  # a logit that is far below the largest, or a tiny temperature: the weight is 0
        if top_p:
            ids = ids[np.lexsort((ids, -logits[ids]))]
            reached = np.cumsum(weights(logits[ids] - largest))
            enough = max(int(reached[-1]) * top_p >> 32, 1)
            ids = ids[: int(np.searchsorted(reached, np.uint64(enough))) + 1]
        ids = ids[logits[ids] >= largest + least]
        table = np.zeros((-(-logits.size // LANES), LANES), np.uint64)
        table.reshape(-1)[ids] = weights((logits[ids] - largest) * scale)
    sums = np.cumsum(table.T)
    chosen = int(np.searchsorted(sums, np.uint64(int(sums[-1]) * random >> 64), side="right"))
    lane, row = divmod(chosen, table.shape[0])
    return row * LANES + lane


def weights(x: NDArray[np.float32]) -> NDArray[np.uint64]:
    """e^x in units of 2^-UNIT_BITS, for x <= 0: the exponential of ptxgen/dsl/mathlib.py without fused operations, which NumPy
    has not. Within 2 ulp of f32 before it is cut."""
    f32 = np.float32
    inside = np.maximum(x, f32(LOWEST))
    rounded = inside * f32(math.log2(math.e)) + f32(ROUNDER)
    power = rounded - f32(ROUNDER)
    r = (inside - power * f32(LN2_HIGH)) - power * f32(LN2_LOW)
    tail = np.full_like(r, EXP_TAIL[-1])
    for coefficient in EXP_TAIL[-2::-1]:
        tail = tail * r + f32(coefficient)
    mantissa = (tail * (r * r) + r) + f32(1)  # 0.7 to 1.42, so a whole number of units of 2^-24
    whole = (mantissa * f32(2**MANTISSA_BITS)).astype(np.uint64) << np.uint64(UNIT_BITS - MANTISSA_BITS)
    cut: NDArray[np.uint64] = whole >> (ROUNDER_BITS - rounded.view(np.int32)).astype(np.uint64)
    return cut
