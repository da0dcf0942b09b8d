"""The sum of the squares of a row in parts: one for every 32 values, written by whoever makes these, and the sum of the parts,
by whoever normalises the row. The order of additions is fixed, so that all who make a part make the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import gamma
from ptxgen.kernels.quantize.activation_digits import BLOCK
from ptxgen.target import WARP_SIZE

# Of a value: its product, and the additions of a group.
_ROUNDINGS = 1 + (BLOCK.bit_length() - 1)


def group_squares(k: KernelBuilder, values: Sequence[Value]) -> Value:
    """f32: the sum of the squares of 32 values, in all lanes that have one of them. values: the lane's, one or four side by
    side, so that 32 or 8 lanes have a group. Neighbours are added first, then neighbouring pairs, and so on, whether in one
    lane or in several. All lanes of the warp must come here."""
    sums = [value * value for value in values]
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    total, offset = sums[0], 1
    while offset < BLOCK // len(values):
        total = total + k.shuffle_xor(total, offset)
        offset *= 2
    return total


def total_of_squares(k: KernelBuilder, squares: GlobalArray, groups: int) -> Value:
    """f32: the sum of a row's so many parts, in every lane of every warp that comes here, each for itself. squares:
    f32[groups]. Lane l adds up parts l, l + 32, l + 64, ..., or 0 where it has none; k.warp_sum adds these sums."""
    parts = []
    for start in range(0, groups, WARP_SIZE):
        place = k.lane + start if start else k.lane
        if start + WARP_SIZE <= groups:
            parts.append(k.load(squares[place]))
        else:
            part = k.load(squares[k.min(place, groups - 1)])
            parts.append(k.select(place < groups, part, 0.0))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return k.warp_sum(total)


def exact_squares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """What group_squares computes, of f64[n] values: f64[n / 32]."""
    squares: NDArray[np.float64] = (values.reshape(-1, BLOCK) ** 2).sum(axis=-1)
    return squares


def squares_bound(values: NDArray[np.float64], bound: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far group_squares of f32 values within `bound` of these may be from exact_squares of these. The smallest normal
    number covers squares that underflow."""
    most = exact_squares(np.abs(values) + bound)
    exact = exact_squares(values)
    off: NDArray[np.float64] = most - exact + gamma(_ROUNDINGS) * most + BLOCK * np.finfo(np.float32).tiny
    return off
