"""The online softmax of several query heads that share each read of keys and values: what tiles.py is for one head.

A warp takes every `warps`-th tile of 32 or 16 positions. A row of the cache is read by as few lanes as the widest load
allows, so a warp reads `streams` rows with one load, and a score is a sum over fewer lanes. Each value that is read serves all
heads. As in tiles.py a lane stands for a position in between, two for one of 16, and warps are merged in their order: the bits
depend on the inputs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import gcd, log2
from typing import NamedTuple

from ptxgen.dsl import mathlib
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, SharedPart, SharedView
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.paged_cache import TILE
from ptxgen.kernels.attention.scores import HeadScores
from ptxgen.kernels.attention.tiles import Softmax, dot, transposed_sum
from ptxgen.kernels.shape import ValueWidth
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32

MOST_HEADS = 8
MOST_VALUES = 64  # that a lane has of all heads
FEWER_VALUES = 32  # the same of heads of 512, and of sizes that take more and smaller loads
MOST_SUMS = 10240  # values of a block in shared memory
TILES_ALLOWED = (16, TILE)
_SIDE_BY_SIDE = (8, 4, 2, 1)  # values of a row, of as few lanes as have not too many
_WIDEST_ROW = 16  # values of a row that a lane may have

Load = Callable[[Value, range, int], list[Value]]
"""The lane's values of a row of a tile: (the row's number in the tile, places after the lane's first, values at each)."""

Locate = Callable[[Value], tuple[Load, Load]]
"""The keys and the values of the tile that starts at a position."""


class Merged(NamedTuple):
    """The softmax of a head, without its weighted sum, as a thread of the block has it."""

    peak: Value
    total: Value
    head: Value
    """Its number in the block, of which there may be none."""
    mine: Value
    """Whether the thread is the one to write it."""


