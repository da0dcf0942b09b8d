"""The sum of the squares of a row, in the one order in which all kernels add them that make or read int8 planes of activations
of an RMSNorm: first the 32 values of each block of planes, then these sums. So who computes a block of the row can leave its
sum, and who reads the row adds what all left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, SharedView
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import gamma
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32

LANE_VALUES = 4
"""Neighbouring values of a lane, of one 16-byte load."""

GROUP_TREE = BLOCK.bit_length() - 1
"""Additions that a square goes through in the sum of its block."""


def group_squares(k: KernelBuilder, values: Sequence[Value]) -> Value:
    """The sum of the squares of a block of 32 values, in all lanes that share it: each has one of them, or four neighbours.

    The tree is that of lanes 1, 2, 4, 8 and 16 away, in this order, so that who has neighbours adds these first. All lanes of
    the warp must come here."""
    sums = [value * value for value in values]
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    (total,) = sums
    away = 1
    while away < BLOCK // len(values):
        total = total + k.shuffle_xor(total, away)
        away *= 2
    return total


class SumOfSquares:
    """The sum of the sums of a row's blocks, f32[blocks], in every lane, each warp for itself: lane l adds those of block l, of
    block l + 32 and so on, then the warp adds its lanes'. All lanes of the warp must come here."""

    def __init__(self, k: KernelBuilder, squares: GlobalArray | SharedView, blocks: int) -> None:
        """Write the loads."""
        self._k = k
        self._loaded = []
        for first in range(0, blocks, WARP_SIZE):
            block = k.lane + first if first else k.lane
            if first + WARP_SIZE <= blocks:
                self._loaded.append(k.load(squares[block]))
            else:
                self._loaded.append(k.select(block < blocks, k.load(squares[k.min(block, blocks - 1)]), 0.0))

    def total(self) -> Value:
        """Write the additions."""
        total, *others = self._loaded
        for other in others:
            total = total + other
        return self._k.warp_sum(total)


def total_chain(blocks: int) -> int:
    """Additions that the sum of a block goes through in SumOfSquares."""
    return -(-blocks // WARP_SIZE) - 1 + WARP_SIZE.bit_length() - 1


def row_squares(k: KernelBuilder, row: GlobalArray, size: int) -> Value:
    """The sum of the squares of a row of `size` values, a multiple of 32, in every thread of a block of whole warps. All
    threads must come here."""
    step, blocks = k.threads * LANE_VALUES, size // BLOCK
    sums = k.shared(F32, blocks)
    firsts = [k.tid.x * LANE_VALUES + start for start in range(0, size, step)]
    loaded = [k.load_vector(row[k.min(first, size - LANE_VALUES)], LANE_VALUES) for first in firsts]
    for first, values in zip(firsts, loaded, strict=True):
        total = group_squares(k, values)
        with k.when((first < size) & ((k.lane & (BLOCK // LANE_VALUES - 1)) == 0)):
            k.store(sums[first // BLOCK], total)
    k.barrier()
    return SumOfSquares(k, sums, blocks).total()


def inverse_root(k: KernelBuilder, total: Value, size: int, eps: Value) -> Value:
    """1 / sqrt(total / size + eps): what a row of `size` values is multiplied by, from the sum of its squares. It has no
    branch; total / size + eps is to be 2^-125 or more.

    Rounded are 1 / size, its product, the sum with eps and the root: no more than what `root_units` of rmsnorm.py allows."""
    return mathlib.rsqrt_of_normal(k, total * (1 / size) + eps)


def exact_squares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """What group_squares computes, of f64[n] values: f64[n / 32]."""
    squares: NDArray[np.float64] = (values.reshape(-1, BLOCK) ** 2).sum(axis=-1)
    return squares


def rounded_squares(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The very bits of group_squares, of f32[n] values: f32[n / 32]."""
    sums = values.reshape(-1, BLOCK) ** 2
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    return sums[:, 0]


def squares_bound(values: NDArray[np.float64], bound: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far group_squares of f32 values within `bound` of these may be from exact_squares of these. The smallest normal
    number covers squares that underflow."""
    most = exact_squares(np.abs(values) + bound)
    exact = exact_squares(values)
    off: NDArray[np.float64] = most - exact + gamma(1 + GROUP_TREE) * most + BLOCK * np.finfo(np.float32).tiny
    return off
