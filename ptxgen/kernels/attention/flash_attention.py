"""Attention of many queries at once over the paged cache, by tensor cores: chunks of prompts, drafts, and mixtures of them in
one launch. The arithmetic of a tile is in query_tile.py; here are the rows, the pages, and what the result may be off by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.attention.f16_parts import LEAST_ERROR, PARTS_ALLOWED, relative_error
from ptxgen.kernels.attention.paged_cache import TILE, PagedKernel
from ptxgen.kernels.attention.query_tile import CHUNK, LOG2_E, QUERIES, QueryTile, Running, StagedRows
from ptxgen.kernels.attention.staging import Staging
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32

MOST_WARPS = 8
WARPS_ALLOWED = (4, MOST_WARPS)
LONGEST_ROW = 128  # values: a thread has a query and a result of two rows in its registers


def run_starts(slot: NDArray[Any], position: NDArray[Any]) -> list[int]:
    """Where the runs of rows start: rows of one slot at positions one after another."""
    if not len(slot):
        return []
    joined = (slot[1:] == slot[:-1]) & (position[1:].astype(np.int64) == position[:-1].astype(np.int64) + 1)
    return [0, *(np.flatnonzero(~joined) + 1).tolist()]


def tiles_of(slot: NDArray[Any], position: NDArray[Any], tile_rows: int) -> NDArray[np.uint32]:
    """The tiles that these rows make, u32[tiles, 2], as FlashAttention takes them: up to `tile_rows` rows of a run. Those that
    see the most come first, for they take the longest, and from the middle on those that see the least: where two share a
    multiprocessor a long one then has a short one beside it."""
    starts = [*run_starts(slot, position), len(slot)]
    tiles = [(first, min(tile_rows, end - first)) for start, end in pairwise(starts) for first in range(start, end, tile_rows)]
    tiles.sort(key=lambda tile: -int(position[tile[0]]))
    middle = -(-len(tiles) // 2)
    return np.array(tiles[:middle] + tiles[: middle - 1 : -1], np.uint32).reshape(-1, 2)


class _Rows(NamedTuple):
    """The rows of a block: the first, their number without idle ones, their slot and the position of the first."""

    first: Value
    number: Value
    slot: Value
    position: Value


class _Query(NamedTuple):
    """A query of a lane: its row's number in the tile, its head, and whether there is such a row."""

    row: Value
    head: Value
    live: Value


