"""tiles.py for a token whose own row is in no cache yet: the block has its key and its value in shared memory, and reads those
of the positions before it from the cache. The bits are those of tiles.py over a cache that has them all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.scores import HeadScores, plus
from ptxgen.kernels.attention.tiles import Softmax, Tiles, dot, transposed_sum
from ptxgen.target import FULL_WARP, WARP_SIZE
from ptxgen.types import F32

Rows = list[list[Value]]
MOST_ROUNDS = 2  # of values that a lane has registers for, beside a round of keys


@dataclass(frozen=True)
class Before:
    """The rows of keys and values before the newest. keys, values: from the lane's place in row 0 on; position: of the newest,
    the same for the warp; own: where the warp's first tile starts; held_keys, held_values: registers for a round of keys, and
    for the first rounds of values."""

    keys: GlobalArray
    values: GlobalArray
    position: Value
    own: Value
    held_keys: Rows
    held_values: tuple[Rows, ...]


@dataclass(frozen=True)
class NewestTiles(Tiles):
    """The layout, as there. early: whether a warp begins to load before the block has made the newest row, for GPUs that start
    a launch before its predecessor has ended. On others the assembler would spill (benchmarks/LOG.md); there keys have
    the registers that values have afterwards."""

    early: bool = True

    def registers(self, k: KernelBuilder) -> tuple[Rows, ...]:
        """Zeros for the rows of a round of keys, and of MOST_ROUNDS of values at most; there is time for it while the position
        is on its way."""

        def rows() -> Rows:
            return [[k.variable(0.0, F32) for _ in range(self.values)] for _ in range(self.rows)]

        if not self.early:
            return (rows(),)
        return tuple(rows() for _ in range(1 + (MOST_ROUNDS if self.rounds <= MOST_ROUNDS else 1)))

    def begin(
        self,
        k: KernelBuilder,
        registers: tuple[Rows, ...],
        keys: GlobalArray,
        values: GlobalArray,
        position: Value,
        first: Value | int,
    ) -> Before:
        """Begin to load what the warp needs first, which is on its way while the block makes the newest row, and ask L2 for the
        rest of its first tile. keys, values, position: as in Before; first: the first position that is seen. The warp waits for
        its lanes in between because the assembler moves no load past that: it would ask for values before keys, and for what
        the block was asked for before when that is looked at."""
        position = k.shuffle(position, 0)  # so the assembler knows that warps stay together
        own = k.shuffle(plus(k.warp * WARP_SIZE, first), 0)
        before = Before(keys, values, position, own, registers[0], registers[1:])
        if not self.early:
            return before
        k.bar_warp_sync(FULL_WARP)
        self._load(k, before.held_keys, before.keys, own, before.position)
        k.bar_warp_sync(FULL_WARP)
        self._load_values(k, before, own)
        k.bar_warp_sync(FULL_WARP)
        self._ask(k, before, before.keys, self.rows)
        self._ask(k, before, before.values, self.rows * len(before.held_values))
        return before

    def _ask(self, k: KernelBuilder, before: Before, cache: GlobalArray, start: int) -> None:
        """Ask the L2 cache for those rows of the warp's first tile, from row `start` of it on, that are before the newest."""
        first = self._from(k, cache, before.own)
        for i in range(start, min(WARP_SIZE, prod(cache.shape) // self.head_dim)):
            with k.when(before.own + i < before.position):
                for place in self.places:
                    inside = self.inside(k, place)
                    with nullcontext() if inside is None else k.when(inside):
                        k.prefetch(first(i)[place].address, space="global", level="L2")

    def _load_values(self, k: KernelBuilder, before: Before, start: Value) -> None:
        """Of the tile from `start` on, the rounds that there are registers for."""
        for turn, rows in enumerate(before.held_values):
            self._load(k, rows, before.values, start + turn * self.rows, before.position)

    def _load(self, k: KernelBuilder, into: Rows, cache: GlobalArray, start: Value, position: Value) -> None:
        """The rows from `start` on that are before `position`; no others are read, nor written for, where the whole cache has
        fewer."""
        first, count = self._from(k, cache, start), k.max(position, start) - start
        for i, row in enumerate(into[: prod(cache.shape) // self.head_dim]):
            self._load_where(k, count > i, row, first(i))

    def _from(self, k: KernelBuilder, cache: GlobalArray, start: Value) -> Callable[[int], GlobalArray]:
        """Where the row of the position so many after `start` is."""
        if self.ring is None:
            first = cache.at(start * self.head_dim)
            return lambda i: first.at(i * self.head_dim)
        origin = start % self.ring
        return lambda i: cache.at(self.wrapped(k, origin + i) * self.head_dim)

    def _load_where(self, k: KernelBuilder, guard: Value, row: list[Value], array: GlobalArray | SharedPart) -> None:
        for load, place in enumerate(self.places):
            values, inside = row[load * self.width : (load + 1) * self.width], self.inside(k, place)
            k.load_where(guard if inside is None else guard & inside, array[place], values)

    def softmax_with(
        self, k: KernelBuilder, query: list[Value], before: Before, key: SharedPart, value: SharedPart, scores: HeadScores
    ) -> Softmax:
        """The warp's part of all positions up to the newest, in which `total` is one lane's share. key, value: of the newest,
        from the lane's place on."""
        place, round_of_lane = self.place(k)
        part = self.nothing(k)
        newest = scores.of(k, k.warp_sum(dot(k, query, self.row(k, key))))
        for start in k.strided(before.own, before.position + 1, step=self.warps * WARP_SIZE):
            here = before.position - start  # where in the tile the newest is
            if self.early:
                with k.when(start != before.own):
                    self._load(k, before.held_keys, before.keys, start, before.position)
                    self._load_values(k, before, start)
            score = k.f32(float("-inf"))
            for turn in k.strided(0, k.min(here + (self.rows - 1), WARP_SIZE) // self.rows):  # rounds that have others, too
                with k.when(turn != 0) if self.early else nullcontext():
                    self._load(k, before.held_keys, before.keys, start + turn * self.rows, before.position)
                dots = [dot(k, query, row) for row in before.held_keys]
                score @= k.select(round_of_lane == turn, scores.of(k, transposed_sum(k, dots)), score)
            score = scores.at(k, k.select(place == here, newest, score), start, place)
            weight = self.weigh(k, part, k.select(place <= here, score, float("-inf")))
            for number, rows in enumerate(before.held_values):
                self._add(k, part, weight, number, rows, here, value)
            if len(before.held_values) < self.rounds:
                for turn in k.strided(len(before.held_values), self.rounds):
                    rows = (before.held_keys, *before.held_values)[-1]
                    self._load(k, rows, before.values, start + turn * self.rows, before.position)
                    self._add(k, part, weight, turn, rows, here, value)
        return part

    def _add(
        self, k: KernelBuilder, part: Softmax, weight: Value, turn: Value | int, rows: Rows, here: Value, value: SharedPart
    ) -> None:
        """As `add_rows`. Past the newest row comes the newest again, as in tiles.py, where the last one does: its weight of
        zero leaves a sum as it is, but for the sign of a zero."""
        for i, row in enumerate(rows):
            self._load_where(k, here <= turn * self.rows + i, row, value)
        self.add_rows(k, part, weight, turn, rows)
