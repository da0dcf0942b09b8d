"""The online softmax of many queries by tensor cores: what a warp does with 16 queries and a tile of keys and values that
stands in shared memory. Which queries these are, and how the tile comes there, is a kernel's own business.

Everything is mma.sync m16n8k16 of f16 with sums in f32. Lane l holds of a 16 x 8 block of scores or results the rows l / 4 and
l / 4 + 8, columns 2 (l mod 4) and the next; two blocks of weights side by side are then the left operand of the next product
without any exchange between lanes. f32 numbers are taken apart (f16_parts.py).

A tensor core cuts its sums instead of rounding them. So that this does not add up over a long context, the weighted values of a
tile are summed from zero and added to those of the tiles before it by a rounded fma.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Final, NamedTuple

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.mathlib import ROUNDER
from ptxgen.dsl.memory import GlobalArray, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.f16_parts import F16Parts, split
from ptxgen.kernels.attention.scores import plus
from ptxgen.target import WARP_SIZE
from ptxgen.types import B32, F16, F32, U32

QUERIES: Final = 16
"""Queries of a warp."""

CHUNK: Final = 8
"""Numbers of f16 in 16 bytes, which a lane copies at once and a row of an 8 x 8 matrix has."""

LOG2_E: Final = 1.4426950408889634
"""What scores are multiplied by, so that their weights are powers of two."""

# (2^r - 1) / r for |r| <= 1 / 2: a weighted least-squares fit, off by 0.04 of 2^-24.
EXP2_TAIL = (
    0.6931471824645996,
    0.24022647738456726,
    0.055503323674201965,
    0.00961843691766262,
    0.0013398873852565885,
    0.00015353361959569156,
)
LOWEST = -127.0  # whose power of two comes out as 0

_NEIGHBOURS = (1, 2)  # the lanes that hold the other columns of the same rows


class Operand(NamedTuple):
    """A 16 x 16 block as the left operand of a product: four registers of its high parts, and of its low ones."""

    high: tuple[Value, ...]
    low: tuple[Value, ...] | None


class Running(NamedTuple):
    """The softmax so far, of the lane's two queries: the largest score; the lane's share of the sum of the weights; for each 8
    values of a row, the lane's two of the sum of V by these weights for the first query, then for the second."""

    largest: list[Value]
    total: list[Value]
    weighted: list[list[Value]]


