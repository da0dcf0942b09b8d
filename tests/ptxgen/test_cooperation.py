"""Shuffles and reductions of 64-bit values, which travel in two halves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen import emulator
from ptxgen.builder import KernelBuilder
from ptxgen.kernels.kernel_type import read, write
from ptxgen.types import F64, S64, U64, DType
from ptxgen.value import Value
from tests.ptxgen.writing import text

THREADS = 96
NUMPY = {F64: np.float64, U64: np.uint64, S64: np.int64}


def after(type: DType, x: NDArray[np.generic], exchange: Callable[[KernelBuilder, Value], Value]) -> NDArray[np.generic]:
    """What each of THREADS threads holds after the exchange of its value of x."""

    def body(k: KernelBuilder) -> None:
        k.store(k.arg.y[k.tid.x], exchange(k, k.load(k.arg.x[k.tid.x])))

    written = text(body, block=THREADS, signature={"x": read(type, THREADS), "y": write(type, THREADS)})
    y = np.zeros_like(x)
    assert not emulator.run(written, "probe", (1, 1, 1), (THREADS, 1, 1), [x, y])
    return y


def values(type: DType) -> NDArray[np.generic]:
    """Random bits in both halves; finite where they are floats."""
    rng = np.random.default_rng(1)
    if type is F64:
        return rng.normal(size=THREADS) * 2.0 ** rng.integers(-60, 60, THREADS)
    return rng.integers(0, 2**64, THREADS, dtype=np.uint64).view(NUMPY[type])


@pytest.mark.parametrize("type", [F64, U64, S64], ids=str)
def test_a_64_bit_value_comes_from_another_lane_whole(type: DType) -> None:
    x, lanes = values(type), np.arange(THREADS)
    assert np.array_equal(after(type, x, lambda k, v: k.shuffle_xor(v, 5)), x[lanes ^ 5])
    assert np.array_equal(after(type, x, lambda k, v: k.shuffle(v, 7)), x[lanes // 32 * 32 + 7])


def test_an_f64_block_sum_adds_lanes_in_halves_and_then_warps() -> None:
    x = np.asarray(values(F64), np.float64)
    sums = x.reshape(3, 32).T
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    first, second, third = sums[0]
    assert np.array_equal(after(F64, x, lambda k, v: k.block_sum(v)), np.full(THREADS, (first + third) + second))


def test_a_64_bit_block_max_is_the_largest() -> None:
    for type in (F64, S64):
        x = values(type)
        assert np.array_equal(after(type, x, lambda k, v: k.block_max(v)), np.full(THREADS, x.max()))
