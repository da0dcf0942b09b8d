"""Attention of the rows of a step over a paged cache, the positions of each row dealt out to several blocks: each leaves the
softmax of a part of the positions. Putting them together is paged_attention_reduce."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray, SharedPart
from ptxgen.dsl.parts import PARTS
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.attention_type import positions
from ptxgen.kernels.attention.group_tiles import TILES_ALLOWED, GroupTiles, Load
from ptxgen.kernels.attention.paged_cache import TILE, PagedKernel, PagePlace
from ptxgen.kernels.attention.scores import PLAIN_SCORES, Scoring, less, plus
from ptxgen.kernels.attention.split import (
    HANDED,
    MOST_SPLITS,
    SequenceSplit,
    part_bounds,
    partials,
    require_split,
    softmax_part,
)
from ptxgen.kernels.attention.suited import LEAST, RESIDENT_THREADS, SPLITS, filling_blocks, spread_of
from ptxgen.kernels.attention.tiles import Softmax
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import FULL_WARP, WARP_SIZE
from ptxgen.types import F32, U32


@register(scores=(Scoring,))
@dataclass(frozen=True)
class PagedAttention(PagedKernel):
    """The softmax of each part of the positions that a row sees, for paged_attention_reduce.

    q: f32[rows, heads, head_dim]; peaks, totals: f32[rows, heads, splits], weighted: f32[rows, heads, splits, value_dim], see
    `partials`; how the positions are dealt out: SequenceSplit; the cache, slot and position as in PagedKernel. A block takes a
    part for up to 8 query heads of a key/value head, which share each read of the cache, and has a warp for each `tile` (32 or
    16) of `least` positions. A row whose position is max_len or more writes nothing. At most `spread` blocks share the parts of
    a row, one after another: fewer are better where there are many rows, which need no more blocks to fill a GPU. The
    registers of a multiprocessor hold resident_threads threads.

    scores: which positions a row sees, and how, see scores.py. With a window the positions from the tile of 32 on in which it
    begins are dealt out, and pages before are not looked at.
    """

    waits_inside = True
    most_code = 80 * 1024  # before sm_90 the assembler writes all that has a shuffle twice
    bit_free = ("spread", "resident_threads")
    splits: int = SPLITS
    least: int = LEAST
    tile: int = field(default=TILE, kw_only=True)
    spread: int = field(default=SPLITS, kw_only=True)
    resident_threads: int = field(default=RESIDENT_THREADS, kw_only=True)
    scores: Scoring = field(default=PLAIN_SCORES, kw_only=True, metadata=PARTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "spread", high=MOST_SPLITS)
        require(self, "resident_threads", high=2048)
        require_split(self, self.split)
        self.scores.require(self)
        if self.tile not in TILES_ALLOWED:
            raise ArgumentError(f"{self.name}: tile must be one of {TILES_ALLOWED}, got {self.tile!r}")

    @property
    def name(self) -> str:
        return "paged_attention"

    @property
    def split(self) -> SequenceSplit:
        """How the positions of a row are dealt out."""
        return SequenceSplit(self.splits, self.least)

    @property
    def blocks(self) -> int:
        """Blocks that share the heads of a group."""
        return -(-self.group // GroupTiles.most_heads(self.widest, self.warps))

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.least // self.tile

    @property
    def tiles(self) -> GroupTiles:
        """How a block goes over its positions."""
        return GroupTiles(self.head_dim, -(-self.group // self.blocks), self.warps, self.tile, self.value_dim)

    def filling(self) -> Self:
        """The same with as many blocks a row as a large GPU holds at once, if all rows have long sequences."""
        return replace(self, spread=spread_of(self.kv_heads, self.rows, filling_blocks(self.warps)))

    def signature(self) -> Signature:
        return {
            **partials(self.rows, self.heads, self.splits, self.value_width, "out"),
            "q": read(F32, self.rows, self.heads, self.head_dim),
            **self.caches("in"),
            **self.places(),
        }

    def launch(self) -> LaunchConfig:
        """The parts last, so that the first of all rows come first: of many others most find nothing to do."""
        grid = (self.kv_heads * self.blocks, self.rows, min(self.spread, self.splits))
        threads = self.warps * WARP_SIZE
        return LaunchConfig(grid, threads, resident=max(1, self.resident_threads // threads))

    def emit(self, k: KernelBuilder) -> None:
        row, kv_head = k.ctaid.y, k.ctaid.x // self.blocks
        place = self.place(k, row)
        from_tile = self.scores.device_tile(k, place.length)
        size = self.split.device_size(less(place.length, from_tile))
        begin = plus(k.ctaid.z * size, from_tile)
        end = self.start(k, place, begin, size)
        with k.when(begin < place.length):
            first, heads = self.own_heads(k, kv_head)
            for part, usable, found in self.own_parts(k, place, kv_head, begin, end, size, first, heads):
                self._hand_over(k, first, heads, part, usable, found)

    def own_heads(self, k: KernelBuilder, kv_head: Value) -> tuple[Value, Value]:
        """The first of the block's heads, and how many it has."""
        number = k.ctaid.x % self.blocks * self.tiles.heads
        return kv_head * self.group + number, k.min(self.group - number, self.tiles.heads)

    def start(self, k: KernelBuilder, place: PagePlace, begin: Value, size: Value) -> Value:
        """Where the block's first part ends, of `size` positions from `begin` on (see `_end`). What launches before this one
        write may be touched after it."""
        end = k.variable(begin, U32)
        with k.when(begin < place.length):
            end @= self._end(k, place, begin, size)
        k.wait_for_launch_before()
        return end

    def own_parts(
        self,
        k: KernelBuilder,
        place: PagePlace,
        kv_head: Value,
        begin: Value,
        end: Value,
        size: Value,
        first: Value,
        heads: Value,
    ) -> Iterator[tuple[Value, Value, list[Softmax]]]:
        """Each part, of `size` positions, the first from `begin` to `end`, that the block has of its row: its number, whether
        its pages exist, and the warp's softmax of it. Each time the block waits twice, so that nobody overwrites what another
        still reads."""
        queries = self.tiles.queries(k, k.arg.q.at(k.ctaid.y, first, 0), heads, self.tiles.room(k))
        part, blocks = k.variable(k.ctaid.z, U32), self.launch().grid[2]
        for start in k.strided(begin, place.length, step=size * blocks):
            found = self._softmax(k, queries, place, kv_head, start, end, first)
            yield part, end > start, found
            if blocks < self.splits:
                following = start + size * blocks
                with k.when(following < place.length):
                    end @= self._end(k, place, following, size)
                part @= part + blocks

    def _end(self, k: KernelBuilder, place: PagePlace, begin: Value, size: Value) -> Value:
        """Where a part of `size` positions from `begin` on ends: there, too, if it needs a page that does not exist."""
        stop = k.min(begin + size, place.length)
        end: Value = k.select(place.known & self._pages_exist(k, place.slot, begin, stop), stop, begin)
        return end

    def _softmax(
        self,
        k: KernelBuilder,
        queries: SharedPart,
        place: PagePlace,
        kv_head: Value,
        begin: Value,
        end: Value,
        first: Value,
    ) -> list[Softmax]:
        """The warp's softmax of the positions from `begin` to `end`, for the block's heads from `first` on."""
        seen_from = None if self.scores.window is None else k.u32(self.scores.device_first(k, place.length))
        if seen_from is not None:  # of a tile of 16 nothing may be seen
            begin = k.max(begin, seen_from // self.tile * self.tile)
        scores = self.scores.of_heads(k, self.head_dim, self.heads, first, self.tiles.heads, place.length)

        def locate(start: Value) -> tuple[Load, Load]:
            return self._tile(k, place.slot, kv_head, start)

        return self.tiles.softmax(k, queries, locate, begin, end, scores, seen_from)

    def _hand_over(
        self, k: KernelBuilder, first: Value, heads: Value, part: Value, usable: Value, found: list[Softmax]
    ) -> None:
        """Store what the warps found of a part, for `heads` heads from `first` on."""
        tiles, row = self.tiles, k.ctaid.y
        merged, weighted = tiles.merge(k, found)
        for head, d, value in tiles.added(k, weighted):
            with k.when(usable & (head < heads)):
                k.store(k.arg.weighted[row, first + head, part, d], value)
        for peak, total, head, mine in merged:
            with k.when((head < heads) & mine):
                k.store(k.arg.peaks[row, first + head, part], k.select(usable, peak, float("-inf")))
                k.store(k.arg.totals[row, first + head, part], k.select(usable, total, 0.0))

    def _pages_exist(self, k: KernelBuilder, slot: Value, begin: Value, stop: Value) -> Value:
        """Whether the pages of all these positions do; every warp asks for all of them, so that all come to one answer."""
        last = (stop - 1) // self.page_len
        largest = k.u32(0)
        for first in k.strided(begin // self.page_len, last + 1, step=WARP_SIZE):
            largest @= k.max(largest, k.load(k.arg.tables[slot, k.min(first + k.lane, last)]))
        exist: Value = k.vote(largest < self.pages, FULL_WARP, mode="all")
        return exist

    def _tile(self, k: KernelBuilder, slot: Value, kv_head: Value, start: Value) -> tuple[Load, Load]:
        """The keys and the values of the tile that starts at a position whose page exists."""
        page = self.page(k, slot, start)
        keys, values = (self.cached(k, tensor, page, kv_head, start % self.page_len, 0) for tensor in ("k", "v"))
        return self._load(k, "k", keys), self._load(k, "v", values)

    def _load(self, k: KernelBuilder, tensor: str, rows: list[GlobalArray]) -> Load:
        """Loads the lane's values of rows of a tile of `tensor`, which starts with these."""
        first = (self.tiles.of_values if tensor == "v" else self.tiles).first(k)
        parts = [array.at(first // part.values) for array, part in zip(rows, self.kv.parts, strict=True)]

        def load(row: Value, places: range, width: int) -> list[Value]:
            moved = self.moved(tensor, parts, row)
            return [value for place in places for value in self.kv.load(k, moved, place, width)]

        return load

    def parts_of(self, arguments: Mapping[str, Any], row: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """The number and the pages and places of each part of a row that has positions; none of these if one of its pages, or
        the row's slot, does not exist. Of the first part those that the row sees."""
        position = int(arguments["position"][row])
        length = position + 1 if position < self.max_len else 0
        where, first, tile = self.standing(arguments, row), self.scores.first(length), self.scores.tile(length)
        for number, at in enumerate(self.split.slices(length - tile)):
            part = where[max(at.start + tile, first) : at.stop + tile]
            yield number, part if (part[:, 0] < self.pages).all() else where[:0]

    def errors(self, arguments: Mapping[str, Any], row: int, where: NDArray[np.int64]) -> NDArray[np.float64]:
        """What scores may be off by, [heads, positions], in units of 2^-24."""
        sizes = self.exact(arguments, row, where, magnitude=True)[0]
        return self.tiles.score_units * sizes + self.scores.units(sizes, self.distances(arguments, row, where))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        out = {name: arguments[name].astype(np.float64) for name in HANDED}
        for row in range(self.rows):
            for number, where in self.parts_of(arguments, row):
                out["peaks"][row, :, number], out["totals"][row, :, number] = -np.inf, 0.0
                if len(where):
                    for name, exact in softmax_part(*self.exact(arguments, row, where)).items():
                        out[name][row, :, number] = exact
        return out

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """See `part_bounds`; the values of the cache are exact as f32."""
        bounds = {name: np.zeros(arguments[name].shape) for name in HANDED}
        for row in range(self.rows):
            for number, where in self.parts_of(arguments, row):
                if not len(where):
                    continue
                scores, values = self.exact(arguments, row, where)
                for name, bound in part_bounds(
                    self.tiles, scores, self.errors(arguments, row, where), values, self.scores.hidden
                ).items():
                    bounds[name][row, :, number] = bound
        return bounds

    def work(self, length: int | None = None) -> Work:
        """The least work of one launch whose rows all see `length` positions, of which none is shared; max_len unless told
        otherwise. Raises ArgumentError for a length that is not in 1..max_len."""
        length = self.scores.seen(positions(self, self.max_len, length))
        parts = len(self.split.slices(length))
        cache = self.kv_heads * length * self.row_bytes
        handed = self.heads * (self.head_dim + parts * (self.value_width + 2))
        flops = self.heads * (2 * length * (self.head_dim + self.value_width) + 4 * length)
        tables = -(-length // self.page_len) + 2
        return Work(flops=self.rows * flops, bytes=self.rows * (cache + F32.bytes * handed + U32.bytes * tables))

    @classmethod
    def cases(cls, *, scores: type[Scoring] = Scoring, **fixed: Any) -> Iterator[KernelType]:
        few: dict[str, Any] = {"page_len": 32, "pages": 9, "slots": 3, "max_len": 160}
        yield cls(**fixed, rows=4, heads=6, kv_heads=2, head_dim=128, **few, kv_type="f16", splits=4, least=32, spread=2)
        more: dict[str, Any] = {"page_len": 96, "pages": 7, "slots": 2, "max_len": 288}
        yield cls(**fixed, rows=3, heads=5, kv_heads=1, head_dim=64, **more, kv_type="q8_0", splits=3, least=128, tile=16)
        window: dict[str, Any] = {
            "splits": 2,
            "least": 32,
            "tile": 16,
            "scores": Scoring(window=50, softcap=5.0, scale=0.3, alibi=8.0),
        }
        yield cls(**fixed, rows=3, heads=3, kv_heads=1, head_dim=40, **few, kv_type="f16", **window)
        least: dict[str, Any] = {"page_len": 32, "pages": 1, "slots": 1, "max_len": 32, "splits": 1, "least": 32}
        yield cls(**fixed, rows=1, heads=1, kv_heads=1, head_dim=32, **least, kv_type="f32", spread=1, resident_threads=32)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """The scores of a head of many values are spread as those of models are: so the weights are, too."""
        handed = partials(self.rows, self.heads, self.splits, self.value_width, "out")
        return {
            **{name: np.full(array.shape, np.nan, np.float32) for name, array in handed.items() if isinstance(array, Array)},
            "q": rng.normal(0.0, 2.0, (self.rows, self.heads, self.head_dim)).astype(np.float32),
            **self.filled(rng),
        }
