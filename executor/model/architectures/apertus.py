"""apertus: Apertus: heads of Q and K are normalised, and a network without a gate is activated by xIELU, with numbers of each
layer."""

from __future__ import annotations

import math
from typing import Final

from executor.layers.shape import XieluNumbers
from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec

KEYS: Final = ("xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps")
LARGEST: Final = 80  # whose exponential f32 holds
LEAST: Final = 2.0**-126  # below 0 no more is cut off than f32 can tell from 0


def _build(m: Metadata) -> ModelSpec:
    numbers = list(zip(*map(m.of_layers, KEYS), strict=True))
    for alpha_n, alpha_p, beta, eps in numbers:
        if beta <= 0 or max(abs(alpha_n), abs(alpha_p)) > LARGEST:
            given = f"{', '.join(KEYS)} are {alpha_n}, {alpha_p}, {beta} and {eps}"
            m.fail(f"{given}; allowed: alphas of -{LARGEST} to {LARGEST}, beta above 0")

    def activation(layer: int) -> XieluNumbers:
        alpha_n, alpha_p, beta, eps = numbers[layer]
        return XieluNumbers(beta + _softplus(alpha_n), _softplus(alpha_p), beta, max(-eps, LEAST))

    return dense_decoder(m, rope(m, "neox", head_dim(m)), qk_norm=True, activation=activation, gated=False)


def _softplus(x: float) -> float:
    return math.log1p(math.exp(x))


ARCHITECTURE: Final = Architecture(
    name="apertus",
    model_class="ApertusForCausalLM",
    build=_build,
    unused=frozenset({"attn_q_norm.bias", "attn_k_norm.bias"}),
)
