"""A cache that is a ring of rows: the bits of one that has a row for each position."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.kv_cache_scatter import KvCacheScatter
from ptxgen.kernels.attention.ring import row_of
from ptxgen.kernels.attention.rope_scatter import RopeScatter
from ptxgen.kernels.attention.rope_source import RopeFused
from ptxgen.kernels.attention.scores import Scoring
from ptxgen.kernels.attention.token_split import LastBlock, Warps
from tests.ptxgen.kernels.checking import check, run

PARTS, ALONE = LastBlock(2, 32, 32), LastBlock(2, 32, 512)
LONG: dict[str, Any] = {"max_len": 700, "ring": 288, "scores": Scoring(window=270)}  # over a tile a warp
SHORT: dict[str, Any] = {"max_len": 230, "ring": 96, "scores": Scoring(window=70, alibi=8.0)}

KERNELS: dict[str, Any] = {
    "one block": ContiguousAttention(True, 2, 1, 64, **LONG),
    "two warps": ContiguousAttention(False, 2, 1, 40, split=Warps(2), **SHORT),
    "in parts": ContiguousAttention(True, 2, 1, 32, split=PARTS, **SHORT),
    "narrower values": ContiguousAttention(False, 2, 1, 64, value_dim=40, **LONG),
    "wider values": ContiguousAttention(True, 2, 1, 32, value_dim=96, split=PARTS, **SHORT),
    "RoPE-fused": ContiguousAttention(True, 2, 1, 64, split=ALONE, source=RopeFused(True), **LONG),
    "RoPE-fused, heads of 256": ContiguousAttention(True, 1, 1, 256, split=ALONE, source=RopeFused(True, normed=True), **SHORT),
    "RoPE-fused, in parts": ContiguousAttention(True, 2, 1, 32, split=PARTS, source=RopeFused(False, bias=True), **SHORT),
}


def in_ring(cache: Any, kernel: Any, length: int) -> Any:
    """What a ring has kept of a cache of `length` positions; before that it holds NaN."""
    ring = np.full((cache.shape[0], kernel.ring, cache.shape[2]), np.nan, np.float32)
    for position in range(max(length - kernel.ring, 0), length):
        ring[:, row_of(position, kernel.ring)] = cache[:, position]
    return ring


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_attention_over_a_ring_has_the_bits_of_attention_over_all_positions(kernel: Any) -> None:
    whole, rng = replace(kernel, ring=None), np.random.default_rng(3)
    window, fused = kernel.scores.window, isinstance(kernel.source, RopeFused)
    for length in (1, window, kernel.ring, kernel.ring + 1, 2 * kernel.ring + 17, kernel.max_len):
        given = whole.inputs(rng)
        number = np.array([length - fused], np.uint32)
        where: dict[str, Any] = {"position" if fused else "length": number if kernel.indirect else number[0]}
        given |= where | {name: rng.normal(size=given[name].shape).astype(np.float32) for name in ("k_cache", "v_cache")}
        kept = {name: in_ring(given[name], kernel, length - fused) for name in ("k_cache", "v_cache")}
        right, found = run(whole, given), run(kernel, given | kept)
        assert found["out"].tobytes() == right["out"].tobytes()
        for name in kept if fused else ():
            np.testing.assert_array_equal(found[name][:, (length - 1) % kernel.ring], right[name][:, length - 1])


@pytest.mark.slow
def test_a_rope_fused_token_in_a_ring_is_what_its_reference_says() -> None:
    kernel = KERNELS["RoPE-fused, in parts"]
    check(kernel, kernel.inputs(np.random.default_rng(6)) | {"position": np.array([150], np.uint32)})


@pytest.mark.parametrize("position", [0, 63, 64, 99, 100])
def test_a_token_is_written_where_the_one_a_ring_before_it_was(position: int) -> None:
    kernel = KvCacheScatter(True, 1, 32, max_len=100, ring=64)
    given = kernel.inputs(np.random.default_rng(1)) | {"position": np.array([position], np.uint32)}
    changed = (run(kernel, given)["k_cache"] != given["k_cache"]).any(axis=(0, 2))
    assert np.flatnonzero(changed).tolist() == ([position % 64] if position < 100 else [])


@pytest.mark.parametrize(
    ("make", "ring"),
    [
        (lambda ring: KvCacheScatter(True, 1, 32, max_len=100, ring=ring), 40),
        (lambda ring: RopeScatter(True, False, 1, 1, 32, 100, ring=ring), 0),
        (lambda ring: ContiguousAttention(True, 1, 1, 32, 100, ring=ring, scores=Scoring(window=65)), 64),
        (lambda ring: ContiguousAttention(True, 1, 1, 32, 100, ring=ring), 64),
    ],
)
def test_an_impossible_ring_is_refused_by_name(make: Any, ring: int) -> None:
    with pytest.raises(ArgumentError, match=f"ring.*{ring}"):
        make(ring)
