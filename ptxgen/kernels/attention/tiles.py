"""The online softmax that attention kernels are made of: how the warps of a block go over rows of keys and values.

A warp takes every `warps`-th tile of 32 positions. The lanes lie along head_dim for the reads of K and V, which are then
contiguous; in between a lane stands for a position: `transposed_sum` turns the partial sums that the lanes hold into a score a
lane, with about one shuffle for each position, and no exponential is computed twice. The warps' results are merged at the end,
in the order of the warps, so that the bits depend on nothing but the inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple, Self

from ptxgen.dsl import mathlib
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.scores import HeadScores
from ptxgen.kernels.shape import ValueWidth
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32


class Softmax(NamedTuple):
    """A softmax in the making: the largest score, the sum of the exponentials of the scores less the largest, and the lane's
    values of the sum of V weighted by these exponentials."""

    largest: Value
    total: Value
    weighted: list[Value]


@dataclass(frozen=True)
class Tiles(ValueWidth):
    """The layout: rows of `head_dim` values (see require_head_dim) and `warps` (a power of two) that share them. Where head_dim
    is no multiple of 32, lanes have zeros for the values past the end of a row. value_dim: of rows of V, if it is another.
    ring: rows of the cache, see ring.py; None: a row for each position."""

    head_dim: int
    warps: int
    ring: int | None = None
    value_dim: int | None = None

    @property
    def of_values(self) -> Self:
        """The layout of rows of V, with as many rows in a round; the same where these are as wide as those of K."""
        same = self.value_width == self.head_dim
        return self if same else replace(self, head_dim=self.value_width, value_dim=self.head_dim)

    @property
    def padded(self) -> int:
        """Values of a row that the lanes have room for."""
        return padded(self.head_dim)

    @property
    def values(self) -> int:
        """Values of a row that a lane has."""
        return self.padded // WARP_SIZE

    @property
    def width(self) -> int:
        """Values of one load of a lane."""
        return gcd(self.values, 4)

    @property
    def rows(self) -> int:
        """Rows of a tile that are read together: a power of two, so that a lane has at most 64 values in flight."""
        widest = padded(self.widest)
        return 16 if widest <= 128 else 8 if widest <= 256 else 4

    @property
    def rounds(self) -> int:
        """How often a tile takes that many rows. Lane l stands for the row l // rounds of the round l % rounds."""
        return WARP_SIZE // self.rows

    def first(self, k: KernelBuilder) -> Value:
        """The lane's place in the first load of a row."""
        return k.lane * self.width

    def firsts(self, k: KernelBuilder) -> tuple[Value, Value]:
        """That place in a row of K, and in one of V."""
        first, rows = self.first(k), self.of_values
        return first, first if rows is self else rows.first(k)

    @property
    def places(self) -> range:
        """Where the loads of a lane are in a row, from its first place on."""
        return range(0, self.padded, WARP_SIZE * self.width)

    def inside(self, k: KernelBuilder, place: int) -> Value | None:
        """Whether the lane's load at a place is inside the row; None where each lane's is."""
        return None if place + WARP_SIZE * self.width <= self.head_dim else self.first(k) < self.head_dim - place

    def row(self, k: KernelBuilder, array: GlobalArray | SharedPart) -> list[Value]:
        """The lane's values of a row; `array` starts at its first."""
        return [value for place in self.places for value in load_inside(k, array, place, self.width, self.inside(k, place))]

    def softmax(
        self,
        k: KernelBuilder,
        query: list[Value],
        keys: GlobalArray,
        values: GlobalArray,
        begin: Value | int,
        stop: Value,
        scores: HeadScores,
    ) -> Softmax:
        """The warp's part of the positions from `begin` to `stop`, in which `total` is one lane's share. `keys` and `values`
        start at the lane's place in row 0 of either."""
        value_rows = self.of_values
        last = (stop - 1) * self.head_dim if self.ring is None else stop - 1
        last_value = last if value_rows is self or self.ring is not None else (stop - 1) * value_rows.head_dim
        place, round_of_lane = self.place(k)
        part = self.nothing(k)
        first = k.warp * WARP_SIZE
        own = k.shuffle(
            first if isinstance(begin, int) else begin + first, 0
        )  # so the assembler knows that warps stay together
        stop = k.shuffle(stop, 0)
        for start in k.strided(own, stop, step=self.warps * WARP_SIZE):
            score = k.f32(float("-inf"))
            for turn in self._turns(k):
                dots = [dot(k, query, row) for row in self.rows_of(k, keys, start, turn, last)]
                score @= k.select(round_of_lane == turn, scores.of(k, transposed_sum(k, dots)), score)
            inside = start + place < stop
            weight = self.weigh(k, part, k.select(inside, scores.at(k, score, start, place), float("-inf")))
            for turn in self._turns(k):
                self.add_rows(k, part, weight, turn, value_rows.rows_of(k, values, start, turn, last_value))
        return part

    def _turns(self, k: KernelBuilder) -> Iterable[Value | int]:
        """The rounds of a tile. Two are written one after the other, so that the rows of both are under way together."""
        return range(2) if self.rounds == 2 else k.strided(0, self.rounds)

    def nothing(self, k: KernelBuilder) -> Softmax:
        """The softmax of no position."""
        return Softmax(k.f32(float("-inf")), k.f32(0.0), [k.f32(0.0) for _ in range(self.of_values.values)])

    def place(self, k: KernelBuilder) -> tuple[Value, Value]:
        """The position that the lane stands for, from the first of a tile on, and the round that has it."""
        round_of_lane = k.lane % self.rounds
        return round_of_lane * self.rows + k.lane // self.rounds, round_of_lane

    def weigh(self, k: KernelBuilder, part: Softmax, score: Value) -> Value:
        """The weight of the lane's position of a tile, of which `score` is -inf if there is none; what the part holds is made
        relative to the new peak, and its total has the weight."""
        largest, total, weighted = part
        now_largest = k.max(largest, k.warp_max(score))
        shrink = mathlib.exp(k, largest - now_largest)
        weight = mathlib.exp(k, score - now_largest)
        largest @= now_largest
        total @= k.fma(total, shrink, weight)
        for each in weighted:
            each @= each * shrink
        return weight

    def add_rows(self, k: KernelBuilder, part: Softmax, weight: Value, turn: Value | int, rows: list[list[Value]]) -> None:
        """Add the rows of a round of the tile, each times the weight of its position."""
        shares = k.shuffle(weight, k.lane - k.lane % self.rounds + turn)
        for i, row in enumerate(rows):
            share = k.shuffle(shares, i * self.rounds)
            for v, each in zip(row, part.weighted, strict=True):
                each @= k.fma(share, v, each)

    def rows_of(self, k: KernelBuilder, cache: GlobalArray, start: Value, turn: Value | int, last: Value) -> list[list[Value]]:
        """The lane's values of the rows of a round of the tile from position `start` on; `last`: where the last row is in
        `cache`, or of a ring the last position. A position past the end reads that one again: it must be memory that somebody
        wrote, and its weight will be zero."""
        if self.ring is not None:
            origin, first, most = start % self.ring, turn * self.rows, last - start
            places = [self.wrapped(k, origin + k.min(first + i, most)) for i in range(self.rows)]
            return [self.row(k, cache.at(place * self.head_dim)) for place in places]
        begin = (start + turn * self.rows) * self.head_dim
        return [self.row(k, cache.at(k.min(begin + i * self.head_dim, last))) for i in range(self.rows)]

    def wrapped(self, k: KernelBuilder, row: Value) -> Value:
        """The row of a ring for a number below twice its rows: of one below that, the difference wraps around and is huge."""
        return row if self.ring is None else k.min(row, row - self.ring)

    def merge(self, k: KernelBuilder, part: Softmax) -> Softmax:
        """The softmax of the block, from those of its warps, in which `weighted` is one warp's share (see `added`)."""
        peaks, totals = k.shared(F32, self.warps), k.shared(F32, self.warps)
        total = k.warp_sum(part.total)
        with k.when(k.lane == 0):
            k.store(peaks[k.warp], part.largest)
            k.store(totals[k.warp], total)
        k.barrier()
        other = k.lane % self.warps
        peak = k.load(peaks[other])
        highest = k.warp_max(peak, width=self.warps)
        shrink = mathlib.exp(k, peak - highest)
        whole = k.warp_sum(k.load(totals[other]) * shrink, width=self.warps)
        own = k.shuffle(shrink, k.warp)
        return Softmax(highest, whole, [each * own for each in part.weighted])

    def added(self, k: KernelBuilder, weighted: list[Value], allowed: Value | None = None) -> Iterator[tuple[Value, Value]]:
        """The sum over the warps of a row of V of which each lane holds its values: for each d < value_dim, d and the sum, in
        the thread that has it to write, where `allowed` holds. All threads must come here."""
        row = self.of_values
        sums = k.shared(F32, self.warps, row.padded)
        for i, each in enumerate(weighted):
            load, place = divmod(i, row.width)
            k.store(sums[k.warp, k.lane * row.width + (load * WARP_SIZE * row.width + place)], each)
        k.barrier()
        for start in range(0, row.head_dim, self.warps * WARP_SIZE):
            d = k.tid.x + start if start else k.tid.x
            inside = d < row.head_dim
            with k.when(inside if allowed is None else inside & allowed):
                whole = k.load(sums[0, d])
                for warp in range(1, self.warps):
                    whole = whole + k.load(sums[warp, d])
                yield d, whole


