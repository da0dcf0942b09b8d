"""Attention and the cache: lengths at the edges of tiles, the mapping of heads, and what may not be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.kv_cache_scatter import KvCacheScatter
from tests.ptxgen.kernels.checking import check, run


def attention(
    *, heads: int = 2, kv_heads: int = 1, head_dim: int = 32, max_len: int, indirect: bool = False
) -> ContiguousAttention:
    return ContiguousAttention(indirect=indirect, heads=heads, kv_heads=kv_heads, head_dim=head_dim, max_len=max_len)


def at(kernel: ContiguousAttention, length: int, seed: int = 1) -> dict[str, Any]:
    """Random arguments of this length; the cache holds NaN past it."""
    rng = np.random.default_rng(seed)
    arguments = kernel.inputs(rng)
    for name in ("k_cache", "v_cache"):
        cache = rng.normal(size=arguments[name].shape).astype(np.float32)
        cache[:, length:] = np.nan
        arguments[name] = cache
    value = np.array([length], np.uint32)
    return arguments | {"length": value if kernel.indirect else value[0]}


def test_one_position_gives_its_value_exactly_to_the_heads_of_its_group() -> None:
    kernel = attention(heads=9, kv_heads=3, head_dim=64, max_len=50)
    arguments = at(kernel, 1)
    out = run(kernel, arguments)["out"]
    for head in range(9):
        assert np.array_equal(out[head], arguments["v_cache"][head // 3, 0])


@pytest.mark.parametrize("length", [2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 288, 300])
def test_lengths_about_the_edges_of_tiles_and_blocks(length: int) -> None:
    kernel = attention(max_len=300)
    check(kernel, at(kernel, length))


@given(length=st.integers(1, 600), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_any_length(length: int, seed: int) -> None:
    kernel = attention(max_len=600)
    check(kernel, at(kernel, length, seed))


@pytest.mark.parametrize("head_dim", range(32, 257, 32))
def test_every_head_dim_uses_all_of_its_values(head_dim: int) -> None:
    kernel = attention(head_dim=head_dim, max_len=37)
    check(kernel, at(kernel, 37))


def test_equal_keys_give_the_mean_of_the_values() -> None:
    kernel = attention(max_len=64)
    arguments = at(kernel, 64)
    arguments["k_cache"][:] = 1.0
    assert np.allclose(run(kernel, arguments)["out"], arguments["v_cache"][0].mean(axis=0), atol=1e-6)


def test_huge_scores_do_not_overflow() -> None:
    kernel = attention(max_len=100)
    arguments = at(kernel, 100)
    arguments["q"] *= np.float32(1e4)
    out = run(kernel, arguments)["out"]
    winners = np.argmax(arguments["q"].astype(np.float64) @ arguments["k_cache"][0].astype(np.float64).T, axis=1)
    assert np.allclose(out, arguments["v_cache"][0][winners])


def test_scores_that_rise_all_along_the_sequence_are_rescaled() -> None:
    kernel = attention(max_len=1500)
    arguments = at(kernel, 1500)
    arguments["k_cache"] *= np.linspace(0.0, 3.0, 1500, dtype=np.float32)[:, None]
    arguments["k_cache"][:, :, 0], arguments["q"][:, 0] = np.linspace(-20.0, 20.0, 1500), 8.0
    check(kernel, arguments)


def test_the_longest_sequence() -> None:
    kernel = attention(max_len=131072)
    check(kernel, at(kernel, 131071))


def test_a_length_from_a_buffer_gives_the_same_bits() -> None:
    direct, indirect = attention(max_len=100), attention(max_len=100, indirect=True)
    assert run(direct, at(direct, 77))["out"].tobytes() == run(indirect, at(indirect, 77))["out"].tobytes()


@pytest.mark.parametrize("length", [0, 101, 2**31, 2**32 - 1])
def test_a_length_out_of_range_writes_nothing(length: int) -> None:
    kernel = attention(max_len=100, indirect=True)
    arguments = at(kernel, 100) | {"length": np.array([length], np.uint32)}
    arguments["out"][:] = 7.0
    assert (run(kernel, arguments)["out"] == 7.0).all()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_warps_changes_no_bit(seed: int) -> None:
    kernel = attention(max_len=300)
    arguments = at(kernel, 290)
    assert run(kernel, arguments, seed=seed)["out"].tobytes() == run(kernel, arguments)["out"].tobytes()


def test_heads_that_share_no_group_evenly_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"heads must be a multiple of kv_heads \(3\), got 8"):
        attention(heads=8, kv_heads=3, max_len=10)


@pytest.mark.parametrize(
    "shape", [{"head_dim": 36}, {"head_dim": 264}, {"max_len": (1 << 24) + 1}, {"max_len": 0}, {"kv_heads": 0}]
)
def test_an_impossible_shape_is_refused_by_name(shape: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"incremental_attention: {next(iter(shape))} must be"):
        attention(**{"max_len": 10, **shape})


@pytest.mark.parametrize("indirect", [False, True])
def test_scatter_writes_one_position_of_every_head_and_nothing_else(indirect: bool) -> None:
    kernel = KvCacheScatter(indirect=indirect, kv_heads=3, head_dim=64, max_len=5)
    arguments = kernel.inputs(np.random.default_rng(1))
    position = np.array([4], np.uint32)
    arguments["position"] = position if indirect else position[0]
    results = run(kernel, arguments)
    for cache, token in (("k_cache", "k"), ("v_cache", "v")):
        assert np.array_equal(results[cache][:, 4], arguments[token])
        assert np.array_equal(results[cache][:, :4], arguments[cache][:, :4])


@pytest.mark.parametrize("position", [5, 2**32 - 1])
def test_scatter_past_the_cache_writes_nothing(position: int) -> None:
    kernel = KvCacheScatter(indirect=True, kv_heads=2, head_dim=32, max_len=5)
    arguments = kernel.inputs(np.random.default_rng(1)) | {"position": np.array([position], np.uint32)}
    results = run(kernel, arguments)
    assert all(np.array_equal(results[name], arguments[name]) for name in ("k_cache", "v_cache"))


def test_the_work_of_a_shorter_sequence_is_that_of_a_shorter_cache() -> None:
    assert attention(max_len=100).work(7) == attention(max_len=7).work()
    assert attention(max_len=100).work() == attention(max_len=100).work(100)


@pytest.mark.parametrize("length", [-1, 0, 101])
def test_the_work_of_an_impossible_length_is_refused(length: int) -> None:
    with pytest.raises(ArgumentError, match="incremental_attention: length must be from 1 to max_len"):
        attention(max_len=100).work(length)
