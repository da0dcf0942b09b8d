"""Which settings of the products by tensor cores suit a shape, and which of them several matrices share in one launch: what was
measured on GPUs with 132 multiprocessors (H100 and H200 SXM), or fitted to that. The kernels work with any settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.gemm.block_grid import LARGEST_TILE
from ptxgen.kernels.gemm.f16_mma_gemm import HalfMmaGemm
from ptxgen.kernels.gemm.held_f16 import ABREAST
from ptxgen.kernels.gemm.mma_gemm import MmaGemm
from ptxgen.kernels.gemm.staged_f16 import SplitStageLayout
from ptxgen.kernels.gemm.staged_planes import COLUMN_TILE
from ptxgen.kernels.gemm.staged_weights import IN_PIECES, TileLayout
from ptxgen.kernels.gemm.stationary_gemm import MOST_COLUMNS, SHARE, StationaryGemm
from ptxgen.kernels.gemm.weight_tile import STEP, TILE_ROWS
from ptxgen.kernels.gemm.wgmma_gemm import COLUMNS, WgmmaGemm
from ptxgen.kernels.quantize.f16_split import TILE, WINDOW, windows_of
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.suited import LARGE, MULTIPROCESSORS, Limits
from ptxgen.target import HOPPER, WARP_SIZE

ENOUGH_WARPS: Final = 1024
"""Warps of `mma` that keep such a GPU busy: eight for nearly every multiprocessor. Not measured."""

MOST_DIGITS: Final = 96
"""Of `mma`: rows of activations times planes times parts of k, of a step each, that fit shared memory twice, beside weights."""

WIDE: Final = 16384
"""Of `half_mma`: rows of weights from which on blocks are enough for fewer warps to share k and to have fewer rows."""

DEEP: Final = 32
"""Of `half_mma`: windows from which on more warps may share k."""

DEEP_TILES, SHALLOW_TILES = 1536, 1152
"""Of `half_mma`: pairs of tiles of rows of weights, times the warps that share k, that are enough."""

MOST_TILES: Final = 16
"""Tiles of weights of a block of `stationary`, at most."""

MOST_WARPS: Final = 8
"""Warps of a block of `stationary`: twice as many have 128 registers each, and were slower."""

STAGES: Final = 3
"""Stages of its pipelines: 4 and 6 were slower. Two where a block has no room for three."""

BLOCKS: Final = ((3, 64, 4), (2, 128, 4), (2, 96, 4), (3, 48, 4), (2, 64, 4))
"""Warpgroups, columns and `unpacked` of blocks that several matrices may have in one launch of `wgmma`: with two stages nothing
is spilled for any format if `unpacked` is 2 where there is a third product."""

LARGE_BLOCKS: Final = ((4, 64, 2), (4, 48, 4))
"""The same for Q4_K alone: a thread of them has 128 registers, of which others would spill many. Q4_K itself keeps one word in
memory while windows go by, if 4 x 64 columns are for matrices with different numbers of rows."""

FEW: Final = 32
"""Rows of activations up to which weights of `wgmma` are staged, too."""

SMALL_BLOCK: Final = 144
"""Bytes of a block of weights up to which four warpgroups have room for three stages of them."""

WIDEST: Final = 128
"""Columns times parts of the blocks of `wgmma` that are tried for one matrix."""

UNPACKING: Final = 100
"""What a window of a warpgroup's weights costs beside its products, as columns of these: fitted to times of Q4_K."""

UNPACKING_LOW: Final = 350
"""The same where integers have a low register, fitted to Q6_K."""

MARGIN: Final = 0.07
"""What `_time` may be off by, as a share: settings that were measured are kept unless others are better by more."""

S = TypeVar("S", StationaryGemm, WgmmaGemm)


