"""Norms and activations in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.reference.metadata import Metadata

F64 = NDArray[np.float64]
Activation = Callable[[F64], F64]


def normalised(x: F64, kind: str, eps: float) -> F64:
    """x over its last axis with a mean square of 1; kind "layer" takes the mean away first."""
    if kind == "layer":
        x = x - np.mean(x, axis=-1, keepdims=True)
    scaled: F64 = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return scaled


def silu(x: F64) -> F64:
    y: F64 = x / (1.0 + np.exp(-x))
    return y


def gelu(x: F64) -> F64:
    """The tanh form."""
    y: F64 = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))
    return y


def relu2(x: F64) -> F64:
    y: F64 = np.maximum(x, 0) ** 2
    return y


ACTIVATIONS: Final[Mapping[str, Activation]] = {"silu": silu, "gelu": gelu, "relu2": relu2}


def xielu(keys: Metadata, layer: int) -> Activation:
    """apertus: a parabola above 0, an exponential below, by parameters of the layer."""
    raw_n, raw_p, beta, eps = (
        float(value[layer] if isinstance(value, list) else value)
        for value in (keys.fields[f"xielu.{name}"].contents() for name in ("alpha_n", "alpha_p", "beta", "eps"))
    )
    alpha_n, alpha_p = beta + math.log1p(math.exp(raw_n)), math.log1p(math.exp(raw_p))

    def activate(x: F64) -> F64:
        below = (np.expm1(np.minimum(x, eps)) - x) * alpha_n + beta * x
        return np.where(x > 0, alpha_p * x * x + beta * x, below)

    return activate


def capped(x: F64, cap: float) -> F64:
    """x squeezed into -cap..cap; 0: no cap."""
    return cap * np.tanh(x / cap) if cap else x
