"""Attention shared by several warps or blocks: the same bits as in one block where the work is the same, chunks without
positions, and what may not be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ptxgen.dsl.kernel_type import Work
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.attention_type import AttentionType
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.split_attention import SplitAttention
from ptxgen.kernels.attention.split_attention_reduce import SplitAttentionReduce
from ptxgen.kernels.attention.token_split import Warps
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.checking import run
from tests.ptxgen.kernels.running import assert_matches_reference

SHAPE: dict[str, Any] = {"heads": 2, "kv_heads": 1, "head_dim": 32}


def at(kernel: AttentionType, length: int, seed: int = 1) -> dict[str, Any]:
    """Random arguments of this length that do not depend on max_len; the cache holds NaN past the length."""
    rng = np.random.default_rng(seed)
    q = rng.normal(0.0, 2.0, (kernel.heads, kernel.head_dim)).astype(np.float32)
    caches = {}
    for name in ("k_cache", "v_cache"):
        cache = caches[name] = np.full((kernel.kv_heads, kernel.max_len, kernel.head_dim), np.nan, np.float32)
        cache[:, :length] = rng.normal(size=(length, kernel.kv_heads, kernel.head_dim)).swapaxes(0, 1)
    given = np.array([length], np.uint32)
    return kernel.inputs(rng) | caches | {"q": q, "length": given if kernel.indirect else given[0]}


def split(length: int, *, max_len: int, chunk: int = 32, seed: int = 1, order: int | None = None) -> NDArray[np.float32]:
    """Attention by the two kernels. Between them, what the first left unwritten is NaN."""
    first = SplitAttention(indirect=False, **SHAPE, max_len=max_len, chunk=chunk)
    reduce = SplitAttentionReduce(heads=2, head_dim=32, max_len=max_len, chunk=chunk)
    partials = run(first, at(first, length, seed), seed=order)
    out: NDArray[np.float32] = run(reduce, {"out": np.zeros((2, 32), np.float32), **partials}, seed=order)["out"]
    return out


@given(length=st.integers(1, 500), chunk=st.sampled_from([32, 128]), seed=st.integers(0, 1000))
@settings(max_examples=12, deadline=None)
def test_the_two_kernels_together_are_attention(length: int, chunk: int, seed: int) -> None:
    whole = ContiguousAttention(indirect=False, **SHAPE, max_len=500)
    assert_matches_reference(whole, at(whole, length, seed), {"out": split(length, max_len=500, chunk=chunk, seed=seed)})


def test_more_chunks_than_the_reduction_has_threads() -> None:
    whole = ContiguousAttention(indirect=False, **SHAPE, max_len=9000)
    out = split(8999, max_len=9000)
    assert_matches_reference(whole, at(whole, 8999), {"out": out})


@pytest.mark.parametrize("length", [1, 100, 128])
def test_a_sequence_of_one_chunk_has_the_bits_of_a_block_with_as_many_warps(length: int) -> None:
    whole = ContiguousAttention(indirect=False, **SHAPE, max_len=500, split=Warps(4))
    assert split(length, max_len=500, chunk=128).tobytes() == run(whole, at(whole, length))["out"].tobytes()


def test_eight_warps_have_the_bits_of_incremental_attention() -> None:
    one = ContiguousAttention(indirect=False, **SHAPE, max_len=300)
    other = ContiguousAttention(indirect=False, **SHAPE, max_len=300, split=Warps(8))
    assert run(one, at(one, 299))["out"].tobytes() == run(other, at(other, 299))["out"].tobytes()


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
def test_a_head_has_as_many_warps_as_were_asked_for(warps: int) -> None:
    kernel = ContiguousAttention(indirect=False, **SHAPE, max_len=300, split=Warps(warps))
    assert kernel.launch().threads == 32 * warps
    assert f".maxntid {32 * warps}, 1, 1" in emit(kernel).text


def test_room_for_a_longer_sequence_changes_no_bit() -> None:
    assert split(99, max_len=100).tobytes() == split(99, max_len=5000).tobytes()


def test_the_order_of_warps_changes_no_bit() -> None:
    assert split(290, max_len=300, order=1).tobytes() == split(290, max_len=300, order=2).tobytes()


def test_a_chunk_without_positions_says_so_and_leaves_its_sums_alone() -> None:
    kernel = SplitAttention(indirect=True, **SHAPE, max_len=200, chunk=64)
    partials = run(kernel, at(kernel, 64))
    assert (partials["peaks"][:, 1:] == -np.inf).all()
    assert (partials["totals"][:, 1:] == 0.0).all()
    assert np.isnan(partials["sums"][:, 1:]).all()
    assert np.isfinite(partials["sums"][:, 0]).all()


@pytest.mark.parametrize("length", [0, 201, 2**32 - 1])
def test_a_length_out_of_range_writes_no_result(length: int) -> None:
    first = SplitAttention(indirect=True, **SHAPE, max_len=200, chunk=64)
    partials = run(first, at(first, 200) | {"length": np.array([length], np.uint32)})
    reduce = SplitAttentionReduce(heads=2, head_dim=32, max_len=200, chunk=64)
    assert (run(reduce, {"out": np.full((2, 32), 7.0, np.float32), **partials})["out"] == 7.0).all()


@pytest.mark.parametrize("split", [Warps(2), None], ids=["MultiWarpAttention", "SplitAttention"])
def test_a_length_from_a_buffer_gives_the_same_bits(split: Warps | None) -> None:
    shape = {**SHAPE, "max_len": 150}
    direct = ContiguousAttention(False, **shape, split=split) if split else SplitAttention(False, **shape)
    indirect = replace(direct, indirect=True)
    results = run(direct, at(direct, 77)), run(indirect, at(indirect, 77))
    assert all(results[0][name].tobytes() == results[1][name].tobytes() for name in results[0])


def test_a_nan_in_the_cache_is_not_lost() -> None:
    first = SplitAttention(indirect=False, **SHAPE, max_len=200, chunk=64)
    arguments = at(first, 200)
    arguments["k_cache"][0, 150] = np.nan
    partials = run(first, arguments)
    reduce = SplitAttentionReduce(heads=2, head_dim=32, max_len=200, chunk=64)
    assert np.isnan(run(reduce, {"out": np.zeros((2, 32), np.float32), **partials})["out"]).all()


@pytest.mark.parametrize("chunk", [0, 48, 96, 2048])
def test_an_impossible_chunk_is_refused_by_name(chunk: int) -> None:
    with pytest.raises(ArgumentError, match="split_attention: chunk must be one of"):
        SplitAttention(indirect=False, **SHAPE, max_len=100, chunk=chunk)
    with pytest.raises(ArgumentError, match="split_attention_reduce: chunk must be one of"):
        SplitAttentionReduce(heads=2, head_dim=32, max_len=100, chunk=chunk)


@pytest.mark.parametrize("warps", [0, 3, 16])
def test_an_impossible_number_of_warps_is_refused_by_name(warps: int) -> None:
    with pytest.raises(ArgumentError, match="multi_warp_attention: num_warps must be one of"):
        ContiguousAttention(indirect=False, **SHAPE, max_len=100, split=Warps(warps))


@pytest.mark.parametrize("length", [1, 32, 33])
def test_a_chunk_without_positions_adds_two_numbers_to_the_work_of_a_shorter_cache(length: int) -> None:
    long, short = (SplitAttention(indirect=True, **SHAPE, max_len=max_len, chunk=32) for max_len in (100, length))
    numbers = 2 * long.heads * (long.chunks - short.chunks)  # a peak and a total
    assert long.work(length) == Work(short.work().flops, short.work().bytes + 4 * numbers)
    first, second = (SplitAttentionReduce(heads=2, head_dim=32, max_len=max_len, chunk=32) for max_len in (100, length))
    assert first.work(length) == Work(second.work().flops + 2 * numbers, second.work().bytes + 4 * numbers)


def test_the_work_of_an_impossible_length_is_refused_by_the_reduction() -> None:
    with pytest.raises(ArgumentError, match="split_attention_reduce: length must be from 1 to max_len"):
        SplitAttentionReduce(heads=2, head_dim=32, max_len=100).work(101)
