"""What suits a GPU: defaults and settings of attention that were measured. Nothing else in this folder names a card or a number
of multiprocessors.

Evidence (benchmarks/LOG.md): H200 and H100, both of 132 multiprocessors. Bits depend on `splits`, `least`, `short` and `tile`,
so these are the same on every GPU: they follow from a model's heads and from MULTIPROCESSORS, whatever the GPU has. `spread`
and `resident_threads` leave the bits as they are."""

from __future__ import annotations

from typing import Final, NamedTuple

from ptxgen.kernels.attention.paged_cache import TILE
from ptxgen.kernels.attention.split import MOST_SPLITS
from ptxgen.kernels.suited import MULTIPROCESSORS
from ptxgen.target import Target

WARPS_TO_FILL: Final = 16
"""Of a multiprocessor: two blocks of 8."""

# Attention over pages: parts of a row, positions of a part.
SPLITS: Final = 64
LEAST: Final = 128
RESIDENT_THREADS: Final = 256

# One token over a contiguous cache: parts of a long sequence, positions of a part (a tile for each warp), the most positions
# of a short one, blocks that a multiprocessor must hold.
TOKEN_SPLITS: Final = 16
TOKEN_LEAST: Final = 256
TOKEN_SHORT: Final = 512
TOKEN_RESIDENT: Final = 1


def splits_for(groups: int, resident: int = TOKEN_RESIDENT, multiprocessors: int = MULTIPROCESSORS) -> int:
    """A good `splits` of grouped_attention for so many blocks a part, kv_heads * blocks: as many as a GPU holds at once, or few
    less."""
    return min(max(2, multiprocessors * resident // groups), MOST_SPLITS)


def filling_blocks(warps: int, multiprocessors: int = MULTIPROCESSORS) -> int:
    """Blocks of so many warps that a GPU holds at once."""
    return WARPS_TO_FILL * multiprocessors // warps


def spread_of(kv_heads: int, rows: int, blocks: int) -> int:
    """A good `spread` of paged_attention for rows that all have long sequences: `blocks` in all, and few that find nothing to
    do."""
    return min(max(1, blocks // (kv_heads * rows)), MOST_SPLITS)


class Suited(NamedTuple):
    """Settings of paged_attention. splits: parts of a row; tile: positions that a warp takes at once; resident_threads: most
    threads for which nothing is spilled, as far as that was looked at."""

    splits: int
    tile: int
    resident_threads: int


def suited(
    target: Target, *, heads: int, kv_heads: int, head_dim: int, kv_type: str, multiprocessors: int = MULTIPROCESSORS
) -> Suited:
    """For a model's heads. Parts enough that those of one long row fill the GPU, and half a tile a warp with up to four heads
    of up to 128 f32 values, were faster at any length and number of rows."""
    small = heads <= 4 * kv_heads and head_dim <= 128
    tile = TILE // 2 if small and kv_type == "f32" else TILE
    filling = spread_of(kv_heads, 1, filling_blocks(LEAST // tile, multiprocessors))
    splits = min(max(1 << filling.bit_length() - 1, SPLITS // 2), 2 * SPLITS)
    if target.sm < 90 or not small:
        return Suited(splits, tile, RESIDENT_THREADS)
    return Suited(splits, tile, 384 if kv_type == "q8_0" else 512)
