"""How the positions of one token's sequence are dealt out to blocks and warps: a block a head (OneBlock, Warps), or for a long
sequence to many blocks, of which the last one reduces (LastBlock). A split says its scratch, emission, reference and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from operator import truediv
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.arrays import numpy_dtype
from ptxgen.dsl.arguments import Array, Signature, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import MOST_CODE
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.parts import KernelPart
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.attention.attention_type import AttentionType
from ptxgen.kernels.attention.group_tiles import GroupTiles
from ptxgen.kernels.attention.merge import Merge, PartArrays, Staged, merged_bound
from ptxgen.kernels.attention.output import Output, OutShape, Result
from ptxgen.kernels.attention.query_source import BlockPart, QuerySource, Sources
from ptxgen.kernels.attention.scores import plus
from ptxgen.kernels.attention.split import (
    HANDED,
    MOST_SPLITS,
    SequenceSplit,
    part_bounds,
    partials,
    require_split,
    softmax_part,
)
from ptxgen.kernels.attention.suited import TOKEN_LEAST, TOKEN_RESIDENT, TOKEN_SHORT, TOKEN_SPLITS
from ptxgen.kernels.attention.tiles import Softmax, Tiles
from ptxgen.kernels.shape import require_of
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32

WARPS = 8
WARP_COUNTS = (1, 2, 4, 8)  # sixteen would leave a thread too few registers
MOST_SUMS = 24 << 10  # bytes that the sums of a block's warps may take of shared memory


@dataclass(frozen=True)
class OneBlock(KernelPart):
    """WARPS warps a head. stem: of a kernel's name; any_source: whether all sources can be attended to."""

    stem: ClassVar[str] = "incremental"
    any_source: ClassVar[bool] = False
    most_code: ClassVar[int] = MOST_CODE
    scratch: ClassVar[tuple[str, ...]] = ()

    @property
    def warps(self) -> int:
        """Warps that share a head."""
        return WARPS

    def require(self, attention: AttentionType) -> None:
        """Raise ArgumentError unless there is such a split."""

    def arrays(self, attention: AttentionType) -> Signature:
        """The scratch."""
        return {}

    def launch(self, attention: AttentionType) -> LaunchConfig:
        """The geometry."""
        return LaunchConfig(grid=attention.heads, block=self.warps * WARP_SIZE)

    def emit(self, k: KernelBuilder, attention: AttentionType, source: QuerySource, output: Output) -> None:
        """The body."""
        tiles = attention.tiles(self.warps)
        q, keys, values = attention.places(k, *tiles.firsts(k))
        query = tiles.row(k, q)
        allowed, length = attention.length(k)
        begin = attention.scores.device_first(k, length)
        scores = attention.scores_of(k, k.ctaid.x, 1, length)
        part = tiles.softmax(k, query, keys, values, begin, length, scores)
        write_head(k, attention, output, tiles, tiles.merge(k, part), allowed)

    def is_long(self, seen: int) -> bool:
        """Whether so many positions that are seen are dealt out to several blocks."""
        return False

    def left(self, attention: AttentionType, given: Mapping[str, Any], length: int) -> dict[str, NDArray[Any]]:
        """What stands in the scratch afterwards; given: the arguments of the plain source."""
        return {}

    def left_bounds(
        self, attention: AttentionType, given: Mapping[str, Any], length: int, off: NDArray[np.float64] | float
    ) -> dict[str, Any]:
        """How far off it may be, where scores are off by `off` because of the source."""
        return {}

    def bound(
        self, attention: AttentionType, given: Mapping[str, Any], length: int, off: NDArray[np.float64] | float
    ) -> NDArray[np.float64]:
        """Rounding bound of `out`, in units of 2^-24.

        The weight of a position is a product of exponentials, one for itself, one for each tile after it and one for the merge:
        2 units each and one for the product, and the roundings of their arguments, which add up to the distance of the score
        from the largest. (That largest score may be off: it cancels.) The weighted sum adds a unit for each position of a warp
        and for each warp, the sum of the weights one for each tile, the trees and the division. A tenth more covers the second
        order.
        """
        scores, values = attention.exact(given, length)
        weights, tiles = softmax(scores), -(-scores.shape[1] // (self.warps * WARP_SIZE))
        units = attention.score_units(given, length) + off + 3 * (tiles + 2) + scores.max(axis=1, keepdims=True) - scores
        above = np.einsum("hl,hld->hd", weights * (units + WARP_SIZE * tiles + self.warps), np.abs(values))
        below = np.sum(weights * (units + tiles + 10), axis=1, keepdims=True) * np.abs(np.einsum("hl,hld->hd", weights, values))
        bound: NDArray[np.float64] = 1.1 * UNIT * (above + below) + 2.0**-140
        return bound

    def unwritten(self, attention: AttentionType) -> dict[str, NDArray[Any]]:
        """The scratch before the launch."""
        return {}


@dataclass(frozen=True)
class Warps(OneBlock):
    """`num_warps` warps a head (1, 2, 4 or 8): few for short sequences, many for long ones; with 8 the bits are those of
    OneBlock."""

    stem = "multi_warp"
    summary = "num_warps warps a head"
    num_warps: int

    @property
    def warps(self) -> int:
        return self.num_warps

    def require(self, attention: AttentionType) -> None:
        if self.num_warps not in WARP_COUNTS:
            raise ArgumentError(f"{attention.name}: num_warps must be one of {WARP_COUNTS}, got {self.num_warps!r}")


@dataclass(frozen=True)
class LastBlock(OneBlock):
    """Up to `short` positions the bits of OneBlock. More are dealt out by SequenceSplit; query heads of a group share each read
    of the cache; the last block reduces the parts. A multiprocessor must be able to hold `resident` blocks.

    Scratch: peaks, totals: f32[heads, splits], weighted: f32[heads, splits, value_dim]; counters: u32[kv_heads * blocks], zeros
    before the launch and zeros again after it: `blocks` share the heads of a group.
    """

    stem = "grouped"
    summary = "long sequences by many blocks"
    any_source = True
    most_code = QuerySource.most_code
    scratch = (*HANDED, "counters")
    splits: int = TOKEN_SPLITS
    least: int = TOKEN_LEAST
    short: int = TOKEN_SHORT
    resident: int = TOKEN_RESIDENT

    @property
    def split(self) -> SequenceSplit:
        """How the positions of a long sequence are dealt out."""
        return SequenceSplit(self.splits, self.least)

    def require(self, attention: AttentionType) -> None:
        require_of(attention.name, self, "splits", low=2, high=MOST_SPLITS)
        require_of(attention.name, self, "resident", high=8)
        require_split(attention, self.split)
        require_of(attention.name, self, "short")
        if self.short < self.least:
            raise ArgumentError(f"{attention.name}: short must be at least least ({self.least}), got {self.short}")

    @staticmethod
    def blocks(group: int, widest: int) -> int:
        """Blocks that share the `group` query heads of a key/value head."""
        room = MOST_SUMS // (F32.bytes * WARPS * widest)
        return -(-group // min(GroupTiles.most_heads(widest, WARPS), room))

    def groups(self, attention: AttentionType) -> int:
        """Blocks of a part."""
        return attention.kv_heads * self.blocks(attention.group, attention.widest)

    def tiles(self, attention: AttentionType) -> GroupTiles:
        """How a block goes over a part."""
        heads = -(-attention.group // self.blocks(attention.group, attention.widest))
        return GroupTiles(attention.head_dim, heads, WARPS, value_dim=attention.value_dim)

    def arrays(self, attention: AttentionType) -> Signature:
        handed = partials(1, attention.heads, self.splits, attention.value_width, "out")
        arrays = {name: array for name, array in handed.items() if isinstance(array, Array)}
        return {
            **{name: Array(F32, array.shape[1:], "out", partial=True) for name, array in arrays.items()},
            "counters": update(U32, self.groups(attention), zeros=True),
        }

    def launch(self, attention: AttentionType) -> LaunchConfig:
        blocks = max(attention.heads, self.groups(attention) * self.splits)
        return LaunchConfig(blocks, WARPS * WARP_SIZE, resident=self.resident)

    def emit(self, k: KernelBuilder, attention: AttentionType, source: QuerySource, output: Output) -> None:
        def write(tiles: Tiles, whole: Softmax, allowed: Value) -> None:
            write_head(k, attention, output, tiles, whole, allowed)

        def in_parts(length: Value, sources: Sources) -> None:
            seen = attention.scores.device_seen(k, length)
            size = self.split.device_size(seen)
            part, count = k.ctaid.x // self.groups(attention), (seen + (size - 1)) // size
            with k.when(part < count):
                tiles, blocks = self.tiles(attention), self.blocks(attention.group, attention.widest)
                own = k.ctaid.x % self.groups(attention)
                kv_head, number = own // blocks, own % blocks * tiles.heads
                first, heads = kv_head * attention.group + number, k.min(attention.group - number, tiles.heads)
                block = BlockPart(own, kv_head, first, heads, part, count, length)
                self._attend_to_part(k, attention, output, sources, block, size)

        source.emit(k, attention, self.tiles(attention), self.short, write, in_parts)

    def _attend_to_part(
        self, k: KernelBuilder, attention: AttentionType, output: Output, sources: Sources, block: BlockPart, size: Value
    ) -> None:
        """Leave the part, of up to `size` positions; if that was the last of these heads, write what they attend to."""
        tiles, width = self.tiles(attention), attention.value_width
        own, _, first, heads, part, count, length = block
        seen_from = attention.scores.device_first(k, length)
        stop = k.shuffle(k.min(plus(part * size + size, seen_from), length), 0)
        queries, locate = sources(block)
        scores = attention.scores_of(k, first, tiles.heads, length)
        found = tiles.softmax(k, queries, locate, plus(part * size, seen_from), stop, scores)
        merged, weighted = tiles.merge(k, found)
        for head, d, value in tiles.added(k, weighted):
            with k.when(head < heads):
                k.store(k.arg.weighted[first + head, part, d], value)
        for peak, total, head, mine in merged:
            with k.when((head < heads) & mine):
                k.store(k.arg.peaks[first + head, part], peak)
                k.store(k.arg.totals[first + head, part], total)
        with k.when(k.last_block(k.arg.counters[own], count)):
            staged = Staged.of(k, tiles.heads, width)
            parts = PartArrays(k.arg.peaks.at(first, 0), k.arg.totals.at(first, 0), k.arg.weighted.at(first, 0, 0), self.splits)
            Merge(width, tiles.heads, WARPS).put_together(k, parts, count, heads, staged)
            k.barrier()
            shape, runs = OutShape(1, attention.heads, width), staged.runs(k, heads)

            def store(place: Value, values: Any) -> None:
                k.store(k.arg.out.at(first, 0)[place], values)

            output.write_runs(k, shape, 0, first, tiles.heads * width, runs, store)

    def is_long(self, seen: int) -> bool:
        return seen > self.short

    def left(self, attention: AttentionType, given: Mapping[str, Any], length: int) -> dict[str, NDArray[Any]]:
        handed = {name: given[name].astype(np.float64) for name in HANDED}
        seen = attention.scores.seen(length)
        if self.is_long(seen):
            scores, values = attention.exact(given, length)
            for number, at in enumerate(self.split.slices(seen)):
                for name, exact in softmax_part(scores[:, at], values[:, at]).items():
                    handed[name][:, number] = exact
        return {**handed, "counters": np.zeros_like(given["counters"])}

    def left_bounds(
        self, attention: AttentionType, given: Mapping[str, Any], length: int, off: NDArray[np.float64] | float
    ) -> dict[str, Any]:
        """See `part_bounds`."""
        handed = {name: np.zeros(given[name].shape) for name in HANDED}
        seen = attention.scores.seen(length)
        if self.is_long(seen):
            scores, values = attention.exact(given, length)
            tiles, errors = self.tiles(attention), self._errors(attention, given, length) + off
            for number, at in enumerate(self.split.slices(seen)):
                for name, bound in part_bounds(tiles, scores[:, at], errors[:, at], values[:, at]).items():
                    handed[name][:, number] = bound
        return {**handed, "counters": 0.0}

    def _errors(self, attention: AttentionType, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
        """What scores of a long sequence may be off by, [heads, seen], in units of 2^-24."""
        sizes = attention.exact(given, length, magnitude=True)[0]
        return self.tiles(attention).score_units * sizes + attention.scores.units(sizes, attention.distances(length))

    def bound(
        self, attention: AttentionType, given: Mapping[str, Any], length: int, off: NDArray[np.float64] | float
    ) -> NDArray[np.float64]:
        """That of OneBlock; of a long sequence see `merged_bound`."""
        seen = attention.scores.seen(length)
        if not self.is_long(seen):
            return super().bound(attention, given, length, off)
        scores, values = attention.exact(given, length)
        errors = self._errors(attention, given, length) + off
        return merged_bound(self.tiles(attention), self.split.size(seen), scores, errors, values)

    def unwritten(self, attention: AttentionType) -> dict[str, NDArray[Any]]:
        arrays = {name: array for name, array in self.arrays(attention).items() if isinstance(array, Array)}
        return {name: np.zeros(array.shape, numpy_dtype(array.dtype)) for name, array in arrays.items()}


def write_head(
    k: KernelBuilder, attention: AttentionType, output: Output, tiles: Tiles, whole: Softmax, allowed: Value
) -> None:
    """Write what the block's head (%ctaid.x) attends to, where `allowed` holds. All threads must come here."""
    shape = OutShape(1, attention.heads, attention.value_width)
    found = ((d, partial(truediv, value, whole.total)) for d, value in tiles.added(k, whole.weighted, allowed))

    def store(d: Value, result: Result) -> None:
        k.store(k.arg.out[k.ctaid.x, d], result())

    def own() -> tuple[Value, Value]:
        live = allowed & (k.tid.x < shape.head_dim)
        return k.ctaid.x * shape.head_dim + k.tid.x, live

    output.write_head(k, shape, 0, found, store, own)


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each head."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    normalised: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normalised
