"""Attention of many queries at once over the paged cache, by tensor cores: chunks of prompts, drafts, and mixtures of them in
one launch. The arithmetic of a tile is in query_tile.py; here are the rows, the pages, and what the result may be off by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
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
from ptxgen.dsl.memory import SharedPart
from ptxgen.dsl.parts import PARTS
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.attention.f16_parts import LEAST_ERROR, PARTS_ALLOWED, relative_error
from ptxgen.kernels.attention.paged_cache import TILE, PagedKernel
from ptxgen.kernels.attention.query_tile import CHUNK, LOG2_E, QUERIES, QueryTile, Running, StagedArray, StagedRows, exp2
from ptxgen.kernels.attention.scores import PLAIN_SCORES, Scoring, capped, plus
from ptxgen.kernels.attention.staging import Staging
from ptxgen.kernels.attention.token_split import softmax
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require, require_room
from ptxgen.target import MAX_STATIC_SHARED, WARP_SIZE
from ptxgen.types import F16, F32, S32, U32

MOST_WARPS = 8
WARPS_ALLOWED = (4, MOST_WARPS)
LOWEST_SCORE = -1e30  # what a query starts from where a whole tile may be before its window
LONGEST_PART = 128  # values of a row that a warp has: a thread has a query and a result of two rows in its registers
MOST_SHARED = 99 << 10  # bytes that a block may have on every GPU from sm_80 on


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


@register(scores=(Scoring,))
@dataclass(frozen=True)
class FlashAttention(PagedKernel):
    """out[r, h] = softmax(q[r, h] K^T / sqrt(head_dim)) V over the positions that row r sees, K and V of head h // group.

    q: f32[rows, heads, head_dim]; out: f32[rows, heads, value_dim]; cache, tables, slot and position as in PagedKernel. tiles:
    u32[tiles, 2], the first row of a tile and how many it has, up to `tile_rows`; 0 for none. The rows of a tile are of one
    slot at positions one after another, of which the kernel reads the first. Rows of no tile, idle rows and tiles with too many
    rows are not touched. group = heads / kv_heads is at most `queries`: 64, or 128 if both widths are multiples of 64 and
    most_warps is 8; half as many where two warps share a query, of a width of more than 128, and a quarter of more than 256,
    for which the cache must be f16.

    f32 operands are rounded to `parts` f16: 1 is plain f16, 2 keeps 22 bits. Queries, keys and values up to 65504 are allowed,
    larger ones make NaN or infinity. A row's bits depend on its own queries and what it sees alone, so not on its tile, as long
    as what later rows of its tile cached is finite. They are not those of the emulator or of another GPU generation.

    A block has up to `most_warps` warps (8 or 4), which share what they stage and whose longest decides how long it takes; of
    those with four a multiprocessor has two.

    scores: which positions a row sees, and how, see scores.py. With a window a tile goes over the positions from the tile of 32
    on in which its first row's window begins, and pages before are not looked at.
    """

    emulator_bits: ClassVar[bool] = False
    bit_free = ("most_warps",)
    least_sm = 80
    name = "flash_attention"
    tiles: int = field(kw_only=True)
    parts: int = field(default=2, kw_only=True)
    most_warps: int = field(default=MOST_WARPS, kw_only=True)
    scores: Scoring = field(default=PLAIN_SCORES, kw_only=True, metadata=PARTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "tiles")
        self.scores.require(self)
        if self.parts not in PARTS_ALLOWED:
            raise ArgumentError(f"{self.name}: parts must be one of {PARTS_ALLOWED}, got {self.parts!r}")
        if self.most_warps not in WARPS_ALLOWED:
            raise ArgumentError(f"{self.name}: most_warps must be one of {WARPS_ALLOWED}, got {self.most_warps!r}")
        names = ("head_dim",) if self.value_dim is None else ("head_dim", "value_dim")
        require_room(self, "keys, values and scores of a tile", self._shared, MOST_SHARED, *names)
        if self.group > self.queries:
            raise ArgumentError(f"{self.name}: at most {self.queries} heads may share a key/value head, got {self.group}")

    @property
    def sharing(self) -> int:
        """Warps that share a query, 1, 2 or 4."""
        return 1 << max(-(-self.widest // LONGEST_PART) - 1, 0).bit_length()

    def padded(self, tensor: str) -> int:
        """Values of a row of `k` or `v` in shared memory: whole blocks of 32 for each warp that shares it."""
        whole = WARP_SIZE * self.sharing
        return -(-self.width(tensor) // whole) * whole

    @property
    def warps(self) -> int:
        """Warps of a block: as many as share a row of the cache evenly, 8 values at a time, while they bring it."""
        return gcd(self.padded("k") // CHUNK, self.padded("v") // CHUNK, self.most_warps)

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return self.warps // self.sharing * QUERIES

    @property
    def tile_rows(self) -> int:
        """The most rows of a tile."""
        return self.queries // self.group

    def staged(self, tensor: str) -> StagedRows:
        """The keys (`k`), or the values (`v`), that stand in shared memory at a time: all of one page."""
        return StagedRows(self.padded(tensor), TILE, 1 if self.kv_type == "f16" else self.parts)

    @property
    def _tile(self) -> QueryTile:
        return QueryTile(self.staged("k"), self.parts, self.head_dim, self.sharing)

    @property
    def _values(self) -> QueryTile:
        return QueryTile(self.staged("v"), self.parts, self.value_width, self.sharing)

    @property
    def _exchange(self) -> int:
        """f32 numbers that warps exchange."""
        return self.warps * self._tile.exchanged if self.sharing > 1 else 0

    @property
    def _shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.staged("k").bytes + self.staged("v").bytes + F32.bytes * self._exchange

    @property
    def _staging(self) -> Staging:
        return Staging(self, {tensor: self.staged(tensor) for tensor in ("k", "v")}, self.warps * WARP_SIZE)

    def signature(self) -> Signature:
        return {
            "out": Array(F32, (self.rows, self.heads, self.value_width), "out", partial=True),
            "q": Array(F32, (self.rows, self.heads, self.head_dim), "in", partial=True),
            **self.caches("in"),
            **self.places(),
            "tiles": read(U32, self.tiles, 2),
        }

    def launch(self) -> LaunchConfig:
        dynamic = self._shared if self._shared > MAX_STATIC_SHARED else 0
        return LaunchConfig(grid=(self.kv_heads, self.tiles), block=self._staging.threads, dynamic_shared=dynamic)

    def emit(self, k: KernelBuilder) -> None:
        first, count = k.load_vector(k.arg.tiles[k.ctaid.y, 0], 2)
        with k.when((count - 1 < self.tile_rows) & (first < self.rows) & (count <= self.rows - first)):
            place = self.place(k, first)
            with k.when(place.known & (place.length > 0)):
                position = place.length - 1
                seen_from = self.scores.device_first(k, place.length)
                end = self._sound_end(k, place.slot, seen_from, k.min(position + count, self.max_len))
                with k.when(position < end):
                    self._attend(k, _Rows(first, end - position, place.slot, position), seen_from)

    def _sound_end(self, k: KernelBuilder, slot: Value, begin: Value | int, end: Value) -> Value:
        """`end`, or the first position before it, from `begin` on, whose page must not be followed."""
        entries = self.entries
        worst, own = k.u32(0), k.tid.x if isinstance(begin, int) else begin // self.page_len + k.tid.x
        for entry in k.strided(own, (end + (self.page_len - 1)) // self.page_len, step=self._staging.threads):
            bad = self.page(k, slot, entry * self.page_len) >= self.pages
            worst @= k.max(worst, k.select(bad, entries - entry, 0))
        sound: Value = k.min(end, (entries - k.block_max(worst)) * self.page_len)
        return sound

    def _attend(self, k: KernelBuilder, rows: _Rows, seen_from: Value | int) -> None:
        queries = self._queries(k, rows)
        own = self._tile.own(k)
        places = [k.arg.q.at(rows.first + query.row, query.head, plus((k.lane % 4) * 2, own)) for query in queries]
        operands = self._tile.queries(k, places, self.scores.factor(self.head_dim) * LOG2_E)
        limits = [rows.position + query.row for query in queries]
        slopes = [self.scores.slope(k, one.head, self.heads, LOG2_E) for one in queries] if self.scores.alibi else []
        running = self._values.start(k) if isinstance(seen_from, int) else self._values.start(k, LOWEST_SCORE)
        keys, values, exchange = self._room(k)
        self._staging.clear(k, keys, values)
        last = rows.position + rows.number - 1
        begin = 0 if isinstance(seen_from, int) else seen_from // TILE * TILE
        page = k.variable(self.page(k, rows.slot, k.u32(begin)), U32)
        self._staging.begin(k, "k", keys, self._staging.row(k, page, k.u32(begin), seen_from, last))
        for start in k.strided(begin, last + 1, step=TILE):
            following = start + TILE
            next_page = self.page(k, rows.slot, k.min(following, last))
            self._staging.finish(k, "k", keys)
            k.barrier()  # the keys are there, and nobody reads the last values any more
            self._staging.begin(k, "v", values, self._staging.row(k, page, start, seen_from, last))
            scores = self._tile.scores(k, operands, keys)
            if exchange is not None:
                scores = self._tile.whole_scores(k, scores, exchange)
            if self.scores.softcap:
                cap = self.scores.softcap
                scores = [[capped(k, score * (2 / cap), cap * LOG2_E, exp2) for score in block] for block in scores]
            if slopes:
                distances = [k.f32(k.bits(limit - start, S32)) for limit in limits]
                scores = self._tile.less_slopes(k, scores, slopes, distances)
            self._hide(k, scores, start, limits)
            weights, shrinks = self._tile.weigh(k, running, scores)
            self._staging.finish(k, "v", values)
            k.barrier()
            with k.when(following <= last):
                self._staging.begin(k, "k", keys, self._staging.row(k, next_page, following, seen_from, last))
            page @= next_page
            self._values.add(k, running, weights, shrinks, values)
        self._store(k, rows, queries, running)

    def _room(self, k: KernelBuilder) -> tuple[StagedArray, StagedArray, SharedPart | None]:
        """Where keys, values, and what warps exchange, stand in shared memory."""
        if self._shared <= MAX_STATIC_SHARED:
            exchange = k.shared(F32, self._exchange).start() if self._exchange else None
            return self.staged("k").make(k), self.staged("v").make(k), exchange
        name, size = k.dynamic_shared(F16).name, self.staged("k").bytes
        both = size + self.staged("v").bytes
        exchange = SharedPart(k, k.symbol_address(name), F32, both) if self._exchange else None
        return StagedArray(name), StagedArray(name, size), exchange

    def _queries(self, k: KernelBuilder, rows: _Rows) -> list[_Query]:
        """The lane's two queries: query m of a block is head m mod group of row m / group. One past the last row is that of the
        last again, so that it computes with numbers that somebody wrote."""
        queries = []
        group = k.warp if self.sharing == 1 else k.warp // self.sharing
        for half in (0, QUERIES // 2):
            number = group * QUERIES + (k.lane // 4 + half)
            row = number // self.group
            head = k.ctaid.x * self.group + number % self.group
            queries.append(_Query(k.min(row, rows.number - 1), head, row < rows.number))
        return queries

    def _hide(self, k: KernelBuilder, scores: list[list[Value]], start: Value, limits: list[Value]) -> None:
        """Let no query see a position past its own, or before its window."""
        first, window = start + (k.lane % 4) * 2, self.scores.window
        each = [
            (n * 8 + i, limit, block[2 * q + i])
            for q, limit in enumerate(limits)
            for n, block in enumerate(scores)
            for i in (0, 1)
        ]
        with k.when(start + (TILE - 1) > limits[0]):  # the first query sees the least
            for at, limit, score in each:
                score @= k.select(first + at <= limit, score, float("-inf"))
        if window is not None:
            with k.when(start + window <= limits[1]):  # the second query sees the fewest of the first positions
                for at, limit, score in each:
                    score @= k.select(first + (at + window) > limit, score, float("-inf"))

    def _store(self, k: KernelBuilder, rows: _Rows, queries: list[_Query], running: Running) -> None:
        for number, (query, total) in enumerate(zip(queries, self._tile.totals(k, running), strict=True)):
            with k.when(query.live):
                out = k.arg.out.at(rows.first + query.row, query.head, plus((k.lane % 4) * 2, self._values.own(k)))
                inverse = 1.0 / total  # once: 64 divisions are half of the kernel's text
                for block, values in enumerate(running.weighted):
                    inside = self._values.inside(k, block * CHUNK)
                    with nullcontext() if isinstance(inside, bool) else k.when(inside):
                        if inside is not False:
                            k.store(out[block * CHUNK], [value * inverse for value in values[2 * number : 2 * number + 2]])

    # In NumPy

    def live_rows(self, arguments: Mapping[str, Any]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """The rows that are computed, each with the pages and places that it sees (PagedKernel.seen): those for which all pages
        exist from the first one on that the first row of their tile sees."""
        for first, count in arguments["tiles"].tolist():
            if count <= min(self.tile_rows, self.rows - first):
                begin = self.scores.first(len(self.standing(arguments, first)))
                for row in range(first, first + count):
                    where = self.standing(arguments, row)[begin:]
                    if len(where) and (where[:, 0] < self.pages).all():
                        yield row, where[self.scores.first(begin + len(where)) - begin :]

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        out = arguments["out"].astype(np.float64)
        for row, where in self.live_rows(arguments):
            scores, values = self.exact(arguments, row, where)
            out[row] = np.einsum("hl,hld->hd", softmax(scores), values)
        return {"out": out}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """Rounding bound, relative to the sums of the magnitudes.

        An operand in f16 parts is off by relative_error, and by LEAST_ERROR where it is small; the product of two low parts,
        which is left out, is as large as that. A sum of n products by tensor cores is off by 3 n units of 2^-24, whether they
        round as the emulator or cut as GPUs do (tests/ptxgen/isa/fragments.py), one is added for each of the other warps that
        share a query, and products with low parts are as many again, which add a thirtieth to the sizes; the scaled query is
        rounded twice. A weight is off by the error of its score, by 3 units for each of the exponentials that are multiplied,
        one a tile, and by their arguments' roundings, which add up to the distance from the largest score; that score's own
        error cancels. Tiles are added by one fma each. A tenth more covers the second order.
        """
        out = self.reference(**arguments)["out"]
        bound = np.zeros(out.shape)
        cached = 0.0 if self.kv_type == "f16" else relative_error(self.parts)
        staged = self.staged("k")
        products = self.parts + staged.parts - 1
        split = relative_error(self.parts) + cached + (cached if self.parts == 2 else 0.0)
        for row, where in self.live_rows(arguments):
            scores, _ = self.exact(arguments, row, where)
            sizes, magnitudes = self.exact(arguments, row, where, magnitude=True)
            weights, tiles = softmax(scores), -(-(len(where) + self.scores.hidden) // staged.rows)
            of_score = sizes * ((3.1 * products * self.head_dim + 1 + self.sharing) * UNIT + split)
            of_score = of_score + UNIT * self.scores.units(sizes, self.distances(arguments, row, where))
            of_score = of_score + self._small_scores(arguments, row, where)
            of_weight = of_score + UNIT * (3 * (tiles + 2) + scores.max(axis=1, keepdims=True) - scores)
            of_sum = of_weight + split + UNIT * (3.1 * products * staged.rows + tiles + 2)
            above = np.einsum("hl,hld->hd", weights * of_sum, magnitudes) + 2 * LEAST_ERROR * (
                magnitudes.sum(axis=1) / np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1)[:, None] + 1.0
            )
            below = np.sum(weights * (of_weight + UNIT * (staged.rows // 4 + tiles + 4)), axis=1, keepdims=True)
            bound[row] = 1.1 * (above + below * np.abs(out[row])) + 2.0**-140
        return {"out": bound}

    def _small_scores(self, arguments: Mapping[str, Any], row: int, where: NDArray[np.int64]) -> NDArray[np.float64]:
        """What small operands may add to the errors of the scores [heads, positions]."""
        q = np.abs(arguments["q"][row].astype(np.float64)).sum(axis=1) * self.scores.factor(self.head_dim)
        keys = np.abs(self.values(arguments, "k", where)).sum(axis=2).repeat(self.group, axis=0)
        return np.asarray(2 * LEAST_ERROR * (q[:, None] + keys))

    def work(self) -> Work:
        """All rows at the last position."""
        length = self.scores.seen(self.max_len)
        seen = self.rows * self.heads * length
        cache, widths = self.kv_heads * length * self.row_bytes, self.head_dim + self.value_width
        return Work(flops=seen * (2 * widths + 4), bytes=cache + F32.bytes * self.rows * self.heads * widths)

    @classmethod
    def cases(cls, *, scores: type[Scoring] = Scoring, **fixed: Any) -> Iterator[KernelType]:
        shape: dict[str, Any] = {"head_dim": 32, "page_len": 32}
        yield cls(**fixed, rows=26, heads=4, kv_heads=2, pages=5, max_len=96, tiles=5, slots=2, kv_type="f16", **shape)
        window: dict[str, Any] = {"kv_type": "f32", "scores": Scoring(5, 5.0, 0.3, 8.0)}
        heads: dict[str, Any] = {"heads": 3, "kv_heads": 1, "head_dim": 40}
        yield cls(**fixed, rows=20, page_len=32, pages=4, max_len=96, tiles=2, slots=1, **heads, **window)
        yield cls(**fixed, rows=7, heads=3, kv_heads=1, pages=1, max_len=32, tiles=1, slots=1, kv_type="f32", **shape)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """The rows that `filled` makes, those of a slot side by side, in tiles of random sizes as far as there are tiles."""
        arguments = self.filled(rng)
        order = np.lexsort((arguments["position"], arguments["slot"]))
        for name in ("slot", "position"):
            arguments[name] = arguments[name][order]
        q = rng.normal(0.0, 2.0, (self.rows, self.heads, self.head_dim)).astype(np.float32)
        out = np.zeros((self.rows, self.heads, self.value_width), np.float32)
        return {"out": out, "q": q, **arguments, "tiles": self._random_tiles(rng, arguments)}

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