class StagedArray(NamedTuple):
    """An array of f16 in shared memory: that of this name, or from `offset` bytes on in it."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class StagedRows:
    """`rows` rows of head_dim values, a multiple of 32, in shared memory, each value as `parts` f16. A chunk of 8 high parts is
    followed by that of the low ones. A row ends with 16 bytes that nobody uses: an odd number of chunks lets eight rows lie in
    different banks."""

    head_dim: int
    rows: int
    parts: int

    @property
    def stride(self) -> int:
        """f16 numbers from a row to the next."""
        return self.head_dim * self.parts + CHUNK

    @property
    def bytes(self) -> int:
        """Of the array."""
        return F16.bytes * self.rows * self.stride

    def make(self, k: KernelBuilder) -> StagedArray:
        """A new array in shared memory."""
        return StagedArray(k.shared(F16, self.rows, self.stride).name)

    def chunk(self, k: KernelBuilder, array: StagedArray, row: Value, chunk: Value) -> SharedPart:
        """Where a chunk of 8 values of a row starts: its high parts, and `CHUNK` further its low ones."""
        return _from(k, array, row * self.stride + chunk * (self.parts * CHUNK))

    def store(self, k: KernelBuilder, place: SharedPart, values: Sequence[Value]) -> None:
        """Store 8 f32 values in their chunk."""
        pairs = [split(k, values[i : i + 2], self.parts) for i in range(0, CHUNK, 2)]
        words = replace(place, dtype=B32)
        k.store(words[0], [pair.high for pair in pairs])
        if self.parts == 2:
            k.store(words[CHUNK // 2], [pair.low for pair in pairs if pair.low is not None])


@dataclass(frozen=True)
class QueryTile:
    """Queries of `head_dim` values in `parts` f16, and 32 rows of the cache as `staged` says, whose rows may be longer: with
    zeros at the end. `sharing` warps side by side have the same queries, and each an equal part of their values, a multiple of
    32: a thread has registers for a query and a result of 128 values."""

    staged: StagedRows
    parts: int
    head_dim: int
    sharing: int = 1

    @property
    def span(self) -> int:
        """Values of a row that a warp has."""
        return self.staged.head_dim // self.sharing

    @property
    def blocks(self) -> int:
        """Blocks of 8 values of these."""
        return self.span // CHUNK

    def own(self, k: KernelBuilder, unit: int = 1) -> Value | int:
        """The warp's first value of a row, in units of so many values."""
        return 0 if self.sharing == 1 else k.warp % self.sharing * (self.span // unit)

    def inside(self, k: KernelBuilder, first: int) -> Value | bool:
        """Whether the chunk of 8 values that starts `first` values after the warp's first is one of a head."""
        if (self.sharing - 1) * self.span + first < self.head_dim:
            return True
        return first < self.head_dim and self.sharing > 1 and self.own(k) < self.head_dim - first

    def queries(self, k: KernelBuilder, rows: Sequence[GlobalArray], scale: float) -> list[Operand]:
        """The lane's part of its two queries, times `scale`, as the left operands of products over 16 values each; `rows` start
        at the lane's first value of either, which is 2 (lane mod 4) after the warp's first."""
        operands = []
        for first in range(0, self.span, 2 * CHUNK):
            pairs = [self._pair(k, row, place) for place in (first, first + CHUNK) for row in rows]
            operands.append(_operand([split(k, [x * scale for x in pair], self.parts) for pair in pairs]))
        return operands

    def _pair(self, k: KernelBuilder, row: GlobalArray, place: int) -> Sequence[Value]:
        inside = self.inside(k, place)
        if inside is True:
            return k.load_vector(row[place], 2)
        pair = [k.variable(0.0, F32) for _ in range(2)]
        if inside is not False:
            k.load_where(inside, row[place], pair)
        return pair

    def start(self, k: KernelBuilder, lowest: float = float("-inf")) -> Running:
        """The softmax of no position. lowest: less than all scores, and finite where a tile may have none for a query."""
        largest, total = ([k.f32(start) for _ in range(2)] for start in (lowest, 0.0))
        return Running(largest, total, [[k.f32(0.0) for _ in range(4)] for _ in range(self.blocks)])

    def scores(self, k: KernelBuilder, queries: Sequence[Operand], keys: StagedArray) -> list[list[Value]]:
        """The products of the queries with the rows of the tile, a block for each 8 rows; of the warp's values."""
        place = self.staged.chunk(k, keys, k.lane % 8, plus(k.lane // 8, self.own(k, CHUNK)))
        blocks = [_Sums(k) for _ in range(0, self.staged.rows, 8)]
        for number in range(0, len(queries), 2):
            for row, sums in enumerate(blocks):
                at = row * 8 * self.staged.stride + number * 2 * CHUNK * self.staged.parts
                sums.add(queries[number : number + 2], self._right(k, place.at(at)))
        return [list(sums.values) for sums in blocks]

    @property
    def exchanged(self) -> int:
        """f32 numbers that a warp leaves in `whole_scores`."""
        return self.staged.rows // 8 * WARP_SIZE * 4

    def whole_scores(self, k: KernelBuilder, scores: list[list[Value]], exchange: SharedPart) -> list[list[Value]]:
        """The sums of the `scores` of the warps that share queries, with the same bits in each. exchange: f32[warps,
        `exchanged`]. All threads must come here, and meet before they come again."""
        own = exchange.at(k.warp * self.exchanged + k.lane * 4)
        for number, block in enumerate(scores):
            k.store(own[number * WARP_SIZE * 4], block)
        k.barrier()
        first = exchange.at(k.warp // self.sharing * (self.sharing * self.exchanged) + k.lane * 4)
        whole = []
        for number in range(len(scores)):
            at = number * WARP_SIZE * 4
            parts = [k.load_vector(first[part * self.exchanged + at], 4) for part in range(self.sharing)]
            whole.append([reduce(add, values) for values in zip(*parts, strict=True)])
        return whole

    def less_slopes(
        self, k: KernelBuilder, scores: list[list[Value]], slopes: Sequence[Value], distances: Sequence[Value]
    ) -> list[list[Value]]:
        """The scores less what ALiBi takes off: slopes of the lane's two queries, and their distances from the first row of the
        tile, f32 each. Of rows past a query they mean nothing."""
        own = [distance - k.f32(k.lane % 4 * 2) for distance in distances]

        def left(score: Value, query: int, row: int) -> Value:
            value: Value = k.fma(-slopes[query], own[query] - float(row), score)
            return value

        return [[left(score, i // 2, n * 8 + i % 2) for i, score in enumerate(block)] for n, block in enumerate(scores)]

    def weigh(self, k: KernelBuilder, running: Running, scores: list[list[Value]]) -> tuple[list[Operand], list[Value]]:
        """Take the scores of a tile into the largest and the total. Returns their weights as left operands over 16 rows each,
        and what the weighted values so far are to be multiplied by."""
        shrinks = []
        for query in range(2):
            own = [score for block in scores for score in block[2 * query : 2 * query + 2]]
            now = running.largest[query]
            for score in own:
                now = k.max(now, score)
            for neighbour in _NEIGHBOURS:
                now = k.max(now, k.shuffle_xor(now, neighbour))
            shrink = exp2(k, running.largest[query] - now)
            running.largest[query] @= now
            for score in own:
                score @= exp2(k, score - now)
            running.total[query] @= k.fma(running.total[query], shrink, _sum(own))
            shrinks.append(shrink)
        operands = []
        for left, right in zip(scores[::2], scores[1::2], strict=True):
            operands.append(_operand([split(k, block[i : i + 2], self.parts) for block in (left, right) for i in (0, 2)]))
        return operands, shrinks

    def add(
        self, k: KernelBuilder, running: Running, weights: Sequence[Operand], shrinks: Sequence[Value], values: StagedArray
    ) -> None:
        """Add the warp's values of the rows of the tile by their weights to what there is, times `shrinks`."""
        place = self.staged.chunk(k, values, k.lane, k.u32(self.own(k, CHUNK)))
        for block, sums_so_far in enumerate(running.weighted):
            sums = _Sums(k)
            sums.add(weights, self._right(k, place.at(block * CHUNK * self.staged.parts), transposed=True))
            for i, (each, new) in enumerate(zip(sums_so_far, sums.values, strict=True)):
                each @= k.fma(each, shrinks[i // 2], new)

    def _right(self, k: KernelBuilder, place: SharedPart, *, transposed: bool = False) -> list[tuple[Value, ...]]:
        """The four 8 x 8 matrices whose rows the lanes name: a 32 x 8 block as the right operand of two products, its high
        parts and its low ones."""
        blocks = [place[part * CHUNK].address for part in range(self.staged.parts)]
        if transposed:
            return [k.ldmatrix(block, num="x4", space="shared", trans="trans") for block in blocks]
        return [k.ldmatrix(block, num="x4", space="shared") for block in blocks]

    def totals(self, k: KernelBuilder, running: Running) -> list[Value]:
        """The sums of the weights of the lane's two queries."""
        totals = []
        for total in running.total:
            for neighbour in _NEIGHBOURS:
                total = total + k.shuffle_xor(total, neighbour)
            totals.append(total)
        return totals


class _Sums:
    """A 16 x 8 block in the making."""

    def __init__(self, k: KernelBuilder) -> None:
        self._k = k
        self.values: tuple[Value, ...] = (k.f32(0.0),) * 4

    def add(self, left: Sequence[Operand], right: Sequence[tuple[Value, ...]]) -> None:
        """Add the product of two left operands, side by side, with a right one (QueryTile._right)."""
        for half, operand in enumerate(left):
            registers = [part[2 * half : 2 * half + 2] for part in right]
            if operand.low is not None:
                self._add(operand.low, registers[0])
            if len(registers) == 2:
                self._add(operand.high, registers[1])
            self._add(operand.high, registers[0])

    def _add(self, left: Sequence[Value], right: Sequence[Value]) -> None:
        self.values = self._k.mma(left, right, self.values, a_type="f16", b_type="f16")


def exp2(k: KernelBuilder, x: Value) -> Value:
    """2^x for x <= 0, within 1.5 units of 2^-24 of it, or 2^-126; 0 for -infinity, NaN for NaN. Half of what the exponential of
    the math library takes, which knows every argument."""
    inside = k.max(x, LOWEST, nan="NaN")
    rounded = inside + ROUNDER
    r = inside - (rounded - ROUNDER)
    tail = k.fma(r, EXP2_TAIL[-1], EXP2_TAIL[-2])
    for coefficient in EXP2_TAIL[-3::-1]:
        tail = k.fma(tail, r, coefficient)
    power = k.bits((k.bits(rounded, U32) << 23) + 0x3F800000, F32)  # the upper bits of ROUNDER are shifted out
    return k.fma(tail, r, 1.0) * power


def _operand(halves: Sequence[F16Parts]) -> Operand:
    low = tuple(half.low for half in halves if half.low is not None)
    return Operand(tuple(half.high for half in halves), low or None)


def _from(k: KernelBuilder, array: StagedArray, halves: Value) -> SharedPart:
    """The array from a place on that is computed."""
    return SharedPart(k, k.mad(halves, F16.bytes, k.symbol_address(array.name)), F16, array.offset)


def _sum(values: Sequence[Value]) -> Value:
    """The sum as a tree."""
    while len(values) > 1:
        values = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]
