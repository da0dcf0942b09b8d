"""Rows of which a half or a quarter of a warp has all fragments: the bits of a whole warp, and what the lanes do that had
nothing to do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.formats import ALL
from ptxgen.kernels.compose import defer_norm, fuse_swiglu
from ptxgen.kernels.gemv.fragments import Fragments
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels import gemvs
from tests.ptxgen.kernels.checking import run
from tests.ptxgen.kernels.test_coalescing import WEIGHTS, noted

Q4_K = ALL["Q4_K"]

SHORT = [
    ("Q4_K", 1024, 16),
    ("Q4_K", 768, 16),
    ("Q4_K", 512, 8),
    ("Q4_K", 256, 8),
    ("Q5_K", 1024, 16),
    ("Q6_K", 1024, 16),
    ("Q6_K", 512, 8),
    ("Q6_K_ALIGNED", 1024, 16),
    ("Q8_0", 256, 16),
    ("Q8_0", 96, 8),
    ("Q8_0_ALIGNED", 256, 16),
    ("Q4_0", 352, 16),
    ("MXFP4", 32, 8),
]
"""Formats, values of a row, and lanes that go along it."""


def by_a_whole_warp(kernel: HwDp4aGemv, given: dict[str, Any]) -> NDArray[Any]:
    """y of rows that end in zeros, so that a warp has no lanes to spare; of weights and of activations."""
    k = Fragments(kernel.format, kernel.k).values
    zeros, blocks = k - kernel.k, (k - kernel.k) // BLOCK
    after = {"w": kernel.format.row_bytes(zeros), "digits": zeros, "scales": blocks, "sums": blocks}
    longer = {name: np.pad(given[name], [(0, 0)] * (given[name].ndim - 1) + [(0, more)]) for name, more in after.items()}
    whole = replace(kernel, k=k)
    assert whole.fragments.lanes == 32
    y: NDArray[Any] = run(whole, given | longer)["y"]
    return y


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize(("format", "k", "lanes"), SHORT)
def test_a_share_of_a_warp_gives_the_bits_of_a_whole_one(format: str, k: int, lanes: int, digits: int) -> None:
    for warps, rows in ((2, 2), (1, 3)):
        kernel = gemvs.residual(ALL[format], k=k, n=13, digits=digits, num_warps=warps, rows_per_warp=rows)
        assert kernel.fragments.lanes == lanes
        given = kernel.inputs(np.random.default_rng(k))
        assert run(kernel, given)["y"].tobytes() == by_a_whole_warp(kernel, given).tobytes()


def test_several_rows_of_activations_have_them_too() -> None:
    kernel = gemvs.batched(Q4_K, m=5, k=1024, n=13, digits=3, num_warps=2, rows_per_warp=1)
    given = kernel.inputs(np.random.default_rng(5))
    assert run(kernel, given)["y"].tobytes() == by_a_whole_warp(kernel, given).tobytes()


@pytest.mark.parametrize("k", [1024, 512])
def test_a_sum_of_negative_zeros_is_zero_as_it_is_with_the_zeros_of_other_lanes(k: int) -> None:
    kernel = HwDp4aGemv(Q4_K, k=k, n=3, digits=1)
    given = kernel.inputs(np.random.default_rng(0))
    blocks = given["w"].reshape(-1, Q4_K.block_bytes)
    blocks[:] = 0
    blocks[:, 2] = 1  # the scale of minima is the smallest f16
    blocks[:, 4:16] = 0xFF
    given |= {"scales": np.full_like(given["scales"], 2.0**-149), "sums": np.ones_like(given["sums"])}
    y = run(kernel, given)["y"]
    assert y.tobytes() == bytes(y.nbytes) == by_a_whole_warp(kernel, given).tobytes()


@pytest.mark.parametrize(
    ("format", "k"),
    [("Q4_K", 1024), ("Q4_K", 512), ("Q6_K", 1024), ("Q6_K_ALIGNED", 1024), ("Q8_0", 128), ("Q8_0_ALIGNED", 256)],
)
def test_shares_take_the_words_that_a_warp_takes_of_one_long_row(format: str, k: int) -> None:
    short = HwDp4aGemv(ALL[format], k=k, n=8, num_warps=1, rows_per_warp=1)
    lane_groups = short.fragments.lane_groups
    long = replace(short, k=k * lane_groups, n=8 // lane_groups)
    assert lane_groups > 1
    assert long.fragments.lane_groups == 1
    taken = []
    for kernel in (short, long):
        given = kernel.inputs(np.random.default_rng(0))
        taken.append([(width, (at - given["w"].ctypes.data).tolist()) for width, at in noted(kernel, WEIGHTS, given)])
    assert taken[0] == taken[1]
    assert short.launch().grid == long.launch().grid


def test_two_rows_side_by_side_cost_the_products_of_one_that_is_as_long_and_fewer_shuffles() -> None:
    texts = [emit(HwDp4aGemv(Q4_K, k=k, n=64, digits=3, rows_per_warp=2)).text for k in (1024, 2048)]
    short, long = ({word: len(re.findall(rf"\b{word}\.", text)) for word in ("dp4a", "shfl")} for text in texts)
    assert short["dp4a"] == long["dp4a"]
    assert short["shfl"] < long["shfl"]


@pytest.mark.parametrize("k", [512, 1024, 2048])
def test_what_makes_planes_of_its_results_has_the_rows_of_a_group_in_a_block_still(k: int) -> None:
    plain = HwDp4aGemv(Q4_K, k=k, n=96, digits=3)
    normed, gated = defer_norm(plain, 3), fuse_swiglu(plain, plain, 2)
    assert isinstance(normed, HwDp4aGemv)
    assert isinstance(gated, HwDp4aGemv)
    assert normed.blocks[0].block_rows == gated.blocks[0].block_rows == BLOCK