def mma(format: Format, *, k: int, n: int, m: int, digits: int, split: int | None = None, limits: Limits = LARGE) -> MmaGemm:
    """A first guess, not measured. Give `split` where rows must have the same bits for every m: it is what results depend on,
    and here on n and m."""
    if split is None:
        # Parts of k take the shared memory of rows of activations.
        warps = -(-n // TILE_ROWS) * -(-m // 32)
        split = min(1 if warps >= _of(ENOUGH_WARPS, limits) else 4 if m <= COLUMN_TILE else 2, -(-k // STEP))
    # Twice as many sums of products, for halves of blocks, and steps loaded ahead must leave room for the sums of rows.
    whole = format.scale_values == BLOCK
    room = min(MOST_DIGITS // (digits * split), LARGEST_TILE if split == 1 and whole else 2 * COLUMN_TILE)
    tile = next(size for size in (64, 32, 16, 8) if size <= max(room, 8) and (size == 8 or size < 2 * m))
    ahead = 2 if tile < 32 and STEP // format.fragment_values * TILE_ROWS <= WARP_SIZE and whole else 1
    settings: dict[str, Any] = {
        "tile": tile,
        "warps": max(1, 4 // split),
        "ahead": ahead,
        "resident_threads": 384 if whole and limits.target.sm == HOPPER.sm else 256,
    }
    return MmaGemm(format, k=k, n=n, m=m, digits=digits, split=split, **settings)


def half_mma(
    format: Format,
    *,
    k: int,
    n: int,
    m: int,
    parts: int,
    split: int | None = None,
    chains: int | None = None,
    limits: Limits = LARGE,
) -> HalfMmaGemm:
    """Measured for Q4_K at the shapes of an 8B, but for `chains`. Give `split` and `chains` where rows must have the same bits
    for every m: results depend on these, and they depend here on n and m."""
    few, wide = m <= TILE, n >= _of(WIDE, limits)
    many_scales = format.half_run < WINDOW // 4  # which take registers of their own
    row_tiles = 1 if (few and wide) or many_scales else 2
    if split is None:
        split = min(_f16_mma_split(k, n, m, limits), windows_of(k))
    if chains is None:
        chains = 4 // row_tiles if few else 1
    resident = (512 if wide and not many_scales else 384) if few else 256
    settings: dict[str, Any] = {
        "row_tiles": row_tiles,
        "ahead": 0,
        "split": split,
        "chains": chains,
        "resident_threads": resident,
    }
    return HalfMmaGemm(format, k=k, n=n, m=m, parts=parts, **settings)


def _of(large: int, limits: Limits) -> int:
    """What is enough of, where so many are for a large GPU."""
    return large * limits.multiprocessors // MULTIPROCESSORS


def _f16_mma_split(k: int, n: int, m: int, limits: Limits) -> int:
    wide = n >= _of(WIDE, limits)
    if m > 2 * TILE:
        return 2 if wide else 4
    if m > TILE:
        return 8
    if wide:
        return 4
    blocks, deep = -(-n // (2 * TILE_ROWS)), windows_of(k) >= DEEP
    return max(4, min(12, _of(DEEP_TILES, limits) // blocks) if deep else min(8, _of(SHALLOW_TILES, limits) // blocks))


def stationary(format: Format, *, k: int, n: int, m: int, parts: int, limits: Limits = LARGE) -> StationaryGemm:
    """A block for each multiprocessor, of eight warps, which have registers enough. More slices of k gain nothing where there
    are blocks enough with one: measured for 2 to 32 rows and the shapes of an 8B on an H200. Parts stand abreast where they
    can."""
    widest = MOST_COLUMNS if limits.target.sm >= HOPPER.sm else MOST_COLUMNS // 2  # for older GPUs more spills
    columns = min(-(-m // TILE) * TILE, widest // parts)
    windows, tiles = windows_of(k), -(-n // TILE_ROWS) * -(-m // columns)
    each = -(-windows // min(windows, max(1, limits.multiprocessors // (2 * tiles))))
    slices = -(-windows // each)  # every slice has a window
    split = min(each, MOST_WARPS)
    room = split * (STAGES * TileLayout(format).bytes + columns // TILE * SHARE) <= limits.shared
    settings: dict[str, Any] = {
        "columns": columns,
        "slices": slices,
        "split": split,
        "stages": STAGES if room else 2,
        "room": limits.shared,
        "row_tiles": 1,
        "chains": 4 if columns == TILE else 1,
        "resident_threads": WARP_SIZE * MOST_WARPS,
    }
    kernel = StationaryGemm(format, k=k, n=n, m=m, parts=parts, abreast=parts == 2 and m <= ABREAST, **settings)
    return replace(kernel, row_tiles=min(-(-tiles * slices // limits.multiprocessors), MOST_TILES, kernel.most_row_tiles))


def wgmma(format: Format, *, k: int, n: int, m: int, parts: int, limits: Limits = LARGE) -> WgmmaGemm:
    """What was fastest for Q4_K and Q6_K at 512 rows and the shapes of an 8B on an H200, as far as it spills nothing."""
    few = m <= FEW and format in IN_PIECES
    if few:
        warpgroups, unpacked = (4, 4) if format.block_bytes <= SMALL_BLOCK else (2, 2)
        columns = next(columns for columns in COLUMNS if columns >= m)
    elif parts == 1 and m > 64:
        warpgroups, columns, unpacked = 2, 128, 2 if format.half_low else 4
    elif parts == 2 and format.half_low:  # a third product, whose operand takes registers of its own
        warpgroups, columns, unpacked = 2, 64, 2
    else:
        warpgroups, columns, unpacked = 3, 64, 4
    settings: dict[str, Any] = {"warpgroups": warpgroups, "columns": columns, "unpacked": unpacked, "stages": 3 if few else 2}
    kernel = WgmmaGemm(format, k=k, n=n, m=m, parts=parts, staged=few, **settings)
    return _sliced(kernel, limits.multiprocessors) if few else kernel


SUITED: Final[Mapping[type[KernelType], Callable[..., KernelType]]] = {
    MmaGemm: mma,
    HalfMmaGemm: half_mma,
    StationaryGemm: stationary,
    WgmmaGemm: wgmma,
}
"""By type, its kernel that suits a format, k, n, m, the planes or parts of an activation, and limits."""


def suited_for(
    type: type[KernelType], format: Format, *, k: int, n: int, m: int, rounding: Mapping[str, int], limits: Limits = LARGE
) -> KernelType:
    """The kernel of a type of SUITED with settings that suit m rows of activations on a GPU of these limits. rounding: `digits`
    of `mma`, `parts` of the others. ArgumentError where the type is not for the shape, or not for the target."""
    kernel = SUITED[type](format, k=k, n=n, m=m, limits=limits, **rounding)
    if not kernel.fits(limits.target):
        raise ArgumentError(f"{kernel} does not run on {limits.target}")
    return kernel


def stationary_of_all(
    kernel: StationaryGemm, others: Sequence[KernelType], multiprocessors: int = MULTIPROCESSORS
) -> StationaryGemm | None:
    """One launch for the matrices of these kernels, too, with the split and slices of the first, and blocks of as many rows of
    weights as fill a GPU; None unless all read the same activations."""
    wide = _beside(kernel, others)
    if wide is None:
        return None
    blocks = wide.blocks
    tiles = sum(-(-n // TILE_ROWS) for n in blocks.matrices) * blocks.column_blocks * wide.slices
    row_tiles = min(max(kernel.row_tiles, -(-tiles // multiprocessors)), MOST_TILES, wide.most_row_tiles)
    return replace(wide, row_tiles=row_tiles)


def wgmma_of_all(kernel: WgmmaGemm, others: Sequence[KernelType], multiprocessors: int = MULTIPROCESSORS) -> WgmmaGemm | None:
    """One launch for the matrices of these kernels, too, with those settings of all that keep a GPU busy for the shortest time,
    or with other blocks if they do for a clearly shorter one: bits are the same with any. None if launches of their own take
    less, or read other activations. Where weights are staged with the settings of the first, and as many slices as keep the GPU
    busy, which changes bits."""
    wide = _beside(kernel, others)
    if wide is None:
        return None
    if kernel.staged:
        return _sliced(wide, multiprocessors)

    def time(one: WgmmaGemm) -> int:
        return _time(one, multiprocessors)

    apart = [one for one in (kernel, *others) if isinstance(one, WgmmaGemm)]
    own = min((replace(one, n=wide.n, n2=wide.n2, n3=wide.n3) for one in apart), key=time)
    other = min(_other_blocks(wide), key=time)
    best = other if time(other) < (1 - MARGIN) * time(own) else own
    return best if time(best) <= sum(map(time, apart)) else None


def wgmma_variants(kernel: WgmmaGemm, multiprocessors: int = MULTIPROCESSORS) -> Iterator[WgmmaGemm]:
    """Other blocks for the same product: with weights in registers, whose bits are the same, and with weights that come through
    shared memory, of which as many slices as fill the GPU may share k. Those of 96 columns took 1.05 to 1.27 times as long
    as the best others for 512 rows and k from 5120 to 32768 (H200, wgmma-columns-h200.json)."""
    others = _other_blocks(replace(kernel, staged=False, slices=1))
    yield from (one for one in others if one.columns <= WIDEST // kernel.parts)
    for warpgroups in (1, 2):
        with suppress(ArgumentError):
            yield replace(kernel, staged=False, slices=1, warpgroups=warpgroups, stages=2)
    if kernel.format in IN_PIECES:
        unpacked = 2 if kernel.format.half_low and kernel.parts == 2 else 4
        columns = next((columns for columns in COLUMNS if columns >= kernel.m), 64)
        for warpgroups in (2, 4) if kernel.format.block_bytes <= SMALL_BLOCK else (2,):
            with suppress(ArgumentError):
                settings: dict[str, Any] = {"warpgroups": warpgroups, "columns": min(columns, 64), "unpacked": unpacked}
                yield _sliced(replace(kernel, staged=True, stages=3, **settings), multiprocessors)


OF_ALL: Final[Mapping[type[KernelType], Callable[[Any, Sequence[KernelType]], KernelType | None]]] = {
    StationaryGemm: stationary_of_all,
    WgmmaGemm: wgmma_of_all,
}
"""By type, its kernel for several matrices in one launch."""


def _beside(kernel: S, others: Sequence[KernelType]) -> S | None:
    """The kernel for the matrices of one or two others, too, with its own settings. None where the others are not of its type,
    for the same format and activations, or where one has several matrices or a residual."""

    def alike(one: KernelType) -> bool:
        if type(one) is not type(kernel) or one.n2 or one.residual:
            return False
        return (one.format, one.k, one.m, one.parts) == (kernel.format, kernel.k, kernel.m, kernel.parts)

    if not 1 <= len(others) <= 2 or not all(map(alike, (kernel, *others))):
        return None
    n2, n3 = (*(one.parameters()["n"] for one in others), 0)[:2]
    return replace(kernel, n2=n2, n3=n3)


def _sliced(kernel: WgmmaGemm, multiprocessors: int) -> WgmmaGemm:
    """With as many slices as there are multiprocessors for, each with a window."""
    most = max(1, min(kernel.windows, multiprocessors // kernel.blocks.groups))
    each = -(-kernel.windows // most)
    return replace(kernel, slices=-(-kernel.windows // each))


def _other_blocks(kernel: WgmmaGemm) -> Iterator[WgmmaGemm]:
    """This kernel with other blocks that fit."""
    for warpgroups, columns, unpacked in (LARGE_BLOCKS if kernel.format.name == "Q4_K" else ()) + BLOCKS:
        if 2 * SplitStageLayout(columns, kernel.parts).bytes <= HOPPER.max_shared:
            unpacked = 2 if kernel.format.half_low and kernel.parts == 2 else unpacked
            yield replace(kernel, warpgroups=warpgroups, columns=columns, stages=2, unpacked=unpacked)


def _time(kernel: WgmmaGemm, multiprocessors: int) -> int:
    """How long a launch takes, in a unit of all for the same k, if a multiprocessor has one block at a time: rounds of blocks,
    in each of which every warpgroup multiplies and unpacks, and the columns are copied. benchmarks/LOG.md says how far what was
    measured on an H200 is from it."""
    rounds = -(-kernel.blocks.groups // multiprocessors)
    columns, unpacking = kernel.columns * kernel.parts, UNPACKING_LOW if kernel.format.half_low else UNPACKING
    return rounds * (kernel.warpgroups * (columns + unpacking) + columns)
