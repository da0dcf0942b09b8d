"""Heads whose size is no multiple of a warp's lanes, large ones, and such whose values have another width than their keys, in
every kernel that has heads; caches of any length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.conformance.shape_checks import assembly
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.flash_attention import FlashAttention
from ptxgen.kernels.attention.group_tiles import GroupTiles
from ptxgen.kernels.attention.int8_planes import Int8PlanesOutput
from ptxgen.kernels.attention.kv_cache_scatter import KvCacheScatter
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.kernels.attention.paged_last_block import PagedAttentionLastBlock
from ptxgen.kernels.attention.paged_rope_scatter import PagedRopeScatter
from ptxgen.kernels.attention.rope_scatter import RopeScatter
from ptxgen.kernels.attention.rope_source import RopeFused
from ptxgen.kernels.attention.scores import Scoring
from ptxgen.kernels.attention.split_attention import SplitAttention
from ptxgen.kernels.attention.tiles import Tiles
from ptxgen.kernels.attention.token_split import LastBlock
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.checking import check

SIZES = (32, *range(40, 257, 8), 512)
PAGES: dict[str, Any] = {"page_len": 32, "pages": 3, "slots": 1, "max_len": 96}
LAST = LastBlock(2, 32, 32)
PLANES = Int8PlanesOutput(2)
ALIBI = Scoring(alibi=8.0)
NARROWER: dict[str, Any] = {"head_dim": 192, "value_dim": 128}
WIDER: dict[str, Any] = {"head_dim": 64, "value_dim": 96}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [
        ContiguousAttention(True, 1, 1, 40, 40, split=LAST, source=RopeFused(False, bias=True)),
        ContiguousAttention(True, 1, 1, 136, 40, split=LAST, source=RopeFused(True)),
        ContiguousAttention(True, 1, 1, 512, 40, output=Int8PlanesOutput(2)),
        ContiguousAttention(True, 1, 1, 512, 70, split=LAST),
        PagedAttentionLastBlock(1, 1, 1, 512, **PAGES, kv_type="q8_0", splits=2, least=32),
        PagedAttentionLastBlock(1, 1, 1, 120, **PAGES, kv_type="f16", splits=2, least=32),
        FlashAttention(5, 1, 1, 136, **PAGES, tiles=1, kv_type="f32"),
        FlashAttention(5, 1, 1, 256, **PAGES, tiles=1, kv_type="q8_0"),
        FlashAttention(5, 1, 1, 512, **PAGES, tiles=1, kv_type="f16"),
        PagedRopeScatter(2, 4, 1, 80, **PAGES, kv_type="f16", neox=True, bias=False, rotary_dim=32),
        PagedRopeScatter(2, 2, 1, 512, **PAGES, kv_type="q8_0", neox=False, bias=False),
        PerHeadRmsNorm(2, 512),
    ],
    ids=str,
)
def test_a_head_of_any_size_is_right(kernel: KernelType) -> None:
    check(kernel, kernel.inputs(np.random.default_rng(8)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [
        *(
            kernel
            for widths in (NARROWER, WIDER)
            for kernel in (
                ContiguousAttention(True, 2, 1, **widths, max_len=40, output=PLANES),
                ContiguousAttention(True, 2, 1, **widths, max_len=70, split=LAST, scores=Scoring(window=37, softcap=5.0)),
                SplitAttention(False, 2, 1, **widths, max_len=70, chunk=32),
                KvCacheScatter(True, 3, **widths, max_len=100, ring=64),
                RopeScatter(False, True, 2, 3, **widths, max_len=100, ring=64),
                PagedRopeScatter(3, 6, 3, **widths, **PAGES, kv_type="q8_0", neox=True, bias=True),
            )
        ),
        PagedAttentionLastBlock(2, 2, 1, **NARROWER, **PAGES, kv_type="q8_0", splits=2, least=64, tile=16, output=PLANES),
        PagedAttentionLastBlock(2, 2, 1, **WIDER, **PAGES, kv_type="f32", splits=2, least=32),
        ContiguousAttention(True, 3, 1, **WIDER, max_len=70, split=LAST, scores=ALIBI),
        PagedAttention(2, 3, 1, 40, **PAGES, kv_type="f16", value_dim=256, splits=2, least=32, tile=16),
        PagedAttention(2, 3, 1, 136, **PAGES, kv_type="f16", value_dim=40, splits=2, least=32, scores=ALIBI),
        FlashAttention(5, 2, 1, **NARROWER, **PAGES, tiles=1, kv_type="f32"),
        FlashAttention(5, 2, 1, **WIDER, **PAGES, tiles=1, kv_type="f16", scores=ALIBI),
        FlashAttention(5, 1, 1, 512, **PAGES, tiles=1, kv_type="f16", value_dim=32),
        PagedRopeScatter(2, 4, 2, 80, **PAGES, kv_type="f16", neox=False, bias=False, rotary_dim=32, value_dim=512),
        RopeScatter(True, False, 2, 3, **NARROWER, max_len=20, normed=True),
    ],
    ids=str,
)
def test_values_may_be_narrower_or_wider_than_keys(kernel: KernelType) -> None:
    check(kernel, kernel.inputs(np.random.default_rng(8)))
    assembly(kernel)


def test_what_takes_values_of_no_other_width_says_so() -> None:
    for kernel, fields, said in (
        (ContiguousAttention, {"split": LAST, "source": RopeFused(True)}, "as wide as keys, 64, got a value_dim of 96"),
        (ContiguousAttention, {"value_dim": 20}, "value_dim must be 32, 512 or a multiple of 8"),
        (ContiguousAttention, {"value_dim": 40, "output": PLANES}, "quantises heads of a multiple of 32 values, got 40"),
        (RopeScatter, {"value_dim": 40, "normed": True, "neox": True, "bias": False}, "value_dim must be a multiple of 32"),
    ):
        style = {"indirect": True} if kernel is ContiguousAttention else {}
        shape: dict[str, Any] = {"heads": 2, "kv_heads": 1, **WIDER, "max_len": 70, **style, **fields}
        with pytest.raises(ArgumentError, match=said):
            kernel(**shape)
    paged: dict[str, Any] = {"rows": 1, "heads": 2, "kv_heads": 1, **PAGES, "tiles": 1}
    with pytest.raises(ArgumentError, match="needs a value_dim that is a multiple of 32, got 40"):
        FlashAttention(**paged, head_dim=64, value_dim=40, kv_type="q8_0")
    with pytest.raises(ArgumentError, match="choose a smaller one of head_dim=256, value_dim=512"):
        FlashAttention(**paged, head_dim=256, value_dim=512, kv_type="f32")


@pytest.mark.parametrize("size", SIZES)
def test_lanes_have_every_value_of_a_head_once(size: int) -> None:
    tiles, group = Tiles(size, 1), GroupTiles(size, 1, 8)
    assert {place + lane * tiles.width + i for place in tiles.places for lane in range(32) for i in range(tiles.width)} >= set(
        range(size)
    )
    assert tiles.padded - size < 32 * tiles.width
    values = [p + lane * group.width + i for p in group.places() for lane in range(group.lanes) for i in range(group.width)]
    assert sorted(values) == list(range(size))
    assert tiles.rows * tiles.values <= 64 >= group.flight * group.values
    for other in SIZES:
        both = Tiles(size, 1, value_dim=other)
        rows = both.of_values
        assert (rows.head_dim, rows.rounds, rows.value_width) == (other, both.rounds, size)
        assert both.rows * max(both.values, rows.values) <= 64


@pytest.mark.parametrize("head_dim", [40, 136])
def test_int8_planes_of_heads_that_share_a_block_are_refused(head_dim: int) -> None:
    with pytest.raises(ArgumentError, match=f"quantises heads of a multiple of 32 values, got {head_dim}"):
        ContiguousAttention(True, 2, 1, head_dim, 70, output=Int8PlanesOutput(2))


@pytest.mark.slow
def test_a_cache_may_have_more_bytes_than_32_bits_count() -> None:
    """Of 8 key/value heads of 128 values and 1,048,576 positions, 4 GiB for each of keys and values."""
    kernels = (
        ContiguousAttention(True, 32, 8, 128, 1 << 20, split=LastBlock()),
        PagedAttention(1, 32, 8, 128, page_len=128, pages=1 << 13, slots=1, max_len=1 << 20, kv_type="f32"),
    )
    for kernel in kernels:
        assert "mad.wide.u32" in emit(kernel).text