def padded(head_dim: int) -> int:
    """The values that 32 lanes have room for with loads of 2 or 4 values, where head_dim is no multiple of 32."""
    if head_dim % WARP_SIZE == 0:
        return head_dim
    return 2 * WARP_SIZE if head_dim <= 2 * WARP_SIZE else -(-head_dim // (4 * WARP_SIZE)) * 4 * WARP_SIZE


def load_inside(
    k: KernelBuilder, array: GlobalArray | SharedPart, place: int, width: int, inside: Value | None
) -> Sequence[Value]:
    """The `width` values of a load, zeros where it is not inside the row."""
    if inside is None:
        return k.load_vector(array[place], width) if width > 1 else [k.load(array[place])]
    values = [k.variable(0.0, F32) for _ in range(width)]
    k.load_where(inside, array[place], values)
    return values


def transposed_sum(k: KernelBuilder, values: list[Value], width: int = WARP_SIZE) -> Value:
    """The sum of values[i] over each group of `width` lanes, in the lanes of the group from i * width / len(values) on to the
    next i; the number of values is a power of two up to the width. For 16 of them over a warp it takes 16 shuffles where as
    many sums would take 80.

    At each step a lane keeps the half of the values whose number has the lane's bit and sends the other half to its partner.
    Each sum is the tree that `warp_sum` makes, with the same bits."""
    offset = width // 2
    while offset:
        half = len(values) // 2
        if half:
            upper = (k.lane & offset) != 0
            values = [
                k.select(upper, b, a) + k.shuffle_xor(k.select(upper, a, b), offset)
                for a, b in zip(values[:half], values[half:], strict=True)
            ]
        else:
            values = [values[0] + k.shuffle_xor(values[0], offset)]
        offset //= 2
    return values[0]


def dot(k: KernelBuilder, query: list[Value], row: list[Value]) -> Value:
    """The lane's part of the product of the query with a row."""
    dot = query[0] * row[0]
    for q, v in zip(query[1:], row[1:], strict=True):
        dot = k.fma(q, v, dot)
    return dot
