"""Batched kernels that are not matrix products: row i has the bits of the single kernel on row i."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.activation.bias import BatchedBiasBroadcastAdd
from ptxgen.kernels.activation.elementwise import ResidualAdd
from ptxgen.kernels.registry import find
from ptxgen.kernels.rope.rope import Rope
from tests.ptxgen.kernels.checking import check, run

ELEMENTWISE = ("residual_add", "elementwise_mul", "silu", "gelu", "fused_swiglu")


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_row_of_an_elementwise_kernel_has_the_bits_of_the_single_kernel(name: str) -> None:
    batched, single = find(f"batched_{name}").make(n=257, m=3), find(name).make(n=257)
    arguments = batched.inputs(np.random.default_rng(1))
    for result, together in run(batched, arguments).items():
        for row in range(3):
            alone = run(single, {key: value[row] for key, value in arguments.items()})[result]
            assert alone.tobytes() == together[row].tobytes()


def rotated(*, neox: bool, positions: list[int], max_len: int = 50) -> tuple[Rope, dict[str, Any]]:
    name = "batched_rope_neox" if neox else "batched_rope"
    kernel = find(name).make(heads=5, head_dim=96, rotary_dim=64, max_len=max_len, m=len(positions))
    assert isinstance(kernel, Rope)
    return kernel, kernel.inputs(np.random.default_rng(2)) | {"positions": np.array(positions, np.uint32)}


@pytest.mark.parametrize("neox", [False, True])
def test_every_token_is_turned_by_its_own_position_with_the_bits_of_rope(neox: bool) -> None:
    batched, arguments = rotated(neox=neox, positions=[49, 0, 7, 7])
    single = Rope(neox=neox, indirect=False, heads=5, head_dim=96, rotary_dim=64, max_len=50)
    together = check(batched, arguments)["x"]
    for row, position in enumerate(arguments["positions"]):
        alone = {"x": arguments["x"][row], "table": arguments["table"], "position": position}
        assert run(single, alone)["x"].tobytes() == together[row].tobytes()


@pytest.mark.parametrize("neox", [False, True])
def test_a_token_past_the_table_is_left_alone_and_its_neighbours_are_not(neox: bool) -> None:
    batched, arguments = rotated(neox=neox, positions=[3, 2**32 - 1, 50, 4])
    turned = check(batched, arguments)["x"]
    changed = [not np.array_equal(turned[row], arguments["x"][row]) for row in range(4)]
    assert changed == [True, False, False, True]


def test_a_bias_reaches_every_row_with_the_bits_of_residual_add() -> None:
    kernel = BatchedBiasBroadcastAdd(n=300, m=4)
    arguments = kernel.inputs(np.random.default_rng(3))
    together = run(kernel, arguments)["x"]
    for row in range(4):
        alone = run(ResidualAdd(n=300), {"x": arguments["x"][row], "delta": arguments["bias"]})["x"]
        assert alone.tobytes() == together[row].tobytes()


def test_a_bias_is_one_launch_for_all_rows() -> None:
    assert BatchedBiasBroadcastAdd(n=1537, m=5).launch().grid == (7, 5, 1)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("batched_silu", {"n": 8, "m": 0}),
        ("batched_rmsnorm", {"hidden": 8, "m": 0}),
        ("batched_rope", {"heads": 1, "head_dim": 8, "max_len": 4, "m": 65536}),
        ("batched_bias_broadcast_add", {"n": 8, "m": 65536}),
    ],
)
def test_an_impossible_batch_is_refused_by_name(name: str, shape: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: m must be an integer, 1"):
        find(name).make(**shape)
