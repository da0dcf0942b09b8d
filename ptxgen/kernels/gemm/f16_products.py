"""What a warp does with a window of 256 values in kernels of `mma` on the f16 split of activations: which integers are
multiplied with which parts, where scales are applied, and in which order sums are added. Where weights and activations come
from is the caller's business."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.formats.half_weights import HalfMinima, HalfWeights, Pair
from ptxgen.kernels.quantize.f16_split import STEPS

Rows = tuple[HalfWeights, HalfWeights]
"""The lane's shares of rows r and r + 8 of a tile of 16."""

Sums = list[list[Value]]
"""The four sums of a lane for each tile of 8 rows of activations: of rows r, r, r + 8, r + 8 of weights, and rows 2 t and
2 t + 1 of activations in turn."""


Columns = Sequence[Sequence[Pair]]
"""The right operands of a step: parts, by tile of rows of activations."""


class ActivationWindow(Protocol):
    """A window of some tiles of 8 rows of activations."""

    @abstractmethod
    def parts(self, place: int, number: int) -> Sequence[Pair]:
        """The right operand of `mma` for a step of a tile of rows, the sums as step 16: its parts."""


@dataclass(frozen=True)
class WindowProducts:
    """Multiplies windows of `columns` tiles of activations. The products of a window go to `chains` sums in turn. lows: whether
    what the integers of weights lack is multiplied, too, with the first part. zero: f32."""

    k: KernelBuilder
    columns: int
    lows: bool
    chains: int
    zero: Value

    def sums(self, tiles: Sequence[Rows], activations: ActivationWindow) -> list[Sums]:
        """Of each tile of weights, with their scales, less the minima; without the scales of activations."""
        scaled = [_Scaled(self.k) for _ in tiles]
        weights = tiles[0][0]
        steps_of_run = STEPS // len(weights.scales)
        for run in range(len(weights.scales)):
            order = weights.order[run * steps_of_run : (run + 1) * steps_of_run]
            sums = [[_Chains(self.k, self.chains, self.zero) for _ in range(self.columns)] for _ in tiles]
            for number in order:
                self._add_step(sums, tiles, number, [activations.parts(place, number) for place in range(self.columns)])
            for of_tile, rows, tile_sums in zip(sums, tiles, scaled, strict=True):
                tile_sums.add([row.scales[run] for row in rows], [chains.total() for chains in of_tile])
        self._take_minima(scaled, tiles, activations)
        return [of_rows.sums for of_rows in scaled]

    def _add_step(self, sums: Sequence[Sequence[_Chains]], tiles: Sequence[Rows], number: int, columns: Columns) -> None:
        """Multiply a step of all tiles: the integers with each part of the activations, what they lack with the first."""
        for of_tile, rows in zip(sums, tiles, strict=True):
            steps = [row.step(number) for row in rows]
            high = operand([step.high for step in steps])
            lows = [step.low for step in steps if step.low is not None]
            low = operand(lows) if lows and self.lows else None
            for place, parts in enumerate(columns):
                for part in parts:
                    of_tile[place].add(high, part)
                if low is not None:
                    of_tile[place].add(low, parts[0])

    def _take_minima(self, scaled: Sequence[_Scaled], tiles: Sequence[Rows], activations: ActivationWindow) -> None:
        columns: list[Sequence[Pair]] | None = None
        for of_tile, rows in zip(scaled, tiles, strict=True):
            minima = [row.minima for row in rows if row.minima is not None]
            if not minima:
                return
            if columns is None:
                columns = [activations.parts(place, STEPS) for place in range(self.columns)]
            of_tile.add([-one.scale for one in minima], [self._sum_minima(minima, parts) for parts in columns])

    def _sum_minima(self, minima: Sequence[HalfMinima], parts: Sequence[Pair]) -> list[Value]:
        sums = [self.zero] * 4
        for part in parts:
            halves = operand([one.halves for one in minima])
            sums = list(self.k.mma(halves, part, sums, a_type="f16", b_type="f16"))
        return sums


class _Chains:
    """The sums of a tile of weights and one of activations: products go to each in turn, so that one need not wait for the
    one before."""

    def __init__(self, k: KernelBuilder, count: int, zero: Value) -> None:
        self.k = k
        self._sums = [[zero] * 4 for _ in range(count)]
        self._products = 0

    def add(self, a: Sequence[Value], b: Pair) -> None:
        number = self._products % len(self._sums)
        self._sums[number] = list(self.k.mma(a, b, self._sums[number], a_type="f16", b_type="f16"))
        self._products += 1

    def total(self) -> list[Value]:
        """The sums of those that have products, added in their order."""
        total, *others = self._sums[: self._products]
        for sums in others:
            total = [one + other for one, other in zip(total, sums, strict=True)]
        return total


class _Scaled:
    """The sums of a tile of weights and each tile of activations in a window, times the scales of weights."""

    def __init__(self, k: KernelBuilder) -> None:
        self.k = k
        self.sums: Sums = []

    def add(self, scales: Sequence[Value], sums: Sequence[Sequence[Value]]) -> None:
        """Add scale times sum; the scales are of rows r and r + 8."""
        k = self.k
        if not self.sums:
            self.sums = [[scales[c // 2] * sum for c, sum in enumerate(four)] for four in sums]
            return
        self.sums = [
            [k.fma(scales[c // 2], sum, before) for c, (sum, before) in enumerate(zip(four, earlier, strict=True))]
            for four, earlier in zip(sums, self.sums, strict=True)
        ]


def operand(pairs: Sequence[Pair]) -> list[Value]:
    """The left operand of a product from those of rows r and r + 8."""
    (first, second), (third, fourth) = pairs
    return [first, third, second, fourth]
