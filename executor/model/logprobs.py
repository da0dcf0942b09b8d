"""How likely tokens are, by the logits of their places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import ModelError


@dataclass(frozen=True)
class TokenLogprob:
    """How likely a token was: natural logarithms of probabilities by the model's logits as they are, before any setting of the
    sampler. top: the likeliest tokens of its place with theirs, the likeliest first, the lowest id first among equals; start:
    where it begins in the text of the answer, in characters."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    start: int = 0


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """f64[vocab]: logarithms of probabilities. ModelError for logits that have none: NaN, +inf, or nothing but -inf."""
    x = logits.astype(np.float64)
    largest = float(x.max())  # NaN if there is one
    if not math.isfinite(largest):
        raise ModelError(f"the logits have no probabilities: the largest is {largest}, and it must be finite")
    return np.asarray(x - (largest + math.log(float(np.exp(x - largest).sum()))))


def token_logprob(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """Of a token by these logits, with the `top` likeliest ones."""
    all_of_them = log_softmax(logits)
    count = min(top, logits.size)
    best: Sequence[int] = np.lexsort((np.arange(logits.size), -all_of_them))[:count].tolist() if count else ()
    return TokenLogprob(token, float(all_of_them[token]), tuple((id, float(all_of_them[id])) for id in best))
