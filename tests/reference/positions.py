"""How a position enters attention: the rotation of a layer's queries and keys, and ALiBi's slopes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.reference.architectures import Architecture
from tests.reference.metadata import Metadata

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Rotation:
    """By which angles the pairs of a head turn at a position of 1, and how much longer they get."""

    adjacent: bool
    frequency: F64
    magnitude: float

    def __call__(self, x: F64) -> F64:
        """Turn x [tokens, heads, width] by position; what lies beyond the pairs passes unchanged."""
        half = len(self.frequency)
        angle = np.arange(len(x))[:, None] * self.frequency
        turn = self.magnitude * np.exp(1j * angle)[:, None, :]
        part, rest = x[..., : 2 * half], x[..., 2 * half :]
        pairs = part[..., 0::2] + 1j * part[..., 1::2] if self.adjacent else part[..., :half] + 1j * part[..., half:]
        turned = pairs * turn
        if self.adjacent:
            part = np.stack((turned.real, turned.imag), axis=-1).reshape(part.shape)
        else:
            part = np.concatenate((turned.real, turned.imag), axis=-1)
        return np.concatenate((part, rest), axis=-1)


def rotation(keys: Metadata, arch: Architecture, head_dim: int, windowed: bool, factors: F64 | None) -> Rotation:
    """The rotation of a layer; factors: f64[pairs], which divide the frequencies."""
    dims = head_dim if arch.whole_head else int(keys("rope.dimension_count", head_dim))
    base = float(keys("rope.freq_base", 10000.0))
    factor = float(keys("rope.scaling.factor", keys("rope.scale_linear", 0.0))) or 1.0
    kind = str(keys("rope.scaling.type", "linear"))
    magnitude = float(keys("rope.scaling.attn_factor", 1.0))
    if kind == "none":
        factor = 1.0
    stretch = factor
    alpha = float(keys("rope.scaling.alpha", 0.0)) if arch.alpha else 0.0
    if alpha > 0:
        base *= alpha ** (head_dim / (head_dim - 2))
    window = arch.window if windowed else None
    if window is not None:
        base = base if window.base is None else window.base
        base = float(keys("rope.freq_base_swa", base)) if window.keyed else base
        stretch = factor if window.scaled else 1.0
        magnitude = 1.0 if window.plain else magnitude
    plain = base ** (-2.0 * np.arange(dims // 2) / dims)
    if factors is not None:
        plain = plain / factors
    frequency = plain / stretch
    if kind == "yarn" and not (window is not None and window.plain):
        mix = _extrapolated(keys, arch, dims, base)
        frequency = frequency * (1 - mix) + plain * mix
        longer = 1 + 0.1 * math.log(max(stretch, 1.0))
        log_multiplier = float(keys("rope.scaling.yarn_log_multiplier", 0.0)) if arch.yarn_keys else 0.0
        magnitude *= longer / (1 + 0.1 * log_multiplier * math.log(max(factor, 1.0)))
    sections = [int(count) for count in keys("rope.dimension_sections", [0, 0, 0, 0])] if arch.sections else [0, 0]
    if any(sections):
        frequency = np.where(_advancing(sections, dims // 2, arch.sections == "interleaved"), frequency, 0.0)
    adjacent = arch.pairs == "adjacent" and not (sections[0] and sections[1])
    return Rotation(adjacent, frequency, magnitude)


def _extrapolated(keys: Metadata, arch: Architecture, dims: int, base: float) -> F64:
    """YaRN's share of the unscaled frequency by pair: 1 for the fast ones, 0 for the slow ones."""
    trained = int(keys("rope.scaling.original_context_length", keys("context_length")))

    def pair(name: str, turns: float) -> float:
        turns = float(keys(f"rope.scaling.yarn_{name}", turns)) if arch.yarn_keys else turns
        return dims * math.log(trained / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = max(0, math.floor(pair("beta_fast", 32.0))), min(dims - 1, math.ceil(pair("beta_slow", 1.0)))
    ramp: F64 = 1 - np.clip((np.arange(dims // 2) - low) / max(0.001, high - low), 0, 1)
    return ramp


def _advancing(sections: Sequence[int], pairs: int, interleaved: bool) -> NDArray[np.bool_]:
    """Which pairs turn with a text's position: those of time, height and width; those of the fourth section stay."""
    sector = np.arange(pairs) % sum(sections)
    if interleaved:
        of_axis = np.choose(sector % 3, [sections[0], sections[1], sections[2]])
        return sector < 3 * of_axis
    return sector < sum(sections[:3])


def slopes(heads: int, largest: float) -> F64:
    """ALiBi's slope of each head, f64[heads]; `largest` is the exponent that the first 2^n heads share."""
    power = 1 << int(math.log2(heads))
    index = np.arange(heads)
    first, other = 2.0 ** (-largest / power), 2.0 ** (-largest / 2 / power)
    slope: F64 = np.where(index < power, first ** (index + 1.0), other ** (2.0 * (index - power) + 1))
    return slope


def windows(keys: Metadata, arch: Architecture) -> tuple[int, list[bool]]:
    """The width of the window in keys, the query's own included (0: none), and which layers have it."""
    none = [False] * keys.layers
    if arch.window is None or arch.window.only_layers not in (0, keys.layers):
        return 0, none
    width = int(keys("attention.sliding_window", arch.window.default))
    pattern = keys("attention.sliding_window_pattern", arch.window.pattern)
    if not width:
        return 0, none
    if isinstance(pattern, list):
        return width, [bool(layer) for layer in pattern[: keys.layers]]
    return width, [not pattern or index % pattern < pattern - 1 for index in range(keys.layers)]
