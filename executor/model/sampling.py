"""The next token from the logits of one position: greedy, or drawn after top-k, top-p, min-p, temperature. This is the host's;
token_draw.py has the device draw the same."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import array, number, whole
from executor.base.errors import ModelError, SamplingError
from executor.model.logit_adjustments import Adjustments
from ptxgen.errors import ArgumentError
from ptxgen.kernels.token.philox import random_bits
from ptxgen.kernels.token.sampling import sample, settings

MAX_SEED: Final = (1 << 64) - 1


class Sampler:
    """Draws token ids; the same settings, seed and logits give the same ids on every machine.

    The filters run in llama.cpp's order, each on what the one before left, and at least one candidate stays:
    top_k: the k largest logits (0: all); top_p: the fewest candidates whose probabilities add up to top_p (1: all);
    min_p: those with at least min_p times the largest probability (0: all). Then temperature divides the logits, and one
    candidate is drawn with Philox4x32-10, whose key is the seed and whose counter is the number of the draw. What that means to
    the bit, ptxgen.kernels.token.sampling says. Temperature 0 takes the largest logit, the lowest id among equals, and draws
    nothing.
    Before all that logits may be adjusted by penalties and biases, and after top_k typical_p keeps what is typical: see
    Adjustments. ArgumentError names a setting out of its range.
    """

    def __init__(
        self,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
        *,
        typical_p: float = 1.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
    ) -> None:
        self.temperature = number("temperature", temperature, 0)
        self.top_k = whole("top_k", top_k, 0)
        self.top_p = number("top_p", top_p)
        _check("top_p", 0 < self.top_p <= 1, top_p, "above 0, up to 1 (off)")
        self.min_p = number("min_p", min_p, 0, 1)
        self.seed = None if seed is None else whole("seed", seed, 0, MAX_SEED)
        self.adjustments = Adjustments(
            repetition_penalty, presence_penalty, frequency_penalty, {} if logit_bias is None else logit_bias, typical_p
        )
        self.key = secrets.randbits(64) if self.seed is None else self.seed
        """What it draws with: the seed, or one of its own."""
        self.draws = 0
        """How many were made so far."""
        self.settings = settings(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def is_greedy(self) -> bool:
        """Always the largest logit as it is: nothing is drawn or adjusted, so the choice can be made where the logits are."""
        return self.temperature == 0 and not self.adjustments.any

    def with_seed(self, seed: int) -> Sampler:
        """Another sampler of the same settings, which draws from this seed on."""
        other = Sampler(self.temperature, self.top_k, self.top_p, self.min_p, seed)
        other.adjustments = self.adjustments
        return other

    def sample(
        self, logits: NDArray[np.float32], prompt: Sequence[int] = (), answer: Sequence[int] = ()
    ) -> int:  # fmt: skip
        """The next id. logits: f32[vocab]; -inf forbids a token; prompt, answer: the ids before, which penalties look at.
        ModelError for logits with NaN or +inf, or with nothing else than -inf; SamplingError where the settings allow
        nothing."""
        logits = array("logits", logits).astype(np.float32, copy=False)
        _check("logits", logits.ndim == 1 and logits.size > 0, list(logits.shape), "one dimension, at least one value")
        best = int(np.argmax(logits))  # the first NaN, if there is one
        if not math.isfinite(logits[best]):
            raise ModelError(f"the logits cannot be sampled: token {best} has {logits[best]}, and the largest must be finite")
        if self.adjustments.any:
            logits = self.adjustments.adjusted(logits, prompt, answer, self.top_k)
            best = int(np.argmax(logits))
            if not math.isfinite(logits[best]):
                setting = self.adjustments.strongest
                raise SamplingError(f"{setting} leaves no token to choose: the largest logit becomes {logits[best]}", setting)
        if self.temperature == 0:
            return best
        self.draws += 1
        return sample(logits, self.settings, random_bits(self.key, self.draws - 1))


def _check(name: str, allowed: bool, value: object, ranges: str) -> None:
    if not allowed:
        raise ArgumentError(f"{name} is {value}; allowed: {ranges}")