@register
@dataclass(frozen=True)
class FlashAttention(PagedKernel):
    """out[r, h] = softmax(q[r, h] K^T / sqrt(head_dim)) V over the positions that row r sees, K and V of head h // group.

    out, q: f32[rows, heads, head_dim]; cache, tables, slot and position as in PagedKernel. tiles: u32[tiles, 2], the first row
    of a tile and how many it has, up to `tile_rows`; 0 for none. The rows of a tile are of one slot at positions one after
    another, of which the kernel reads the first. Rows of no tile, idle rows and tiles with too many rows are not touched.
    head_dim is a multiple of 32 up to 128, group = heads / kv_heads at most 64, or 128 if head_dim is a multiple of 64 and
    most_warps is 8.

    f32 operands are rounded to `parts` f16: 1 is plain f16, 2 keeps 22 bits. Queries, keys and values up to 65504 are allowed,
    larger ones make NaN or infinity. A row's bits depend on its own queries and what it sees alone, so not on its tile, as long
    as what later rows of its tile cached is finite. They are not those of the emulator or of another GPU generation.

    A block has up to `most_warps` warps (8 or 4), which share what they stage and whose longest decides how long it takes; of
    those with four a multiprocessor has two.
    """

    emulator_bits: ClassVar[bool] = False
    bit_free = ("most_warps",)
    least_sm = 80
    name = "flash_attention"
    tiles: int = field(kw_only=True)
    parts: int = field(default=2, kw_only=True)
    most_warps: int = field(default=MOST_WARPS, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "head_dim", low=WARP_SIZE, high=LONGEST_ROW, multiple=WARP_SIZE)
        require(self, "tiles")
        if self.parts not in PARTS_ALLOWED:
            raise ArgumentError(f"{self.name}: parts must be one of {PARTS_ALLOWED}, got {self.parts!r}")
        if self.most_warps not in WARPS_ALLOWED:
            raise ArgumentError(f"{self.name}: most_warps must be one of {WARPS_ALLOWED}, got {self.most_warps!r}")
        if self.group > self.queries:
            raise ArgumentError(f"{self.name}: at most {self.queries} heads may share a key/value head, got {self.group}")

    @property
    def warps(self) -> int:
        """Warps of a block: as many as share a row of the cache evenly, 8 values at a time, while they bring it."""
        return gcd(self.head_dim // CHUNK, self.most_warps)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP_SIZE

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return self.warps * QUERIES

    @property
    def tile_rows(self) -> int:
        """The most rows of a tile."""
        return self.queries // self.group

    @property
    def staged(self) -> StagedRows:
        """The keys, or the values, that stand in shared memory at a time: all of one page."""
        return StagedRows(self.head_dim, TILE, 1 if self.kv_type == "f16" else self.parts)

    @property
    def _tile(self) -> QueryTile:
        return QueryTile(self.staged, self.parts)

    @property
    def _staging(self) -> Staging:
        return Staging(self, self.staged, self.threads)

    def signature(self) -> Signature:
        return {
            "out": Array(F32, (self.rows, self.heads, self.head_dim), "out", partial=True),
            "q": Array(F32, (self.rows, self.heads, self.head_dim), "in", partial=True),
            **self.caches("in"),
            **self.places(),
            "tiles": read(U32, self.tiles, 2),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(self.kv_heads, self.tiles), block=self.threads)

    def emit(self, k: KernelBuilder) -> None:
        first, count = k.load_vector(k.arg.tiles[k.ctaid.y, 0], 2)
        with k.when((count - 1 < self.tile_rows) & (first < self.rows) & (count <= self.rows - first)):
            place = self.place(k, first)
            with k.when(place.known & (place.length > 0)):
                position = place.length - 1
                end = self._sound_end(k, place.slot, k.min(position + count, self.max_len))
                with k.when(position < end):
                    self._attend(k, _Rows(first, end - position, place.slot, position))

    def _sound_end(self, k: KernelBuilder, slot: Value, end: Value) -> Value:
        """`end`, or the first position before it whose page must not be followed."""
        entries = self.max_len // self.page_len
        worst = k.u32(0)
        for entry in k.strided(k.tid.x, (end + (self.page_len - 1)) // self.page_len, step=self.threads):
            bad = self.page(k, slot, entry * self.page_len) >= self.pages
            worst @= k.max(worst, k.select(bad, entries - entry, 0))
        sound: Value = k.min(end, (entries - k.block_max(worst)) * self.page_len)
        return sound

    def _attend(self, k: KernelBuilder, rows: _Rows) -> None:
        queries = self._queries(k, rows)
        places = [k.arg.q.at(rows.first + query.row, query.head, (k.lane % 4) * 2) for query in queries]
        operands = self._tile.queries(k, places, self.head_dim**-0.5 * LOG2_E)
        limits = [rows.position + query.row for query in queries]
        running = self._tile.start(k)
        keys, values = self.staged.make(k), self.staged.make(k)
        last = rows.position + rows.number - 1
        page = k.variable(self.page(k, rows.slot, k.u32(0)), U32)
        self._staging.begin(k, "k", keys, self._staging.row(k, page, k.u32(0), last))
        for start in k.strided(0, last + 1, step=TILE):
            following = start + TILE
            next_page = self.page(k, rows.slot, k.min(following, last))
            self._staging.finish(k, keys)
            k.barrier()  # the keys are there, and nobody reads the last values any more
            self._staging.begin(k, "v", values, self._staging.row(k, page, start, last))
            scores = self._tile.scores(k, operands, keys)
            self._hide(k, scores, start, limits)
            weights, shrinks = self._tile.weigh(k, running, scores)
            self._staging.finish(k, values)
            k.barrier()
            with k.when(following <= last):
                self._staging.begin(k, "k", keys, self._staging.row(k, next_page, following, last))
            page @= next_page
            self._tile.add(k, running, weights, shrinks, values)
        self._store(k, rows, queries, running)

    def _queries(self, k: KernelBuilder, rows: _Rows) -> list[_Query]:
        """The lane's two queries: query m of a block is head m mod group of row m / group. One past the last row is that of the
        last again, so that it computes with numbers that somebody wrote."""
        queries = []
        for half in (0, QUERIES // 2):
            number = k.warp * QUERIES + (k.lane // 4 + half)
            row = number // self.group
            head = k.ctaid.x * self.group + number % self.group
            queries.append(_Query(k.min(row, rows.number - 1), head, row < rows.number))
        return queries

    def _hide(self, k: KernelBuilder, scores: list[list[Value]], start: Value, limits: list[Value]) -> None:
        """Let no query see a position past its own."""
        first = start + (k.lane % 4) * 2
        with k.when(start + (TILE - 1) > limits[0]):  # the first query sees the least
            for query, limit in enumerate(limits):
                for number, block in enumerate(scores):
                    for i in range(2):
                        score = block[2 * query + i]
                        score @= k.select(first + (number * 8 + i) <= limit, score, float("-inf"))

    def _store(self, k: KernelBuilder, rows: _Rows, queries: list[_Query], running: Running) -> None:
        for number, (query, total) in enumerate(zip(queries, self._tile.totals(k, running), strict=True)):
            with k.when(query.live):
                out = k.arg.out.at(rows.first + query.row, query.head, (k.lane % 4) * 2)
                inverse = 1.0 / total  # once: 64 divisions are half of the kernel's text
                for block, values in enumerate(running.weighted):
                    k.store(out[block * 8], [value * inverse for value in values[2 * number : 2 * number + 2]])

    # In NumPy

    def live_rows(self, arguments: Mapping[str, Any]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """The rows that are computed, each with the pages and places that it sees (PagedKernel.seen)."""
        for first, count in arguments["tiles"].tolist():
            if count <= min(self.tile_rows, self.rows - first):
                for row in range(first, first + count):
                    where = self.seen(arguments, row)
                    if len(where):
                        yield row, where

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        out = arguments["out"].astype(np.float64)
        for row, where in self.live_rows(arguments):
            scores, values = self._exact(arguments, row, where)
            out[row] = np.einsum("hl,hld->hd", _softmax(scores), values)
        return {"out": out}

    def _exact(
        self, arguments: Mapping[str, Any], row: int, where: NDArray[np.int64], *, magnitude: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The scores [heads, positions] of a row and the values [heads, positions, head_dim]; with `magnitude` of the absolute
        numbers."""
        q = arguments["q"][row].astype(np.float64)
        keys, values = (self.values(arguments, tensor, where).repeat(self.group, axis=0) for tensor in ("k", "v"))
        if magnitude:
            q, keys, values = np.abs(q), np.abs(keys), np.abs(values)
        scores: NDArray[np.float64] = np.einsum("hd,hld->hl", q, keys) * self.head_dim**-0.5
        return scores, values

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """Rounding bound, relative to the sums of the magnitudes.

        An operand in f16 parts is off by relative_error, and by LEAST_ERROR where it is small; the product of two low parts,
        which is left out, is as large as that. A sum of n products by tensor cores is off by 3 n units of 2^-24, whether they
        round as the emulator or cut as GPUs do (tests/ptxgen/isa/fragments.py), and products with low parts are as many again,
        which add a thirtieth to the sizes; the scaled query is rounded twice. A weight is off by the error of its score, by 3
        units for each of the exponentials that are multiplied, one a tile, and by their arguments' roundings, which add up to
        the distance from the largest score; that score's own error cancels. Tiles are added by one fma each. A tenth more
        covers the second order.
        """
        out = self.reference(**arguments)["out"]
        bound = np.zeros(out.shape)
        cached = 0.0 if self.kv_type == "f16" else relative_error(self.parts)
        products = self.parts + self.staged.parts - 1
        split = relative_error(self.parts) + cached + (cached if self.parts == 2 else 0.0)
        for row, where in self.live_rows(arguments):
            scores, _ = self._exact(arguments, row, where)
            sizes, magnitudes = self._exact(arguments, row, where, magnitude=True)
            weights, tiles = _softmax(scores), -(-len(where) // self.staged.rows)
            of_score = sizes * ((3.1 * products * self.head_dim + 2) * UNIT + split) + self._small_scores(arguments, row, where)
            of_weight = of_score + UNIT * (3 * (tiles + 2) + scores.max(axis=1, keepdims=True) - scores)
            of_sum = of_weight + split + UNIT * (3.1 * products * self.staged.rows + tiles + 2)
            above = np.einsum("hl,hld->hd", weights * of_sum, magnitudes) + 2 * LEAST_ERROR * (
                magnitudes.sum(axis=1) / np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1)[:, None] + 1.0
            )
            below = np.sum(weights * (of_weight + UNIT * (self.staged.rows // 4 + tiles + 4)), axis=1, keepdims=True)
            bound[row] = 1.1 * (above + below * np.abs(out[row])) + 2.0**-140
        return {"out": bound}

    def _small_scores(self, arguments: Mapping[str, Any], row: int, where: NDArray[np.int64]) -> NDArray[np.float64]:
        """What small operands may add to the errors of the scores [heads, positions]."""
        q = np.abs(arguments["q"][row].astype(np.float64)).sum(axis=1) * self.head_dim**-0.5
        keys = np.abs(self.values(arguments, "k", where)).sum(axis=2).repeat(self.group, axis=0)
        bound: NDArray[np.float64] = 2 * LEAST_ERROR * (q[:, None] + keys)
        return bound

    def work(self) -> Work:
        """All rows at the last position."""
        seen = self.rows * self.heads * self.max_len
        cache = 2 * self.kv_heads * self.max_len * self.kv.row_bytes(self.head_dim)
        moved = 2 * F32.bytes * self.rows * self.heads * self.head_dim
        return Work(flops=seen * (4 * self.head_dim + 4), bytes=cache + moved)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        shape = {"head_dim": 32, "page_len": 32}
        yield cls(**fixed, rows=26, heads=4, kv_heads=2, pages=5, max_len=96, tiles=5, slots=2, kv_type="f16", **shape)
        yield cls(**fixed, rows=7, heads=3, kv_heads=1, pages=1, max_len=32, tiles=1, slots=1, kv_type="f32", **shape)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """The rows that `filled` makes, those of a slot side by side, in tiles of random sizes as far as there are tiles."""
        arguments = self.filled(rng)
        order = np.lexsort((arguments["position"], arguments["slot"]))
        for name in ("slot", "position"):
            arguments[name] = arguments[name][order]
        q = rng.normal(0.0, 2.0, (self.rows, self.heads, self.head_dim)).astype(np.float32)
        return {"out": np.zeros_like(q), "q": q, **arguments, "tiles": self._random_tiles(rng, arguments)}

    def _random_tiles(self, rng: np.random.Generator, arguments: Mapping[str, Any]) -> NDArray[np.uint32]:
        tiles = np.zeros((self.tiles, 2), np.uint32)
        live = [row for row in range(self.rows) if len(self.seen(arguments, row))]
        for number in range(self.tiles):
            if not live:
                break
            mates = int(np.count_nonzero(arguments["slot"][live] == arguments["slot"][live[0]]))
            count = int(rng.integers(1, min(mates, self.tile_rows) + 1))
            tiles[number] = live[0], count
            live = live[count:]
        return tiles


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    normalised: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normalised
