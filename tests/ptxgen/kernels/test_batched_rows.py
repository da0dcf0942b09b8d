"""Batched kernels that are not matrix products: row i has the bits of the single kernel on row i."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen.kernels import compose
from ptxgen.kernels.activation.bias import BiasAdd
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.collective.all_gather import AllGather
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.quantize.quantize import Quantize
from ptxgen.kernels.registry import find
from ptxgen.kernels.rope.rope import Rope
from ptxgen.kernels.token.argmax import NOT_A_NUMBER, ArgMax
from ptxgen.kernels.token.embedding_lookup import EmbeddingLookup
from ptxgen.kernels.token.gather_rows import GatherRows
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


SINGLES = (
    RmsNorm(hidden=1056, digits=2),
    FusedSwiglu(n=160, digits=3),
    EmbeddingLookup(FORMATS["Q4_K"], rows=4, k=512, indirect=True),
    ArgMax(n=5000),
    PerHeadRmsNorm(heads=2, head_dim=64),
    Quantize(2, n=96),
)


@pytest.mark.parametrize("single", SINGLES, ids=lambda kernel: kernel.name)
def test_a_row_has_the_bits_of_the_single_kernel(single: KernelType) -> None:
    (batched,) = compose.for_rows(single, 3)
    arguments = batched.inputs(np.random.default_rng(5))
    together = run(batched, arguments)
    for row in range(3):
        for name, alone in run(single, _of_row(single, batched, arguments, row)).items():
            assert alone.tobytes() == together[name].reshape(3, *alone.shape)[row].tobytes(), name


def _of_row(single: KernelType, batched: KernelType, arguments: dict[str, Any], row: int) -> dict[str, Any]:
    """The arguments of the single kernel: what all rows share, and the row's own part of the others."""
    own, every = single.signature(), batched.signature()
    return {
        name: value.reshape(3, *argument.shape)[row] if isinstance(argument, Array) and argument != every[name] else value
        for name, argument in own.items()
        for value in [arguments[name]]
    }


def test_a_kernel_that_has_m_by_default_is_the_one_for_rows_and_one_of_several_rows_has_no_other() -> None:
    one, three = AllGather(n=64, ranks=2), AllGather(n=64, ranks=2, m=3)
    assert compose.for_rows(one, 3) == (three,)
    assert compose.for_rows(three, 3) == compose.for_rows(RmsNorm(64, m=1), 3) == compose.for_rows(AddInPlace(8, m=2), 3) == ()
    assert compose.for_rows(AddInPlace(8), 3) == (AddInPlace(8, m=3), BiasAdd(8, 3))


def test_a_token_that_the_table_does_not_have_makes_its_own_row_nan_and_no_other() -> None:
    kernel = EmbeddingLookup(FORMATS["Q8_0"], rows=3, k=64, m=4)
    tokens = {"token": np.array([2, 3, NOT_A_NUMBER, 0], np.uint32)}
    rows = check(kernel, kernel.inputs(np.random.default_rng(6)) | tokens)["y"]
    assert np.isnan(rows).all(axis=1).tolist() == np.isnan(rows).any(axis=1).tolist() == [False, True, True, False]


def test_a_nan_takes_the_token_from_its_own_row_only() -> None:
    x = np.array([[1.0, 3.0, 3.0], [np.nan, 1.0, 2.0], [-np.inf] * 3, [-1.0, -0.0, 0.0]], np.float32)
    assert run(ArgMax(n=3, m=4), {"out": np.zeros(4, np.uint32), "x": x})["out"].tolist() == [1, NOT_A_NUMBER, 0, 1]


def test_gathered_rows_are_copies_and_an_index_of_no_row_gives_zeros() -> None:
    kernel = GatherRows(n=6, m=5, rows=3)
    arguments = kernel.inputs(np.random.default_rng(7)) | {"index": np.array([2, 3, 0, 2**32 - 1, 2], np.uint32)}
    x, zeros = arguments["x"], np.zeros(6, np.float32)
    assert check(kernel, arguments)["y"].tobytes() == np.stack([x[2], zeros, x[0], zeros, x[2]]).tobytes()


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
    kernel = BiasAdd(n=300, m=4)
    arguments = kernel.inputs(np.random.default_rng(3))
    together = run(kernel, arguments)["x"]
    for row in range(4):
        alone = run(AddInPlace(n=300), {"x": arguments["x"][row], "delta": arguments["bias"]})["x"]
        assert alone.tobytes() == together[row].tobytes()


def test_a_bias_is_one_launch_for_all_rows() -> None:
    assert BiasAdd(n=1537, m=5).launch().grid == (7, 5, 1)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("batched_silu", {"n": 8, "m": 0}),
        ("batched_rmsnorm", {"hidden": 8, "m": 0}),
        ("batched_rmsnorm_digits", {"hidden": 32, "m": 65536}),
        ("batched_fused_swiglu_digits", {"n": 32, "digits": 1, "m": 65536}),
        ("batched_embedding_lookup", {"format": "F32", "rows": 1, "k": 1, "m": 65536}),
        ("batched_argmax", {"n": 8, "m": 0}),
        ("gather_rows", {"n": 8, "rows": 1, "m": 65536}),
        ("batched_rope", {"heads": 1, "head_dim": 8, "max_len": 4, "m": 65536}),
        ("batched_bias_broadcast_add", {"n": 8, "m": 65536}),
    ],
)
def test_an_impossible_batch_is_refused_by_name(name: str, shape: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: m must be an integer, 1"):
        find(name).make(**shape)
