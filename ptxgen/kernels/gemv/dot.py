"""The sum that a lane adds up over its share of rows of weights times vectors, in a fixed order. Which rows a lane has, and
how the lanes' sums come together, is a strategy's business."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.formats.format import Weight
from ptxgen.kernels.gemv.iteration import IterationSpace, Lane, Part, advance, further
from ptxgen.target import WARP_SIZE

Reader = Callable[[int], list[Weight]]
"""Decodes the lane's weights of a group."""


@dataclass(frozen=True)
class Dot:
    """How a row is added up: a lane decodes about `pass_values` weights in one pass of the loop, whose loads so are in flight
    together, and deals the products out to `sums` sums, so that additions overlap."""

    space: IterationSpace
    pass_values: int = 16
    sums: int = 4

    @property
    def passes(self) -> tuple[int, int, int]:
        """Passes of the loop, steps of each, and whole steps left for after it. A loop of one pass is left out."""
        steps = unrolled(self.space.steps, max(1, self.pass_values // self.space.lane_values))
        passes = self.space.steps // steps
        return (passes, steps, self.space.steps % steps) if passes > 1 else (0, 0, self.space.steps)

    @property
    def additions(self) -> int:
        """The most additions of products to one sum."""
        # Every chunk deals its products out to the sums anew.
        passes, steps, left = self.passes
        chunks = [steps] * passes + [left] + [1] * (self.space.rest > 0)
        return sum(-(-chunk * self.space.lane_values // self.sums) for chunk in chunks)

    @property
    def chain(self) -> int:
        """The most additions that a product goes through until a warp has one sum."""
        return self.additions + self.sums.bit_length() - 1 + WARP_SIZE.bit_length() - 1


class LaneDot(Generic[Part]):
    """The lane's sums of some rows times some vectors. `rows` and `vectors` start at its place in the first step. A weight is
    decoded once for all vectors, and an activation loaded once for all rows."""

    def __init__(self, k: KernelBuilder, dot: Dot, lane: Lane, rows: Sequence[GlobalArray], vectors: Sequence[Part]) -> None:
        self.k = k
        self.dot = dot
        self.lane = lane
        self.rows = rows
        self.vectors: Sequence[Part] = vectors

    def total(self) -> list[list[Value]]:
        """Add everything up: the lane's sum for each row and vector."""
        sums = self.zeros()
        self.add_to(sums)
        return self.combined(sums)

    def zeros(self) -> list[list[list[Value]]]:
        """Sums to add to, by row and vector."""
        return [[[self.k.f32(0.0) for _ in range(self.dot.sums)] for _ in self.vectors] for _ in self.rows]

    def add_to(self, sums: list[list[list[Value]]]) -> None:
        """Add all products to variables that `zeros` made."""
        k, space = self.k, self.dot.space
        passes, steps, left = self.dot.passes
        looped = passes * steps
        if passes:
            for i in k.strided(0, looped, step=steps):
                rows = [advance(row, i, space.bytes) for row in self.rows]
                self._add_steps(sums, rows, [advance(vector, i, space.values) for vector in self.vectors], steps)
        if left:
            self._add_steps(sums, *self._at_step(looped), left)
        if space.rest:
            with k.when(self.lane.takes_rest):
                self._add_steps(sums, *self._at_step(space.steps), 1)

    def combined(self, sums: list[list[list[Value]]]) -> list[list[Value]]:
        """One sum for each row and vector: added in pairs."""
        return [[self._in_pairs(some) for some in row] for row in sums]

    def readers(self, row: GlobalArray, steps: int) -> Iterator[Reader]:
        """What decodes the lane's block of each of the `steps` steps that start at `row`, made one after the other."""
        column = advance(row, self.lane.column, 1)
        for step in range(steps):
            offset = step * self.dot.space.bytes
            yield self.lane.reader(self.k, self.lane.place(row.at(offset), column.at(offset)))

    def _in_pairs(self, sums: list[Value]) -> Value:
        while len(sums) > 1:
            sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
        return sums[0]

    def _at_step(self, step: int) -> tuple[list[GlobalArray], list[Part]]:
        space = self.dot.space
        return [row.at(step * space.bytes) for row in self.rows], [
            further(vector, step * space.values) for vector in self.vectors
        ]

    def _add_steps(
        self, sums: list[list[list[Value]]], rows: Sequence[GlobalArray], vectors: Sequence[Part], steps: int
    ) -> None:
        """Add `steps` steps that start at the lane's block in `rows` and its first value in `vectors`; each sum is written
        once."""
        space = self.dot.space
        running = [[list(some) for some in row] for row in sums]
        count = 0
        readers = [self.readers(row, steps) for row in rows]
        for step in range(steps):
            decode = [next(reader) for reader in readers]
            for group in range(space.format.groups):
                weights = [each(group) for each in decode]
                for number, vector in enumerate(vectors):
                    self._add_products([row[number] for row in running], weights, further(vector, step * space.values), count)
                count += len(weights[0])
        for before, after in zip(sums, running, strict=True):
            for old, new in zip(before, after, strict=True):
                for variable, value in zip(old, new, strict=True):
                    if value is not variable:
                        self.k.assign(variable, value)

    def _add_products(self, running: list[list[Value]], weights: list[list[Weight]], vector: Part, count: int) -> None:
        """Add the products of each row's weights with the same activations to that row's sums, from sum number `count` on."""
        k, width = self.k, self.dot.space.width
        piece = 4 if width % 4 == 0 else width
        for first in range(0, len(weights[0]), piece):
            offset = weights[0][first].offset
            xs = k.load_vector(vector[offset], piece) if piece > 1 else [k.load(vector[offset])]
            for some, row in zip(running, weights, strict=True):
                for i, x in enumerate(xs):
                    at = (count + first + i) % self.dot.sums
                    some[at] = k.fma(row[first + i].value, x, some[at])


def unrolled(steps: int, most: int) -> int:
    """How many of `steps` to write in one pass of a loop: at most `most`; rather a divisor if one is over half of that."""
    if steps <= most:
        return max(1, steps)
    return next((n for n in range(most, most // 2, -1) if steps % n == 0), most)
