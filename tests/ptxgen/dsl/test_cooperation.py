"""Shuffles and reductions: 64-bit values, which travel in two halves, and the order in which a block adds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen import emulator
from ptxgen.dsl.arguments import read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.errors import AuthorError
from ptxgen.types import F32, F64, S64, U64, DType
from tests.ptxgen.dsl.writing import text

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


@pytest.mark.parametrize("warps", [1, 2, 3, 4, 8, 16])
def test_a_block_sum_adds_lanes_and_then_warps_in_halves(warps: int) -> None:
    x = np.random.default_rng(warps).normal(size=32 * warps).astype(np.float32)

    def body(k: KernelBuilder) -> None:
        k.store(k.arg.y[k.tid.x], k.block_sum(k.load(k.arg.x[k.tid.x])))

    written = text(body, block=x.size, signature={"x": read(F32, x.size), "y": write(F32, x.size)})
    y = np.zeros_like(x)
    assert not emulator.run(written, "probe", (1, 1, 1), (x.size, 1, 1), [x, y])
    of_warps = np.zeros(32, np.float32)  # missing warps add nothing
    of_warps[:warps] = halved(x.reshape(warps, 32).T)
    assert y.tobytes() == np.full(x.size, halved(of_warps)).tobytes()


def test_a_part_sum_is_the_block_sum_of_the_part_that_each_thread_names() -> None:
    x = np.random.default_rng(3).normal(size=256).astype(np.float32)

    def body(k: KernelBuilder) -> None:
        k.store(k.arg.y[k.tid.x], k.part_sum(k.load(k.arg.x[k.tid.x]), 2, k.lane & 1))

    written = text(body, block=256, signature={"x": read(F32, 256), "y": write(F32, 256)})
    y = np.zeros_like(x)
    assert not emulator.run(written, "probe", (1, 1, 1), (256, 1, 1), [x, y])
    sums = [halved(halved(part.reshape(4, 32).T)) for part in x.reshape(2, 128)]
    assert y.tobytes() == np.tile(np.stack(sums), 128).tobytes()


def test_a_part_sum_of_parts_that_are_no_2_4_or_8_warps_is_refused() -> None:
    def body(k: KernelBuilder) -> None:
        k.part_sum(k.f32(1.0), 3, k.lane)

    with pytest.raises(AuthorError, match="not f32 and 3 parts of 96 threads"):
        text(body, block=THREADS, signature={"y": write(F32, 1)})


def halved(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sum over the first axis: those 16 apart, then 8, 4, 2, 1."""
    while len(values) > 1:
        values = values[: len(values) // 2] + values[len(values) // 2 :]
    return np.asarray(values[0])
