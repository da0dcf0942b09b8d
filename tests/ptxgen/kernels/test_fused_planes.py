"""Kernels that quantise their own result: the very bits of the separate kernels run one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.errors import ArgumentError
from ptxgen.kernels.activation.activated import Activated
from ptxgen.kernels.activation.elementwise import Gelu, SquaredRelu
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.int8_planes import Int8PlanesOutput
from ptxgen.kernels.attention.output import Output
from ptxgen.kernels.quantize.quantize import Quantize
from ptxgen.types import F32
from tests.ptxgen.kernels.checking import check, run

all_digits = pytest.mark.parametrize("digits", [1, 2, 3])


def quantised(x: NDArray[Any], digits: int) -> dict[str, NDArray[Any]]:
    """What the quantize kernel makes of x as one row."""
    kernel = Quantize(digits, n=x.size)
    return run(kernel, {**kernel.inputs(np.random.default_rng(0)), "x": x.reshape(1, -1)})


def assert_same_bits(got: dict[str, NDArray[Any]], wanted: dict[str, NDArray[Any]]) -> None:
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        assert got[name].tobytes() == values.tobytes(), name


@all_digits
@pytest.mark.parametrize("n", [32, 576])
def test_swiglu_with_planes_is_swiglu_and_then_the_planes_bit_for_bit(n: int, digits: int) -> None:
    assert_is_its_parts(FusedSwiglu(n=n, digits=digits))


@pytest.mark.parametrize(
    "kernel", [FusedSwiglu(160, digits=2, activation="gelu"), Gelu(160, digits=3), SquaredRelu(160, digits=2)], ids=str
)
def test_other_activations_with_planes_are_their_parts_too(kernel: Activated) -> None:
    assert_is_its_parts(kernel)


def assert_is_its_parts(kernel: Activated) -> None:
    assert kernel.digits is not None
    plain, arguments = replace(kernel, digits=None), kernel.inputs(np.random.default_rng(kernel.n))
    parts = run(plain, {name: arguments[name] for name in plain.signature()})
    assert_same_bits(run(kernel, arguments), {**parts, **quantised(parts["y"], kernel.digits)})


@all_digits
def test_swiglu_with_planes_is_its_parts_for_values_that_are_not_normal(digits: int) -> None:
    kernel = FusedSwiglu(n=224, digits=digits)
    arguments = kernel.inputs(np.random.default_rng(1))
    gate, up = arguments["gate"], arguments["up"]
    gate[:32] = 0.0  # a block of zeros
    up[32:64] = np.float32(2e-42)  # subnormal
    gate[70], gate[100], up[130] = np.nan, np.inf, -np.inf
    gate[160:192], up[160:192] = -95.0, 1e30  # the sigmoid is lost
    up[200] = 3e38
    parts = run(FusedSwiglu(n=224), {name: arguments[name] for name in ("y", "gate", "up")})
    results = run(kernel, arguments)
    assert_same_bits(results, {**parts, **quantised(parts["y"], digits)})
    assert np.isnan(results["scales"][0]).tolist() == [False, False, True, False, False, False, False]


def attention(digits: int, *, heads: int = 2, kv_heads: int = 1, head_dim: int = 64, max_len: int = 300) -> Any:
    shape: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "max_len": max_len}
    return ContiguousAttention(indirect=True, **shape, output=Int8PlanesOutput(digits))


def at(kernel: ContiguousAttention, length: int) -> dict[str, Any]:
    """Random arguments of this length, with a value for each position of the cache."""
    rng = np.random.default_rng(length)
    arguments = kernel.inputs(rng)
    for name in ("k_cache", "v_cache"):
        arguments[name] = rng.normal(size=arguments[name].shape).astype(np.float32)
    return arguments | {"length": np.array([length], np.uint32)}


def in_parts(kernel: ContiguousAttention, arguments: dict[str, Any]) -> dict[str, NDArray[Any]]:
    part = replace(kernel, output=Output())
    out = run(part, {name: arguments[name] for name in part.signature()})
    return {**out, **quantised(out["out"], kernel.parameters()["digits"])}


@all_digits
@pytest.mark.parametrize("length", [1, 33, 257])
def test_attention_with_planes_is_attention_and_then_the_planes_bit_for_bit(length: int, digits: int) -> None:
    kernel = attention(digits)
    arguments = at(kernel, length)
    assert_same_bits(check(kernel, arguments), in_parts(kernel, arguments))


@pytest.mark.parametrize("head_dim", [32, 160, 256])
def test_every_block_of_a_head_has_its_planes(head_dim: int) -> None:
    kernel = attention(2, heads=3, head_dim=head_dim, max_len=40)
    arguments = at(kernel, 37)
    assert_same_bits(run(kernel, arguments), in_parts(kernel, arguments))


def test_a_nan_in_the_cache_reaches_the_scales_of_its_own_blocks_only() -> None:
    kernel = attention(2, heads=2, kv_heads=2, max_len=40)
    arguments = at(kernel, 40)
    arguments["v_cache"][1, 7, 40] = np.nan
    results = run(kernel, arguments)
    assert np.isnan(results["scales"]).tolist() == [[False, False, False, True]]
    assert not results["digits"][..., 96:].any()
    assert results["sums"][0, 3] == 0


@pytest.mark.parametrize("length", [0, 301, 2**32 - 1])
def test_a_length_out_of_range_writes_no_digit_either(length: int) -> None:
    kernel = attention(2)
    arguments = at(kernel, length)
    results = run(kernel, arguments)
    for name in ("out", "digits", "scales", "sums"):
        assert results[name].tobytes() == arguments[name].tobytes(), name


@pytest.mark.parametrize("digits", [0, 4])
def test_an_impossible_number_of_planes_is_refused(digits: int) -> None:
    with pytest.raises(ArgumentError, match=rf"fused_swiglu_digits: digits must be an integer, 1..3, got {digits}"):
        FusedSwiglu(n=64, digits=digits)
    with pytest.raises(ArgumentError, match=rf"attention_digits_indirect: digits must be an integer, 1..3, got {digits}"):
        attention(digits)


def test_values_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ArgumentError, match="fused_swiglu_digits: n must be a multiple of 32"):
        FusedSwiglu(n=48, digits=2)


def test_the_work_is_that_of_the_parts_less_the_result_that_is_not_read_again() -> None:
    swiglu, attended = FusedSwiglu(n=64, digits=2), attention(2)
    assert swiglu.work().bytes == FusedSwiglu(n=64).work().bytes + Quantize(2, 64).work().bytes - 64 * F32.bytes
    part = ContiguousAttention(True, 2, 1, 64, 300)
    assert attended.work(7).bytes == part.work(7).bytes + Quantize(2, 128).work().bytes - 128 * F32.bytes
