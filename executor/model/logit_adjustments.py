"""What a sampler does to logits before a token is chosen: penalties for what was said before, biases, and the filter of locally
typical sampling. On the host, in f32, each operation in one order, so that the same token comes out on every machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import described, number, whole
from ptxgen.errors import ArgumentError
from ptxgen.kernels.token.sampling import weights


@dataclass(frozen=True)
class Adjustments:
    """repetition_penalty: a logit of a token of the prompt or the answer is divided by it if positive, else multiplied (CTRL,
    arXiv 1909.05858; 1: off). frequency_penalty: taken from a logit for each time that the answer has the token;
    presence_penalty: once if it has it at all (OpenAI's; 0: off). logit_bias: added to the logits of these tokens; -inf forbids
    one. typical_p: the fewest candidates whose surprise is nearest to the mean one and whose probabilities add up to it stay
    (locally typical sampling, arXiv 2202.00666; 1: all). ArgumentError names a setting out of its range."""

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    typical_p: float = 1.0

    def __post_init__(self) -> None:
        if number("repetition_penalty", self.repetition_penalty) <= 0:
            raise ArgumentError(f"repetition_penalty is {self.repetition_penalty}; allowed: above 0, 1 is off")
        number("presence_penalty", self.presence_penalty)
        number("frequency_penalty", self.frequency_penalty)
        if not 0 < number("typical_p", self.typical_p) <= 1:
            raise ArgumentError(f"typical_p is {self.typical_p}; allowed: above 0, up to 1 (off)")
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    @cached_property
    def any(self) -> bool:
        """Whether anything is adjusted; asked for each token."""
        return self != Adjustments()

    @property
    def strongest(self) -> str:
        """The setting that can make a finite logit infinite, where one has."""
        neutral = Adjustments()
        names = ("logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty")
        return next(name for name in names if getattr(self, name) != getattr(neutral, name))

    def require(self, vocab: int) -> None:
        """ArgumentError for a bias of what is no token of a vocabulary of so many."""
        for token in self.logit_bias:
            if token >= vocab:
                raise ArgumentError(f"logit_bias names token {token}; the vocabulary has ids 0 to {vocab - 1}")

    def adjusted(
        self, logits: NDArray[np.float32], prompt: Sequence[int], answer: Sequence[int], top_k: int
    ) -> NDArray[np.float32]:
        """The logits with penalties and biases, and -inf for what is not typical among the top_k (0: all) largest."""
        self.require(logits.size)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # the sampler looks at what is left
            out = self._penalised(logits, prompt, answer)
        return out if self.typical_p == 1 or np.isnan(out).any() else _typical(out, self.typical_p, top_k)

    def _penalised(
        self, logits: NDArray[np.float32], prompt: Sequence[int], answer: Sequence[int]
    ) -> NDArray[np.float32]:  # fmt: skip
        out = logits.copy()
        seen = np.unique(np.asarray([*prompt, *answer], np.int64)) if self.repetition_penalty != 1 else np.empty(0, np.int64)
        factor = np.float32(self.repetition_penalty)
        out[seen] = np.where(out[seen] > 0, out[seen] / factor, out[seen] * factor)
        said, counts = np.unique(np.asarray(answer, np.int64), return_counts=True)
        out[said] -= counts.astype(np.float32) * np.float32(self.frequency_penalty) + np.float32(self.presence_penalty)
        for token, bias in self.logit_bias.items():
            out[token] += np.float32(bias)
        return out


def _biases(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ArgumentError(f"logit_bias is {described(value)}; allowed: numbers by token id")
    found = {}
    for token, bias in value.items():
        id = whole("a token of logit_bias", token, 0)
        if not isinstance(bias, Real) or isinstance(bias, bool) or math.isnan(bias) or bias == math.inf:
            raise ArgumentError(
                f"logit_bias of token {id} is {described(bias)}; allowed: a finite number, or -inf to forbid it"
            )
        found[id] = float(bias)
    return found


def _typical(logits: NDArray[np.float32], share: float, top_k: int) -> NDArray[np.float32]:
    """-inf for all but the candidates nearest to the mean surprise. A token's surprise less the mean of all is the mean logit
    less its own. Its weight is a whole number, as when it is drawn, and the sum of the products is rounded once."""
    order = np.lexsort((np.arange(logits.size), -logits))
    ids = order[: top_k or None]
    with np.errstate(over="ignore"):
        relative = (logits[ids] - logits[ids[0]]).astype(np.float64)
        chances = weights((logits[ids] - logits[ids[0]]).astype(np.float32))
    likely = chances > 0
    ids, relative, chances = ids[likely], relative[likely], chances[likely]
    if not ids.size:
        return logits  # nothing finite: the sampler says so
    mean = math.fsum(float(w) * float(x) for w, x in zip(chances, relative, strict=True)) / float(chances.sum())
    nearest = np.lexsort((ids, np.abs(relative - mean)))
    reached = np.cumsum(chances[nearest])
    enough = max(int(int(reached[-1]) * share), 1)
    kept = ids[nearest[: int(np.searchsorted(reached, np.uint64(enough))) + 1]]
    out = np.full_like(logits, -np.inf)
    out[kept] = logits[kept]
    return out
