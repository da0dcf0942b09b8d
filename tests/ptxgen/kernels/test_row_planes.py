"""Products whose epilogue makes the digits of 32 neighbouring results: the bits of the kernels that they are made of, one after
the other, however rows are dealt out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.errors import ArgumentError
from ptxgen.kernels.activation.elementwise import ElementwiseMul
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.compose import defer_norm, fuse_swiglu
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.swiglu import GATED, SwiGlu
from ptxgen.kernels.quantize.quantize import Quantize
from ptxgen.kernels.registry import find
from ptxgen.types import F32
from tests.ptxgen.kernels import gemvs
from tests.ptxgen.kernels.checking import run

Arrays = dict[str, NDArray[Any]]

DEALT = (
    {"num_warps": 1, "rows_per_warp": 1},  # 32 blocks a group
    {"num_warps": 4, "rows_per_warp": 2},  # 4
    {"num_warps": 4, "rows_per_warp": 1, "row_groups": 4},  # 2
    {"num_warps": 16, "rows_per_warp": 2},  # a group a block
    {"num_warps": 8, "rows_per_warp": 2, "row_groups": 2, "ahead": 1},
    {"num_warps": 2, "rows_per_warp": 4, "row_groups": 4, "ahead": 3},
    {"num_warps": 8, "rows_per_warp": 2, "row_groups": 8},  # four groups a block, of which one is past the end
    {"num_warps": 3, "rows_per_warp": 1, "row_groups": 32},  # three, each in a warp
)
DEALT_IN_PAIRS = (
    {"num_warps": 1, "rows_per_warp": 2},
    {"num_warps": 2, "rows_per_warp": 4, "row_groups": 2},
    {"num_warps": 4, "rows_per_warp": 2, "row_groups": 4, "ahead": 3},
    {"num_warps": 8, "rows_per_warp": 8},
    {"num_warps": 16, "rows_per_warp": 4},
    {"num_warps": 16, "rows_per_warp": 2, "row_groups": 4, "ahead": 1},
    {"num_warps": 2, "rows_per_warp": 4, "row_groups": 8},
    {"num_warps": 3, "rows_per_warp": 2, "row_groups": 32},
)
# Of rows that a half of a warp has, twice as many.
DEALT_SHORT = (
    {"num_warps": 1, "rows_per_warp": 1},  # 16 blocks a group
    {"num_warps": 4, "rows_per_warp": 2, "row_groups": 2},  # a group a block
    {"num_warps": 8, "rows_per_warp": 2, "row_groups": 4, "ahead": 1},  # four, of which one is past the end
    {"num_warps": 3, "rows_per_warp": 4, "row_groups": 4, "ahead": 3},  # three, each in a warp
)
DEALT_SHORT_IN_PAIRS = (
    {"num_warps": 2, "rows_per_warp": 4},  # four blocks a group
    {"num_warps": 8, "rows_per_warp": 2, "row_groups": 2},  # a group a block
    {"num_warps": 16, "rows_per_warp": 4, "row_groups": 2, "ahead": 1},  # four, of which one is past the end
    {"num_warps": 3, "rows_per_warp": 2, "row_groups": 16, "ahead": 3},  # three, each in a warp
)


def normed(format: str, **shape: int) -> HwDp4aGemv:
    kernel = find(f"hw_dp4a_{format}_gemv_residual_normed").make(**shape)
    assert isinstance(kernel, HwDp4aGemv)
    return kernel


def gated(format: str, **shape: int) -> HwDp4aGemv:
    kernel = find(f"gated_hw_dp4a_{format}_gemv").make(**shape)
    assert isinstance(kernel, HwDp4aGemv)
    return kernel


def is_swiglu(kernel: HwDp4aGemv) -> bool:
    return "w2" in kernel.signature()


def as_bits(arrays: Arrays) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def digits_of(values: NDArray[Any], digits: int) -> Arrays:
    """What the quantize kernel makes of values, by the names that a product gives it."""
    kernel = Quantize(digits, n=values.size)
    made = run(kernel, {**kernel.inputs(np.random.default_rng(0)), "x": values.reshape(1, -1)})
    return {f"y_{name}": array for name, array in made.items()}


def product(kernel: HwDp4aGemv, arguments: dict[str, Any], **others: Any) -> NDArray[Any]:
    """W x by hw_dp4a, or y + W x."""
    arguments = arguments | others
    one = HwDp4aGemv if is_swiglu(kernel) else gemvs.residual
    alone = one(kernel.format, k=kernel.k, n=kernel.n, digits=kernel.digits)
    y: NDArray[Any] = run(alone, {name: arguments[name] for name in alone.signature()})["y"]
    return y


def squares(y: NDArray[Any]) -> NDArray[Any]:
    """Of each 32 values in f32: neighbours first, then pairs of neighbours, and so on."""
    sums: NDArray[Any] = y * y
    for _ in range(5):
        sums = sums[::2] + sums[1::2]
    return sums


def in_parts(kernel: HwDp4aGemv, arguments: dict[str, Any]) -> Arrays:
    """What the kernel gives, by the kernels that it is made of."""
    if is_swiglu(kernel):
        gate, up = (product(kernel, arguments, w=arguments[name]) for name in ("w", "w2"))
        first = kernel.epilogue[0]
        assert isinstance(first, SwiGlu)
        swiglu = FusedSwiglu(n=kernel.n, digits=kernel.parameters()["out_digits"], activation=first.activation)
        made = run(swiglu, swiglu.inputs(np.random.default_rng(0)) | {"gate": gate, "up": up})
        return {name if name == "y" else f"y_{name}": array for name, array in made.items()}
    y = product(kernel, arguments)
    multiplied = run(ElementwiseMul(n=kernel.n), {"y": np.zeros_like(y), "a": y, "b": arguments["gamma"]})["y"]
    return {"y": y, **digits_of(multiplied, kernel.parameters()["out_digits"]), "squares": squares(y)}


def assert_is_its_parts(kernel: HwDp4aGemv) -> None:
    arguments = kernel.inputs(np.random.default_rng(7))
    results = run(kernel, arguments)
    for name in kernel.scratch:
        assert not results.pop(name).any()
    assert as_bits(results) == as_bits(in_parts(kernel, arguments))


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize(
    ("format", "k", "dealt"),
    [
        ("q4k", 1536, {"num_warps": 2, "rows_per_warp": 2}),
        ("q4k", 4096, {"num_warps": 8, "rows_per_warp": 2, "row_groups": 2}),
        ("q4k", 6144, {"num_warps": 4, "rows_per_warp": 1, "row_groups": 8}),  # three steps, loaded two ahead
        ("q6k", 1536, {"num_warps": 4, "rows_per_warp": 2, "row_groups": 4}),
        ("q6k", 1792, {"num_warps": 4, "rows_per_warp": 1}),
        ("q6k_aligned", 2304, {"num_warps": 8, "rows_per_warp": 2, "row_groups": 2}),
        ("q8_0", 896, {"num_warps": 8, "rows_per_warp": 4}),
        ("q8_0", 1056, {"num_warps": 2, "rows_per_warp": 2, "row_groups": 2}),
        ("q4k", 1024, {"num_warps": 16, "rows_per_warp": 1}),  # two rows a warp side by side
        ("q6k_aligned", 512, {"num_warps": 2, "rows_per_warp": 2, "row_groups": 2}),  # four
        ("q8_0", 160, {"num_warps": 4, "rows_per_warp": 2}),
        ("q8_0_aligned", 1280, {"num_warps": 2, "rows_per_warp": 2, "row_groups": 2}),
    ],
)
def test_a_normed_product_is_its_parts_bit_for_bit(format: str, k: int, dealt: dict[str, int], digits: int) -> None:
    assert_is_its_parts(normed(format, k=k, n=32, digits=digits, out_digits=4 - digits, **dealt))


@pytest.mark.parametrize("dealt", DEALT, ids=str)
def test_how_rows_are_dealt_out_leaves_the_bits_of_a_normed_product_alone(dealt: dict[str, int]) -> None:
    assert_is_its_parts(normed("q4k", k=2560, n=96, digits=3, out_digits=3, **dealt))


@pytest.mark.parametrize("dealt", DEALT_SHORT, ids=str)
def test_how_short_rows_are_dealt_out_leaves_the_bits_of_a_normed_product_alone(dealt: dict[str, int]) -> None:
    assert_is_its_parts(normed("q4k", k=768, n=96, digits=3, out_digits=3, **dealt))


@pytest.mark.parametrize("num_warps", [4, 16])
def test_a_normed_product_of_more_activations_than_fit_shared_memory_is_its_parts(num_warps: int) -> None:
    shape = {"k": 18944, "n": 32, "digits": 3, "out_digits": 3, "num_warps": num_warps, "rows_per_warp": 2}
    assert_is_its_parts(normed("q6k_aligned", **shape))


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize(
    ("format", "k", "dealt"),
    [
        ("q4k", 1536, {"num_warps": 4, "row_groups": 8}),
        ("q4k", 2048, {"num_warps": 2, "row_groups": 4}),
        ("q4k", 3584, {"num_warps": 8, "rows_per_warp": 4, "row_groups": 2}),
        ("q6k", 1792, {"num_warps": 4, "row_groups": 2}),
        ("q6k", 1536, {"num_warps": 8, "row_groups": 4}),
        ("q6k_aligned", 2304, {"num_warps": 4, "rows_per_warp": 4}),
        ("q8_0", 896, {"num_warps": 8, "row_groups": 4}),
        ("q8_0", 1056, {"num_warps": 2, "rows_per_warp": 4, "row_groups": 2}),  # rows that are no multiple of 16 bytes
        ("q4k", 1024, {"num_warps": 8, "row_groups": 2}),  # two pairs a warp side by side
        ("q5k", 512, {"num_warps": 4, "row_groups": 2}),  # four
        ("q8_0", 160, {"num_warps": 4, "rows_per_warp": 4, "row_groups": 4}),
        ("q8_0_aligned", 1280, {"num_warps": 2, "rows_per_warp": 4, "row_groups": 2}),
    ],
)
def test_a_gated_product_is_its_parts_bit_for_bit(format: str, k: int, dealt: dict[str, int], digits: int) -> None:
    assert_is_its_parts(gated(format, k=k, n=32, digits=digits, out_digits=4 - digits, **dealt))


@pytest.mark.parametrize("dealt", DEALT_IN_PAIRS, ids=str)
def test_how_rows_are_dealt_out_leaves_the_bits_of_a_gated_product_alone(dealt: dict[str, int]) -> None:
    assert_is_its_parts(gated("q4k", k=2560, n=96, digits=3, out_digits=3, **dealt))


@pytest.mark.parametrize("dealt", DEALT_SHORT_IN_PAIRS, ids=str)
def test_how_short_rows_are_dealt_out_leaves_the_bits_of_a_gated_product_alone(dealt: dict[str, int]) -> None:
    assert_is_its_parts(gated("q4k", k=768, n=96, digits=3, out_digits=3, **dealt))


@pytest.mark.parametrize("num_warps", [4, 32])
def test_a_gated_product_of_more_activations_than_fit_shared_memory_is_its_parts(num_warps: int) -> None:
    assert_is_its_parts(gated("q4k", k=18944, n=32, digits=2, out_digits=3, num_warps=num_warps))


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_a_gated_product_of_another_activation_is_its_parts(activation: str) -> None:
    silu = gated("q8_0", k=160, n=32, digits=2, num_warps=4, rows_per_warp=2, out_digits=2)
    assert_is_its_parts(replace(silu, epilogue=(GATED[activation](), *silu.epilogue[1:])))


def test_the_work_of_a_gated_product_is_that_of_its_parts_less_what_stays_in_registers() -> None:
    kernel = gated("q4k", k=512, n=64, digits=3, out_digits=2)
    one, swiglu = HwDp4aGemv(kernel.format, k=512, n=64, digits=3).work(), FusedSwiglu(n=64, digits=2).work()
    assert kernel.work().flops == 2 * one.flops + swiglu.flops
    activations, products = 3 * 512 + 8 * 16, 2 * 64 * F32.bytes
    assert kernel.work().bytes == 2 * one.bytes + swiglu.bytes - activations - 2 * products


def test_results_that_are_not_normal_reach_the_planes_of_their_own_group_only() -> None:
    kernel = normed("q8_0", k=32, n=128, digits=1, out_digits=2, num_warps=2, rows_per_warp=1)
    arguments = kernel.inputs(np.random.default_rng(1))
    y = arguments["y"]
    y[3], y[40], arguments["gamma"][64:96] = np.nan, np.inf, 0.0
    results = run(kernel, arguments)
    assert np.isnan(results["squares"]).tolist() == [True, False, False, False]
    assert np.isfinite(results["y_scales"]).tolist() == [[False, False, True, True]]
    assert not results["y_digits"][..., 64:96].any()
    results.pop("counters")
    assert as_bits(results) == as_bits(in_parts(kernel, arguments))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 48}, "n must be a multiple of 32"),
        ({"num_warps": 1, "row_groups": 14}, "a warp for each group of 32 that it has rows of, not 28 and 1 for 2"),
        ({"row_groups": 32}, "row_groups must be fewer than 32, in which a warp has 64 rows: there are 32 lanes"),
        (
            {"k": 18944, "row_groups": 2},
            "row_groups must be 1 where activations do not fit shared memory at once, as 3 planes of k=18944",
        ),
        ({"row_groups": 0}, "row_groups must be an integer, 1..32, got 0"),
        ({"out_digits": 4}, "out_digits must be an integer, 1..3, got 4"),
    ],
    ids=str,
)
def test_rows_that_cannot_be_dealt_out_so_are_refused(settings: dict[str, int], message: str) -> None:
    usual = {"k": 2048, "n": 64, "digits": 3, "out_digits": 3}
    with pytest.raises(ArgumentError, match=message):
        normed("q4k", **usual | settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows_per_warp": 3}, "rows_per_warp must be a multiple of 2, 1..8, got 3"),
        ({"rows_per_warp": 10}, "rows_per_warp must be a multiple of 2, 1..8, got 10"),
        ({"num_warps": 1, "row_groups": 12}, "not 12 and 1 for 2 groups"),
        ({"n": 16}, "n must be a multiple of 32"),
    ],
    ids=str,
)
def test_pairs_that_cannot_be_dealt_out_so_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        gated("q4k", **{"k": 2048, "n": 64, "digits": 3, "out_digits": 3} | settings)


@pytest.mark.parametrize(
    ("k", "n", "warps", "row_groups"),
    [
        (1024, 3072, 16, 1),  # 96 groups: a block a multiprocessor
        (2048, 8192, 8, 4),  # 256: two
        (4096, 14336, 4, 8),  # 448: four, and one round of blocks
        (3584, 18944, 4, 9),  # 592: more than are there at once, so blocks share them
        (1536, 8960, None, 1),  # 280: half of the room would be empty
        (2048, 6144, 8, 4),  # 192: at once, though many are idle
        (4096, 24576, 4, 12),  # 768
    ],
)
def test_gate_and_up_are_gated_where_all_groups_are_there_at_once(k: int, n: int, warps: int | None, row_groups: int) -> None:
    gate = find("hw_dp4a_q4k_gemv").make(k=k, n=n, digits=3)
    assert isinstance(gate, HwDp4aGemv)
    gated = fuse_swiglu(gate, gate, 3)
    if warps is None:
        assert gated is None
        return
    assert isinstance(gated, HwDp4aGemv)
    assert (gated.num_warps, gated.row_groups) == (warps, row_groups)


@pytest.mark.parametrize(
    ("k", "n", "block_rows"),
    [(4096, 4096, 32), (14336, 4096, 32), (8960, 1536, 12), (8192, 2048, 16), (512, 1024, 32), (4096, 48, None)],
)
def test_a_norm_is_left_by_blocks_of_32_rows_or_of_fewer_where_most_multiprocessors_would_wait(
    k: int, n: int, block_rows: int | None
) -> None:
    product = find("hw_dp4a_q4k_gemv").make(k=k, n=n, digits=3, row_groups=2)
    assert isinstance(product, HwDp4aGemv)
    leaving = defer_norm(product, 3)
    if isinstance(leaving, HwDp4aGemv):
        assert leaving.blocks[0].block_rows == block_rows
        assert leaving.row_groups == 1
        assert bool(leaving.scratch) == (block_rows != 32)
    else:
        assert leaving is None
        assert block_rows is None