@dataclass(frozen=True)
class GroupTiles(ValueWidth):
    """The layout: rows of `head_dim` values (a multiple of 32 up to 256), `heads` that share them, `warps`, a power of two up
    to 32, and the positions of a `tile`, one of TILES_ALLOWED. value_dim: of rows of V, if it is another."""

    head_dim: int
    heads: int
    warps: int
    tile: int = TILE
    value_dim: int | None = None

    @property
    def of_values(self) -> GroupTiles:
        """The layout of rows of V; the same where these are as wide as those of K."""
        return self if self.value_width == self.head_dim else replace(self, head_dim=self.value_width, value_dim=None)

    @staticmethod
    def most_heads(widest: int, warps: int) -> int:
        """The most heads that fit: a lane has registers for so many values, and at the end stands for a head and a warp, where
        there are more than eight warps several times; the sums of all warps fit shared memory."""
        most = MOST_VALUES if widest <= 256 and widest % WARP_SIZE == 0 else FEWER_VALUES
        values, sums = most // GroupTiles(widest, 1, warps).values, MOST_SUMS // (warps * widest)
        return max(1, min(MOST_HEADS, WARP_SIZE // min(warps, 8), values, sums))

    @property
    def lanes(self) -> int:
        """Lanes that read a row, a power of two."""
        few = (n for w in _SIDE_BY_SIDE if self.head_dim // (n := _lanes(self.head_dim // w)) <= _WIDEST_ROW)
        return next(few, _lanes(self.head_dim))

    @property
    def width(self) -> int:
        """Values that a lane has side by side in a row: with more than four a load of f32 would take every other 16 bytes of
        a row, so each sector twice."""
        return gcd(self.values, 4)

    @property
    def values(self) -> int:
        """Values of a row that a lane has."""
        return self.head_dim // self.lanes

    @property
    def streams(self) -> int:
        """Rows that a warp reads with one load."""
        return WARP_SIZE // self.lanes

    @property
    def flight(self) -> int:
        """Rows that a lane has in flight, a power of two: up to 64 values, or 32 so that there are registers for twice as many
        warps where each takes half as many positions."""
        return min(self.tile // self.streams, 1 << (2 * self.tile // self.values).bit_length() - 1)

    @property
    def rounds(self) -> int:
        """How often a tile takes that many rows of each stream."""
        return self.tile // self.streams // self.flight

    @property
    def score_units(self) -> int:
        """Roundings of a score, each of at most the score of the absolute numbers: a fused addition a value, the tree over the
        lanes, and two of the scale."""
        return self.values + int(log2(self.lanes)) + 2

    def sum_units(self, tiles: int) -> int:
        """Roundings of a weighted sum over so many tiles a warp: a position of a stream each, the tree over the streams, one of
        the merge and one a warp."""
        streams = self.of_values.streams
        return tiles * self.tile // streams + int(log2(streams)) + 1 + self.warps

    def first(self, k: KernelBuilder) -> Value:
        """The lane's first place in a row."""
        return k.lane % self.lanes * self.width

    def places(self) -> range:
        """Where the loads of a lane are in a row, from its first place on."""
        return range(0, self.head_dim, self.lanes * self.width)

    def room(self, k: KernelBuilder) -> SharedView:
        """New shared memory for the queries: f32[heads * head_dim]."""
        return k.shared(F32, self.heads * self.head_dim)

    def queries(self, k: KernelBuilder, q: GlobalArray, heads: Value, held: SharedView) -> SharedPart:
        """The queries in shared memory (`room`), where they take no registers, from the lane's first place on. `q` starts at
        the first of `heads` heads that stand one after another; of the block's other heads nothing is of use. All threads must
        come here."""
        size = self.heads * self.head_dim
        threads = self.warps * WARP_SIZE
        for start in range(0, size, threads):
            place = k.tid.x + start
            with k.when(place < size):
                k.store(held[place], k.load(q[k.min(place, heads * self.head_dim - 1)]))
        k.barrier()
        return SharedPart(k, held.start().base + self.first(k) * F32.bytes, F32)

    def _query(self, k: KernelBuilder, query: SharedPart) -> list[Value]:
        """The lane's values of a query."""
        if self.width == 1:
            return [k.load(query[at]) for at in self.places()]
        return [value for at in self.places() for value in k.load_vector(query[at], self.width)]

    def softmax(
        self,
        k: KernelBuilder,
        queries: SharedPart,
        locate: Locate,
        begin: Value,
        stop: Value,
        scores: HeadScores,
        first: Value | None = None,
    ) -> list[Softmax]:
        """The warp's part of the positions from `begin`, where a tile starts, to `stop`, for each head; in each, `total` is one
        lane's share and `weighted` one stream's. `locate` is asked for tiles that start before `stop`, for no row past it, nor
        for one before position `first` of the first tile, if there is such."""
        lane, span = k.lane % self.lanes, self.lanes // self.flight  # lanes that a row's score comes to in a round
        stream = k.lane // self.lanes
        turn_of_lane = lane % self.rounds
        place = (turn_of_lane * self.flight + lane // span) * self.streams + stream
        counts = None if span == self.rounds else lane % span < self.rounds  # one of two lanes for a position
        rows = self.of_values
        row_stream = stream if rows is self else k.lane // rows.lanes
        parts = [Softmax(k.f32(float("-inf")), k.f32(0.0), [k.f32(0.0) for _ in range(rows.values)]) for _ in range(self.heads)]
        own, stop = (
            k.shuffle(begin + k.warp * self.tile, 0),
            k.shuffle(stop, 0),
        )  # so the assembler knows that warps stay together
        for start in k.strided(own, stop, step=self.warps * self.tile):
            keys, values = locate(start)
            last = k.min(stop - start, self.tile) - 1
            least = None if first is None else k.max(first, start) - start
            found = [k.f32(float("-inf")) for _ in parts]
            for turn in self._turns(k, last):
                read = self._rows(k, keys, turn, stream, last, least)
                for head, score in enumerate(found):
                    query = self._query(k, queries.at(head * self.head_dim))
                    sums = scores.of(k, transposed_sum(k, [dot(k, query, row) for row in read], self.lanes))
                    score @= k.select(turn_of_lane == turn, sums, score)
            inside = place <= last if least is None else (place <= last) & (place >= least)
            at = [scores.at(k, score, start, place, head) for head, score in enumerate(found)]
            weights = [self._weight(k, part, score, inside, counts) for part, score in zip(parts, at, strict=True)]
            for turn in rows._turns(k, last):
                holder = self._holder(k, lane, turn)
                for i, row in enumerate(rows._rows(k, values, turn, row_stream, last, least)):
                    for weight, part in zip(weights, parts, strict=True):
                        share = k.shuffle(weight, holder(i))
                        for value, each in zip(row, part.weighted, strict=True):
                            each @= k.fma(share, value, each)
        return parts

    def _holder(self, k: KernelBuilder, lane: Value, turn: Value) -> Callable[[int], Value]:
        """Which lane has the weight of the lane's row number i in a round of values."""
        rows, span = self.of_values, self.lanes // self.flight
        if rows is self:
            holder = k.lane - lane + turn
            return lambda i: holder + i * span
        first = turn * (rows.flight * rows.streams) + k.lane // rows.lanes

        @cache
        def of(i: int) -> Value:
            place = first + i * rows.streams
            number = place // self.streams
            return place % self.streams * self.lanes + number % self.flight * span + number // self.flight

        return of

    def _turns(self, k: KernelBuilder, last: Value) -> Iterator[Value]:
        """The rounds that have a position. Their number is no constant, which keeps the assembler from unrolling the loop and
        from taking registers for all rounds."""
        return k.strided(0, last // (self.flight * self.streams) + 1) if self.rounds > 1 else iter([k.u32(0)])

    def _rows(
        self, k: KernelBuilder, load: Load, turn: Value, stream: Value, last: Value, least: Value | None
    ) -> list[list[Value]]:
        """The lane's values of the rows of a round. A position past the last reads the last one again, one before the least
        that: it must be memory that somebody wrote, and its weight will be zero."""
        first = turn * (self.flight * self.streams) + stream
        numbers = [k.min(first + i * self.streams, last) for i in range(self.flight)]
        if least is not None:
            numbers = [k.max(number, least) for number in numbers]
        return [load(number, self.places(), self.width) for number in numbers]

    def _weight(self, k: KernelBuilder, part: Softmax, score: Value, inside: Value, counts: Value | None) -> Value:
        """The weight of the lane's position, zero if it is not inside; what the part holds is made relative to the new peak.
        `counts`: whether the lane adds it to the total, where not all do."""
        score = k.select(inside, score, float("-inf"))
        largest, total, weighted = part
        now_largest = k.max(largest, k.warp_max(score))
        shrink, weight = mathlib.exp(k, largest - now_largest), mathlib.exp(k, score - now_largest)
        largest @= now_largest
        total @= k.fma(total, shrink, weight if counts is None else k.select(counts, weight, 0.0))
        for each in weighted:
            each @= each * shrink
        return weight

    def merge(self, k: KernelBuilder, parts: list[Softmax]) -> tuple[list[Merged], list[list[Value]]]:
        """The peaks and totals of the block, and the warp's weighted sums of each head, relative to that peak, in all streams
        (see `added`). All threads must come here."""
        count = self.heads * self.warps
        peaks, totals = k.shared(F32, count), k.shared(F32, count)
        sums = [k.warp_sum(part.total) for part in parts]
        with k.when(k.lane == 0):
            for head, (part, total) in enumerate(zip(parts, sums, strict=True)):
                own = k.warp + head * self.warps
                k.store(peaks[own], part.largest)
                k.store(totals[own], total)
        k.barrier()
        merged, weighted, together = [], [], WARP_SIZE // self.warps
        for turn, first in enumerate(range(0, self.heads, together)):
            other = k.min(k.lane + first * self.warps, count - 1)
            peak = k.load(peaks[other])
            highest = k.warp_max(peak, width=self.warps)
            shrink = mathlib.exp(k, peak - highest)
            whole = k.warp_sum(k.load(totals[other]) * shrink, width=self.warps)
            mine = (k.warp == turn) & (k.lane % self.warps == 0)
            merged.append(Merged(highest, whole, k.lane // self.warps + first, mine))
            for head, part in enumerate(parts[first : first + together]):
                own = k.shuffle(shrink, k.warp + head * self.warps)
                weighted.append([self.of_values._of_streams(k, each) * own for each in part.weighted])
        return merged, weighted

    def _of_streams(self, k: KernelBuilder, value: Value) -> Value:
        """The sum over the streams, in all of them."""
        offset = WARP_SIZE // 2
        while offset >= self.lanes:
            value = value + k.shuffle_xor(value, offset)
            offset //= 2
        return value

    def added(self, k: KernelBuilder, weighted: list[list[Value]]) -> Iterator[tuple[Value, Value, Value]]:
        """The sums over the warps: head, d and the sum, in the thread that has it to write; a head of `heads` or more has
        none. All threads must come here, and what is done with a sum must not need them all."""
        row = self.of_values
        sums = k.shared(F32, self.warps, self.heads * row.head_dim)
        first = row.first(k)
        with k.when(k.lane < row.lanes):
            for head, values in enumerate(weighted):
                for i in range(0, row.values, row.width):
                    part = values[i : i + row.width]
                    k.store(sums[k.warp, first + (head * row.head_dim + i * row.lanes)], part if row.width > 1 else part[0])
        k.barrier()
        threads = self.warps * WARP_SIZE
        for start in range(0, self.heads * row.head_dim, threads):
            place = k.tid.x + start if start else k.tid.x
            with k.when(place < self.heads * row.head_dim):
                whole = k.load(sums[0, place])
                for warp in range(1, self.warps):
                    whole = whole + k.load(sums[warp, place])
                yield place // row.head_dim, place % row.head_dim, whole


def _lanes(loads: int) -> int:
    """The largest power of two up to 32 that divides the number of loads of a row."""
    return min(WARP_SIZE, loads & -loads)
