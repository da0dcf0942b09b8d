"""Puts the parts of a softmax together that several blocks of one launch left, in the block that came last, in the order of
paged_attention_reduce, so with its bits; and hands out what a block then has of its heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, SharedView
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.attention.group_tiles import GroupTiles
from ptxgen.kernels.attention.split_attention_reduce import TOGETHER, WARPS
from ptxgen.kernels.attention.tiles import load_inside, padded
from ptxgen.target import FULL_WARP, WARP_SIZE
from ptxgen.types import F32

IN_FLIGHT = 2  # times TOGETHER rows
VECTOR = 4


@dataclass(frozen=True)
class Staged:
    """The softmax of each of a block's heads in shared memory, not divided yet. weighted: f32[heads * head_dim]; totals:
    f32[heads], 0 where nothing is to be attended to. A division has a branch, and where shuffles may follow one the assembler
    writes these a second time, for warps that are apart: so it comes last."""

    weighted: SharedView
    totals: SharedView

    @classmethod
    def of(cls, k: KernelBuilder, heads: int, head_dim: int) -> Staged:
        """New ones."""
        return cls(k.shared(F32, heads * head_dim), k.shared(F32, heads))

    def clear(self, k: KernelBuilder) -> None:
        """Nothing is to be attended to. All threads must come here and meet before they read it."""
        for array in (self.weighted, self.totals):
            for number in k.strided(k.tid.x, array.shape[0], step=k.threads):
                k.store(array[number], 0.0)

    def runs(self, k: KernelBuilder, heads: Value) -> Iterator[tuple[Value, tuple[Value, ...], Value]]:
        """The results of the first `heads` heads, dealt out to the threads of the block, four at a time: the place of the first
        of them, the results, and whether they are the thread's own; 8 lanes side by side have 32 of them. All threads must come
        here."""
        head_dim = self.weighted.shape[0] // self.totals.shape[0]
        for start in k.strided(0, self.weighted.shape[0] // VECTOR, step=k.threads):
            number = start + k.tid.x
            vector = k.min(number, heads * (head_dim // VECTOR) - 1)
            total = k.load(self.totals[vector // (head_dim // VECTOR)])
            values = k.load_vector(self.weighted[vector * VECTOR], VECTOR)
            results = tuple(k.select(total != 0.0, value / total, 0.0) for value in values)
            yield vector * VECTOR, results, number == vector


@dataclass(frozen=True)
class PartArrays:
    """What the parts of several heads left, from the first of these heads and its first part on: peaks, totals: f32[heads,
    splits], weighted: f32[heads, splits, head_dim]."""

    peaks: GlobalArray
    totals: GlobalArray
    weighted: GlobalArray
    splits: int


@dataclass(frozen=True)
class Merge:
    """The layout: up to `heads` heads of `head_dim` values, `warps` warps. A head has a warp, or several if there are enough,
    which share its values."""

    head_dim: int
    heads: int
    warps: int

    @property
    def sharing(self) -> int:
        """Warps that share a head, a power of two."""
        share = 1
        while 2 * share * self.heads <= self.warps and padded(self.head_dim) % (2 * share * WARP_SIZE) == 0:
            share *= 2
        return share

    @property
    def values(self) -> int:
        """Values of a row that a lane has."""
        return padded(self.head_dim) // (WARP_SIZE * self.sharing)

    @property
    def width(self) -> int:
        """Values of one load of a lane."""
        return gcd(self.values, VECTOR)

    @property
    def places(self) -> range:
        """Where the loads of a lane are in a row, from its first value on."""
        return range(0, padded(self.head_dim), WARP_SIZE * self.sharing * self.width)

    def inside(self, k: KernelBuilder, place: int) -> Value | None:
        """Whether the lane's load at a place is inside the row; None where each lane's is."""
        return None if place + self.places.step <= self.head_dim else self.first(k) < self.head_dim - place

    def first(self, k: KernelBuilder) -> Value:
        """The lane's first place in a row."""
        return k.tid.x % (WARP_SIZE * self.sharing) * self.width

    def put_together(self, k: KernelBuilder, parts: PartArrays, count: Value, heads: Value, staged: Staged) -> None:
        """Stage the softmax of each of `heads` heads, of `count` parts each, 1 to splits of them; nothing is to be attended to
        where a part has a total of 0. All threads must come here and meet before they read it."""
        tiles = -(-parts.splits // WARP_SIZE)
        factors = k.shared(F32, self.warps, tiles * WARP_SIZE)  # where all lanes read one, without shuffles
        own = k.shuffle(k.warp // self.sharing, 0)  # so the assembler knows that warps stay together
        for head in k.strided(own, heads, step=self.warps // self.sharing):
            k.bar_warp_sync(FULL_WARP)
            total = self._factors(k, parts, tiles, count, head, factors)
            k.bar_warp_sync(FULL_WARP)
            present = k.select(total != 0.0, count, 0)  # a part without a page has left no sums
            values = self._weighted_sums(k, parts, present, head, factors)
            first = head * self.head_dim + self.first(k)
            for i, place in enumerate(self.places):
                run, inside = values[i * self.width : (i + 1) * self.width], self.inside(k, place)
                with nullcontext() if inside is None else k.when(inside):
                    k.store(staged.weighted[first + place], run if len(run) > 1 else run[0])
            with k.when(k.tid.x % (WARP_SIZE * self.sharing) == 0):
                k.store(staged.totals[head], total)

    def _factors(
        self, k: KernelBuilder, parts: PartArrays, tiles: int, count: Value, head: Value, factors: SharedView
    ) -> Value:
        """The warp's row of `factors` gets what each part of the head is multiplied by, zeros after the last; returns the total
        of all, 0 if a part has none. A tile of 32 parts stands for a warp of paged_attention_reduce, which has one at most."""
        peaks, totals = (array.at(head * parts.splits) for array in (parts.peaks, parts.totals))
        numbers = [k.lane + tile * WARP_SIZE for tile in range(tiles)]
        places = [k.min(number, count - 1) for number in numbers]
        shares = [k.load(totals[place]) for place in places]
        tops = [k.load(peaks[place]) for place in places]
        largest = k.f32(float("-inf"))
        for top in tops:
            largest = k.max(largest, top)
        largest = k.warp_max(largest)

        sums, missing = [], k.u32(0)
        for number, share, top in zip(numbers, shares, tops, strict=True):
            live = (number < count) & (share != 0.0)
            factor = k.select(live, mathlib.exp(k, top - largest), 0.0)
            k.store(factors[k.warp, number], factor)
            sums.append(k.warp_sum(factor * k.select(live, share, 0.0)))
            missing @= k.select(share == 0.0, 1, missing)
        return k.select(k.warp_max(missing) == 0, _halved(sums), 0.0)

    def _weighted_sums(
        self, k: KernelBuilder, parts: PartArrays, count: Value, head: Value, factors: SharedView
    ) -> list[Value]:
        """The lane's values of the weighted sum. Each tile of parts is summed by itself; a row past the last, up to a multiple
        of TOGETHER, is the last one again, times zero."""
        rows = parts.weighted.at(head * (parts.splits * self.head_dim) + self.first(k))
        whole = [k.variable(-0.0, F32) for _ in range(self.values)]  # to which the first tile is added as it is
        sums = [k.variable(0.0, F32) for _ in range(self.values)]
        for start in k.strided(0, count, step=IN_FLIGHT * TOGETHER):
            with k.when((start % WARP_SIZE == 0) & (start != 0)):
                for all_before, each in zip(whole, sums, strict=True):
                    all_before @= all_before + each
                    each @= k.f32(0.0)
            read = [self._row(k, rows, k.min(start + j, count - 1)) for j in range(IN_FLIGHT * TOGETHER)]
            for at in range(0, len(read), TOGETHER):
                with k.when(start + at < count):
                    for j in range(at, at + TOGETHER):
                        share = k.load(factors[k.warp, start + j])
                        for value, each in zip(read[j], sums, strict=True):
                            each @= k.fma(share, value, each)
        rest = self._tiles_without_parts(k, parts, count)
        return [all_before + each + rest for all_before, each in zip(whole, sums, strict=True)]

    def _tiles_without_parts(self, k: KernelBuilder, parts: PartArrays, count: Value) -> Value | float:
        """What paged_attention_reduce adds for its warps that have none: 0, which makes +0 of -0; if all have some, nothing."""
        all_but_one = (WARPS - 1) * WARP_SIZE
        return 0.0 if parts.splits <= all_but_one else k.select(count > all_but_one, k.f32(-0.0), 0.0)

    def _row(self, k: KernelBuilder, rows: GlobalArray, number: Value) -> list[Value]:
        row = rows.at(number * self.head_dim)
        return [v for place in self.places for v in load_inside(k, row, place, self.width, self.inside(k, place))]


def alone(k: KernelBuilder, weighted: Value) -> Value:
    """What paged_attention_reduce makes of the sum of a single part: it adds the same seven times more, times zero, and zeros
    for other tiles."""
    whole: Value = k.fma(weighted, 0.0, weighted)
    return whole + 0.0


def _halved(values: Sequence[Value]) -> Value:
    """The sum in the order of block_sum over WARPS warps, of which the missing ones have zeros."""
    known: list[Value | None] = [*values, *[None] * (WARPS - len(values))]
    while len(known) > 1:
        half = len(known) // 2
        known = [a if a is None or b is None else a + b for a, b in zip(known[:half], known[half:], strict=True)]
    (whole,) = known
    assert whole is not None
    return whole


def merged_bound(
    tiles: GroupTiles, size: int, scores: NDArray[Any], errors: NDArray[Any], values: NDArray[Any], hidden: int = 0
) -> NDArray[np.float64]:
    """How far the softmax of all positions may be off, f64[heads, head_dim], in parts of up to `size` positions: what parts are
    off by (see `part_bounds`, also for `hidden`), what putting them together adds (see `parts_bound`), a division at the end.
    scores, errors: f64[heads, positions], errors in units of 2^-24; values: f64[heads, positions, head_dim]. The weight of a
    position has the exponential of its part besides; what largest scores are off by cancels."""
    rounds = -(-min(size, scores.shape[1] + hidden) // (tiles.warps * tiles.tile))
    distance = scores.max(axis=1, keepdims=True) - scores
    weights, units = np.exp(-distance), errors + 3 * (rounds + 3) + distance
    whole = weights.sum(axis=1, keepdims=True)
    above = np.einsum("hl,hld->hd", weights * (units + tiles.sum_units(rounds) + WARP_SIZE + WARPS), np.abs(values)) / whole
    below = np.sum(weights * (units + rounds + 5 + tiles.warps + 1 + 8), axis=1, keepdims=True) / whole + 1
    out = np.abs(np.einsum("hl,hld->hd", weights, values)) / whole
    bound: NDArray[np.float64] = 1.1 * UNIT * (above + below * out) + 2.0**-140
    return bound
