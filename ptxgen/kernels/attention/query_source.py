"""Where the queries of a token, and its own key and value, come from when it attends to a contiguous cache. Here earlier
launches have finished them; rope_source.py computes them in the same launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.memory import GlobalArray, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.attention_type import AttentionType
from ptxgen.kernels.attention.group_tiles import GroupTiles, Load, Locate
from ptxgen.kernels.attention.kv_type import KV_TYPES
from ptxgen.kernels.attention.tiles import Softmax, Tiles
from ptxgen.target import DEFAULT


class BlockPart(NamedTuple):
    """What a block attends to: part number `part` of `parts` of the first `length` positions, with `heads` query heads from
    `first` on of a key/value head. number: of these heads' block among those of a part."""

    number: Value
    kv_head: Value
    first: Value
    heads: Value
    part: Value
    parts: Value
    length: Value


WriteHead = Callable[[Tiles, Softmax, Value], None]
"""Writes the softmax of the block's head (%ctaid.x) where the last value holds. All threads must come there."""

Sources = Callable[[BlockPart], tuple[SharedPart, Locate]]
"""The queries, and where keys and values are, as GroupTiles.softmax takes them. All threads must come there."""

InParts = Callable[[Value, Sources], None]
"""Attends to so many positions in parts."""


@dataclass(frozen=True)
class QuerySource:
    """q, and the token's own row of the caches, as they stand. prefix: what a kernel's name begins with."""

    waits_inside: ClassVar[bool] = False
    least_sm: ClassVar[int] = DEFAULT.sm
    # Before sm_90 the assembler writes all that has a shuffle twice, the second time for warps that are apart, which never are.
    most_code: ClassVar[int] = 112 * 1024

    @property
    def prefix(self) -> str:
        """What a kernel's name begins with."""
        return ""

    def require(self, attention: AttentionType) -> None:
        """Raise ArgumentError unless there is such a source for these heads."""

    def signature(self, attention: AttentionType, plain: Signature) -> Signature:
        """The arguments of a kernel that has these with the plain source."""
        return plain

    def emit(
        self, k: KernelBuilder, attention: AttentionType, tiles: GroupTiles, short: int, write: WriteHead, in_parts: InParts
    ) -> None:
        """Attend to up to `short` positions with a block a head, to more in parts."""
        allowed, length = attention.length(k)
        with k.when(attention.scores.device_seen(k, length) <= short):
            self._attend_to_all(k, attention, attention.tiles(tiles.warps), write, allowed, length)
        with k.otherwise():
            in_parts(length, lambda block: self._stored(k, attention, tiles, block))

    def _attend_to_all(
        self, k: KernelBuilder, attention: AttentionType, tiles: Tiles, write: WriteHead, allowed: Value, length: Value
    ) -> None:
        with k.when(k.ctaid.x < attention.heads):
            q, keys, values = attention.places(k, *tiles.firsts(k))
            begin = attention.scores.device_first(k, length)
            scores = attention.scores_of(k, k.ctaid.x, 1, length)
            part = tiles.softmax(k, tiles.row(k, q), keys, values, begin, length, scores)
            write(tiles, tiles.merge(k, part), allowed)

    def _stored(
        self, k: KernelBuilder, attention: AttentionType, tiles: GroupTiles, block: BlockPart
    ) -> tuple[SharedPart, Locate]:
        queries = tiles.queries(k, k.arg.q.at(block.first, 0), block.heads, tiles.room(k))
        caches, rows = [cache.at(block.kv_head, 0, 0) for cache in (k.arg.k_cache, k.arg.v_cache)], tiles.of_values

        def locate(start: Value) -> tuple[Load, Load]:
            if attention.kept is not None:
                own = ((cache.at(one.first(k)), one.head_dim) for cache, one in zip(caches, (tiles, rows), strict=True))
                keys, values = (ring_rows(k, cache, width, start, attention.kept) for cache, width in own)
                return keys, values
            first = start * attention.head_dim + tiles.first(k)
            keys = cached_rows(k, caches[0].at(first), attention.head_dim)
            if rows is not tiles:
                first = start * rows.head_dim + rows.first(k)
            return keys, cached_rows(k, caches[1].at(first), rows.head_dim)

        return queries, locate

    # In NumPy

    def given(self, attention: AttentionType, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of the plain source that stand for these."""
        return arguments

    def off(self, attention: AttentionType, given: Mapping[str, Any], length: int) -> NDArray[np.float64] | float:
        """What scores are off by because of the source, [heads, seen], in units of 2^-24."""
        return 0.0

    def kept(self, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """The caches, where the source writes them."""
        return {}

    def kept_bounds(self, attention: AttentionType, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """How far off they may be."""
        return {}

    def work(self, attention: AttentionType) -> Work:
        """Beside that of attention."""
        return Work(0, 0)

    def inputs(self, attention: AttentionType, plain: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Random arguments that stand for those of the plain source."""
        return plain


PLAIN = QuerySource()


def cached_rows(k: KernelBuilder, rows: GlobalArray, head_dim: int) -> Load:
    """Loads rows of a tile that starts there."""

    def load(row: Value, places: range, width: int) -> list[Value]:
        moved = [rows.at(row * head_dim)]
        return [value for place in places for value in KV_TYPES["f32"].load(k, moved, place, width)]

    return load


def ring_rows(k: KernelBuilder, rows: GlobalArray, head_dim: int, start: Value, ring: int) -> Load:
    """The same of a tile that starts at a position of a ring (ring.py), of which `rows` is the first row."""
    load = cached_rows(k, rows, head_dim)
    return lambda row, places, width: load((start + row) % ring, places, width)
