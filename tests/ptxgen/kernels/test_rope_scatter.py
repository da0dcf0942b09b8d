"""The rotation of queries and keys together with the write into the cache: the bits are those of the kernels it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.rope_scatter import RopeScatter
from ptxgen.kernels.registry import find
from tests.ptxgen.kernels.checking import check, run

Arrays = dict[str, NDArray[Any]]

every_form = pytest.mark.parametrize(("neox", "bias"), [(False, False), (False, True), (True, False), (True, True)])


def made(
    *, neox: bool, bias: bool, heads: int = 6, kv_heads: int = 3, head_dim: int = 64, max_len: int = 5, rotary_dim: int = 0
) -> RopeScatter:
    name = f"{'bias_' if bias else ''}rope{'_neox' if neox else ''}_scatter_indirect"
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "max_len": max_len, "rotary_dim": rotary_dim}
    kernel = find(name).make(**shape)
    assert isinstance(kernel, RopeScatter)
    return kernel


def at(kernel: RopeScatter, position: int) -> dict[str, Any]:
    """Random arguments, at this position; the cache holds NaN elsewhere, as fresh memory may."""
    arguments = kernel.inputs(np.random.default_rng(4)) | {"position": np.array([position], np.uint32)}
    for name in ("k_cache", "v_cache"):
        arguments[name][:] = np.nan
    return arguments


def one_after_the_other(kernel: RopeScatter, arguments: dict[str, Any]) -> Arrays:
    """What the separate kernels make of the arguments."""
    token: Arrays = {name: arguments[name] for name in ("q", "k", "v")}
    position = arguments["position"]
    if kernel.bias:
        for name, x in token.items():
            flat = {"x": x.reshape(-1), "delta": arguments[f"{name}_bias"]}
            token[name] = run(find("residual_add").make(n=x.size), flat)["x"].reshape(x.shape)
    rope = find("rope_neox_indirect" if kernel.neox else "rope_indirect")
    shape = {"head_dim": kernel.head_dim, "max_len": kernel.max_len}
    for name in ("q", "k"):
        one = rope.make(heads=len(token[name]), rotary_dim=kernel.rotary_dim, **shape)
        token[name] = run(one, {"x": token[name], "table": arguments["table"], "position": position})["x"]
    scatter = find("kv_cache_scatter_indirect").make(kv_heads=kernel.kv_heads, **shape)
    caches = {name: arguments[name] for name in ("k_cache", "v_cache")}
    return token | run(scatter, {**caches, "k": token["k"], "v": token["v"], "position": position})


@every_form
@pytest.mark.parametrize(
    ("position", "shape"),
    [
        (0, {}),
        (4, {"rotary_dim": 24}),
        (2, {"heads": 3, "kv_heads": 1, "head_dim": 96}),
        (32, {"heads": 14, "kv_heads": 2, "max_len": 33}),
        (1, {"heads": 1, "kv_heads": 1, "head_dim": 10, "rotary_dim": 2}),
    ],
    ids=str,
)
def test_the_bits_are_those_of_the_separate_kernels(neox: bool, bias: bool, position: int, shape: dict[str, int]) -> None:
    kernel = made(neox=neox, bias=bias, **shape)
    arguments = at(kernel, position)
    together, apart = check(kernel, arguments), one_after_the_other(kernel, arguments)
    assert set(together) == {"q", "k", "k_cache", "v_cache"} | ({"v"} if bias else set())
    for name, result in together.items():
        assert result.tobytes() == apart[name].tobytes(), name


@every_form
def test_a_position_past_the_cache_changes_nothing(neox: bool, bias: bool) -> None:
    kernel = made(neox=neox, bias=bias, rotary_dim=32)
    for position in (5, 2**31, 2**32 - 1):
        arguments = at(kernel, position)
        for name, result in check(kernel, arguments).items():
            assert result.tobytes() == arguments[name].tobytes(), (name, position)


@every_form
def test_each_head_has_a_row_of_its_own_in_each_cache(neox: bool, bias: bool) -> None:
    kernel = made(neox=neox, bias=bias, kv_heads=3, max_len=4)
    arguments = at(kernel, 2)
    results = run(kernel, arguments)
    for name, token in (("k_cache", results["k"]), ("v_cache", results.get("v", arguments["v"]))):
        assert np.array_equal(results[name][:, 2], token)
        assert np.isnan(np.delete(results[name], 2, axis=1)).all()


@pytest.mark.parametrize("neox", [False, True])
def test_only_a_bias_changes_the_values_in_place(neox: bool) -> None:
    directions = [made(neox=neox, bias=bias).signature()["v"] for bias in (False, True)]
    assert [argument.direction for argument in directions if isinstance(argument, Array)] == ["in", "inout"]


def test_each_bias_goes_to_its_own_tensor_before_the_rotation() -> None:
    kernel = made(neox=True, bias=True, heads=2, kv_heads=1, head_dim=4, max_len=2)
    arguments = at(kernel, 1)
    for name, bias in (("q", 1.0), ("k", 2.0), ("v", 3.0)):
        arguments[name] = np.zeros_like(arguments[name])
        arguments[f"{name}_bias"] = np.full_like(arguments[f"{name}_bias"], bias)
    results = run(kernel, arguments)
    cosine, sine = arguments["table"][1].T
    quarter = np.concatenate([cosine - sine, cosine + sine])  # of a head of ones
    assert np.allclose(results["q"], [quarter, quarter], rtol=1e-6)
    assert np.allclose(results["k_cache"][0, 1], 2 * quarter, rtol=1e-6)
    assert np.array_equal(results["v_cache"][0, 1], np.full(4, 3.0))


@pytest.mark.parametrize(
    "shape", [{"heads": 0}, {"kv_heads": 0}, {"max_len": 0}, {"head_dim": 63}, {"rotary_dim": 66}, {"rotary_dim": 31}], ids=str
)
def test_an_impossible_shape_is_refused_by_name(shape: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=f"^rope_neox_scatter_indirect: {next(iter(shape))} must be"):
        made(neox=True, bias=False, **shape)


def test_naming_the_whole_head_or_nothing_is_the_same_kernel() -> None:
    assert made(neox=True, bias=False) == made(neox=True, bias=False, rotary_dim=64)
