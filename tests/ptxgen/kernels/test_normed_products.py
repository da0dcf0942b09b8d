"""A product that completes the norm of its activations: the bits of rmsnorm_digits and the plain product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL
from ptxgen.kernels.compose import complete_norm, for_rows, fuse_horizontally
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.quantize.int8_planes import BLOCK, unwritten
from ptxgen.kernels.quantize.quantize import Quantize
from tests.ptxgen.kernels import gemvs
from tests.ptxgen.kernels.checking import run

SHAPES = [
    ("Q4_K", 4096, 3),
    ("Q4_K", 1536, 1),
    ("Q6_K", 2048, 3),
    ("Q6_K_ALIGNED", 3584, 3),
    ("Q8_0", 896, 3),
    ("Q8_0_ALIGNED", 1280, 3),
    ("Q4_K", 1024, 3),
    ("Q8_0", 256, 2),
]


def left(k: int, digits: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The digits of a norm that rmsnorm_digits makes, and what is left of it to a reader that completes it."""
    norm = RmsNorm(k, digits=digits)
    given = norm.inputs(np.random.default_rng(k))
    made = run(norm, given)
    product = given["x"] * given["gamma"]
    planes_of_product = run(Quantize(digits, n=norm.hidden), {**unwritten(1, digits, norm.hidden), "x": product})
    sums = (given["x"] * given["x"]).reshape(-1, BLOCK)
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    names = ("digits", "scales", "sums")
    incomplete = {name: planes_of_product[name] for name in names}
    return {name: made[name] for name in names}, {**incomplete, "squares": sums[:, 0], "eps": given["eps"]}


@pytest.mark.parametrize(("format", "k", "digits"), SHAPES, ids=str)
def test_a_product_completes_a_norm_with_the_bits_of_rmsnorm_digits(format: str, k: int, digits: int) -> None:
    complete, incomplete = left(k, digits)
    plain = HwDp4aGemv(ALL[format], k=k, n=5, digits=digits, num_warps=2, rows_per_warp=2)
    normed = complete_norm(plain)
    assert normed is not None
    given = plain.inputs(np.random.default_rng(7))
    assert run(plain, given | complete)["y"].tobytes() == run(normed, given | incomplete)["y"].tobytes()


def test_fused_products_complete_it_too() -> None:
    complete, incomplete = left(1536, 3)
    plain = gemvs.fused(ALL["Q4_K"], k=1536, n=5, n2=3, n3=2, digits=3, num_warps=2, rows_per_warp=1)
    given = plain.inputs(np.random.default_rng(7))
    normed = complete_norm(plain)
    assert normed is not None
    apart, together = run(plain, given | complete), run(normed, given | incomplete)
    assert all(apart[name].tobytes() == together[name].tobytes() for name in ("y", "y2", "y3"))


def test_a_long_row_in_a_loop_completes_it_in_each_chunk() -> None:
    """Longer than rmsnorm_digits takes: against the reference."""
    kernel = HwDp4aGemv(ALL["Q5_K"], k=18944, n=2, digits=3, num_warps=2, rows_per_warp=1, normed=True)
    given = kernel.inputs(np.random.default_rng(3))
    got, expected, bound = run(kernel, given)["y"], kernel.reference(**given)["y"], kernel.tolerance(**given)["y"]
    assert (np.abs(got - expected) <= bound).all()


def test_it_is_for_one_row_and_joins_only_its_like() -> None:
    with pytest.raises(ArgumentError, match="batched_hw_dp4a_q4k_gemv takes one row that it normalises by itself, got 2"):
        gemvs.batched(ALL["Q4_K"], k=256, n=4, m=2, normed=True)
    plain = HwDp4aGemv(ALL["Q4_K"], k=256, n=4)
    normed = HwDp4aGemv(ALL["Q4_K"], k=256, n=4, normed=True)
    assert for_rows(normed, 2) == ()
    assert fuse_horizontally(normed, [plain]) is None
    assert fuse_horizontally(normed, [normed]) is not None
