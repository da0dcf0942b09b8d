"""How the warps of hw_dp4a go along a row: chunk by chunk, of which activations are in shared memory together, and step by
step. A short row is written out; what would be a long text, or would not fit the registers, is a loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from ptxgen.dsl.arguments import read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.fragments import Cursor, FragmentLane
from ptxgen.kernels.gemv.shared_planes import Layout, SharedPlanes, chunks, rows_at_once
from ptxgen.kernels.gemv.source import PlaneSource
from ptxgen.kernels.quantize import int8_planes
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.target import MAX_REGISTERS, MAX_STATIC_SHARED, REGISTERS
from ptxgen.types import F32, U8

# Steps of a chunk that are written out; longer chunks loop.
WRITTEN_OUT: Final = 8

MOST_INSTRUCTIONS: Final = 4000
"""Instructions of all steps that are written out, of PTX. Machine code takes 12 to 18 bytes for each, and may be 64 KB."""

LONG_STEP: Final = 224
"""Instructions of a step, for a row of weights, beyond which the assembler runs out of registers where steps are written out
(Q3_K from two planes on, Q2_K with three; batches)."""

FEW_ROWS: Final = 8 * BLOCK
"""Rows of a matrix that is as good as any where a step is measured. A row of so many values is whole blocks of any format: the
rows that a kernel prefetches into L2 (l2_prefetch.py) have as many values as this one has rows."""

Raw = list[tuple[Value, ...]]
"""What was loaded of the fragments of a step, by row of the warp."""


def loops(blocks: Blocks, parts: list[tuple[int, int]]) -> bool:
    """Whether a row in these chunks (first step, steps) is a loop."""
    if blocks.fragments.steps <= blocks.ahead:
        return False
    if blocks.tokens > 1 and len(parts) > 1:
        return True
    size = step_size(blocks)
    written = sum(_written_out(steps, blocks.ahead) for _, steps in parts)
    handed_on = (blocks.ahead + 1) * size.registers if _written_out(parts[0][1], blocks.ahead) < parts[0][1] else 0
    return (
        size.instructions > LONG_STEP * blocks.rows_per_warp
        or written * size.instructions > MOST_INSTRUCTIONS
        or 8 * handed_on > 7 * registers(blocks)  # Q5_K
    )


def takes_parts(blocks: Blocks, parts: int) -> bool:
    """Whether a row can come in so many parts: it is staged at once, not in a loop, with room for the squares beside it."""
    if blocks.pdl or blocks.tokens > 1 or blocks.k % (BLOCK * parts) or not blocks.stages_at_once:
        return False
    squares = F32.bytes * blocks.k // BLOCK
    static = Layout(blocks.format, blocks.k, 1, blocks.digits).bytes + squares + blocks.static_bytes
    if not blocks.dynamic_shared and static > MAX_STATIC_SHARED:
        return False
    return blocks.in_row_groups or not loops(blocks, chunks(blocks.format, blocks.k, 1, blocks.digits))


def _written_out(steps: int, ahead: int) -> int:
    """Steps of a chunk that stand in the text, of those in Chunk's loop `ahead`."""
    return steps if steps <= max(WRITTEN_OUT, 2 * ahead) else steps - (steps - ahead) // ahead * ahead + ahead


@dataclass(frozen=True)
class StepSize:
    """PTX instructions that load and add a step, and registers that hold its weights as they were loaded."""

    instructions: int
    registers: int


def step_size(blocks: Blocks) -> StepSize:
    """What a step of blocks like these takes."""
    source = PlaneSource(blocks.fragments.values, blocks.digits, blocks.source.batch, blocks.source.normed)
    one = replace(blocks, source=source, matrices=(FEW_ROWS,), row_groups=1, stages=0, beside=False, first=0, number=1)
    return _step_size(replace(one, paced=False, late_from=None))


@lru_cache
def _step_size(blocks: Blocks) -> StepSize:
    """Counted in a step that is written for nobody."""
    row = read(U8, blocks.n, blocks.format.row_bytes(blocks.k), constant=True)
    planes = int8_planes.arrays(blocks.tokens, blocks.digits, blocks.k, "in")
    signature = {**dict.fromkeys(blocks.weights, row), **blocks.source.signature({**planes})}
    k = KernelBuilder("step", signature, LaunchConfig(blocks.count, blocks.threads, dynamic_shared=blocks.dynamic_shared))
    rows = rows_at_once(blocks.format, blocks.k, blocks.tokens, blocks.digits)
    warp = Warp(blocks, k, Layout(blocks.format, blocks.k, rows, blocks.digits))
    before = len(k.body)
    raw = [warp.lane.load(k, cursor) for cursor in warp.cursors]
    for first in range(0, blocks.tokens, rows):
        warp.add_step(raw, range(first, min(first + rows, blocks.tokens)), 0)
    return StepSize(len(k.body) - before, sum(map(len, raw)))


def registers(blocks: Blocks) -> int:
    """Registers that a thread may take."""
    return min(MAX_REGISTERS, REGISTERS // max(blocks.threads_at_once, blocks.threads))


def _most_ahead(blocks: Blocks) -> int:
    """Steps of weights to load ahead so that these, the ones in use and the sums take 3 of 8 registers at most."""
    sums = blocks.tokens * blocks.rows_per_warp
    return max(1, (registers(blocks) * 3 // 8 - sums) // step_size(blocks).registers - 1)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class Warp:
    """What a warp holds: its rows, its lanes' places, its sums by row of weights and row of activations."""

    def __init__(self, blocks: Blocks, k: KernelBuilder, layout: Layout) -> None:
        self.blocks = blocks
        self.k = k
        self.fragments = blocks.fragments
        self.lane: FragmentLane = self.fragments.lane(k)
        self.matrix = blocks.matrix_of_block(k)
        self.n: Index = blocks.n if self.matrix is None else self.matrix.n
        self.whole = blocks.whole if self.matrix is None else self.matrix.whole
        """Whether every warp has as many rows as others."""
        self.first_row: Value = (
            blocks.first_row(k) if self.matrix is None else k.mad(k.warp, blocks.warp_results, self.matrix.first_row)
        )
        self.first_new = self.first_row
        """The first row that is no other warp's: with several row groups the last warp goes back so far that all its rows are
        there."""
        if blocks.in_row_groups and not self.whole:
            self.first_row = k.min(self.first_row, self.n - blocks.warp_results)
        self._first_of_lane = self.first_row + self.lane.lane_group if self.fragments.lane_groups > 1 else self.first_row
        numbers = [self.number(i) for i in range(blocks.lane_results)]
        # Rows past the end are computed again as the last row, because all warps have to stage and to shuffle.
        self.numbers: list[Value] = []
        """The rows that the lane has fragments of at once, all below n."""
        self.rows: list[GlobalArray] = []
        """Of the first number that of each matrix, then those of the second."""
        for number in numbers:
            self.numbers.append(number if self.whole else k.min(number, self.n - 1))
            self.rows += [self._row(name, self.numbers[-1]) for name in blocks.weights]
        self.cursors: list[Cursor] = [self.lane.start(row) for row in self.rows]
        self.shared: SharedPlanes = blocks.source.staged(k, layout, self.lane, dynamic=blocks.dynamic_shared > 0)
        self.totals = [[k.f32(0.0) for _ in range(blocks.tokens)] for _ in self.rows]

    def _row(self, name: str, number: Value) -> GlobalArray:
        """The weights of a row of this matrix from its first on."""
        if self.matrix is None:
            row: GlobalArray = getattr(self.k.arg, name).at(number, 0)
            return row
        return self.matrix.array(name).at(number * self.blocks.format.row_bytes(self.blocks.k))

    def number(self, i: int) -> Value:
        """The number of row i of those that the lane has fragments of at once: neighbouring lane groups have neighbouring rows.
        It may be past the end."""
        return self._first_of_lane + i * self.fragments.lane_groups if i else self._first_of_lane

    @property
    def own(self) -> Value:
        """The number among the warp's results of the one that the lane has where each lane has one at most: the first lanes of
        all lane groups have the first, a row of each."""
        if self.fragments.lane_groups == 1:
            return self.k.lane
        return self.k.mad(self.lane.place, self.fragments.lane_groups, self.lane.lane_group)

    def sum(self, total: Value) -> Value:
        """The sum of a row's lanes, in each of them."""
        if self.fragments.lane_groups > 1:
            total = total + 0.0  # as a whole warp adds the zeros of its other lanes first, which makes 0.0 of -0.0
        return self.k.warp_sum(total, width=self.fragments.lanes)

    def result(self) -> GlobalArray:
        """Where the products go of the matrix that the warp has rows of."""
        y: GlobalArray = self.k.arg.y if self.matrix is None else self.matrix.array("y")
        return y

    def add_step(self, raw: Raw, rows: range, step: Value | int, more: int = 0) -> None:
        """Unpack each row of weights once, and add its products with every one of these rows of activations."""
        runs = [self.lane.unpack(self.k, one) for one in raw]
        count = len(runs[0])
        # Three planes of a whole fragment's activations would fill the registers, so each row adds a run before any adds the
        # next. Either way a row adds its runs in the same order.
        share = count if self.blocks.digits < 3 else 1
        for place, number in enumerate(rows):
            activations = self.shared.read(place, step, more)
            for start in range(0, count, share):
                for row, totals in zip(runs, self.totals, strict=True):
                    self.k.assign(totals[number], activations.add(row[start : start + share], totals[number]))


class Chunk:
    """The steps from `first` on whose activations are in shared memory together. Steps are counted from `first`. Rows of
    activations that do not fit there together alternate with the weights that were loaded ahead."""

    def __init__(self, warp: Warp, first: int, steps: int) -> None:
        self.warp = warp
        self.first = first
        self.steps = steps
        self.whole = steps - (warp.fragments.rest > 0 and first + steps == warp.fragments.steps)
        self.ahead: list[Raw] = []

    def load_ahead(self) -> None:
        """Write the loads of the first steps."""
        self.ahead = [self._load(step) for step in range(min(self.warp.blocks.ahead, self.steps))]

    def add(self, rows: range) -> None:
        """Add all steps to the sums of these rows of activations, which are staged. Every load is written `ahead` steps before
        its use."""
        ahead = self.warp.blocks.ahead
        done, pending = self._loop(rows, ahead) if self.steps > max(WRITTEN_OUT, 2 * ahead) else (0, list(self.ahead))
        for step in range(done, self.steps):
            if step + ahead < self.steps:
                pending.append(self._load(step + ahead))
            raw = pending.pop(0)
            if step < self.whole:
                self.warp.add_step(raw, rows, step)
            else:
                with self.warp.k.when(self.warp.lane.takes_rest):
                    self.warp.add_step(raw, rows, step)

    def _loop(self, rows: range, ahead: int) -> tuple[int, list[Raw]]:
        """As many whole steps as loads that are `ahead` of them stay among the whole steps; returns how many, and the loads of
        the steps that follow."""
        k, warp = self.warp.k, self.warp
        looped = (self.whole - ahead) // ahead * ahead
        variables = [[tuple(in_variable(k, one) for one in raw) for raw in step] for step in self.ahead]
        for i in k.strided(0, looped, step=ahead):
            cursors = [cursor.moved(i) for cursor in warp.cursors]
            for a in range(ahead):
                coming = [warp.lane.load(k, cursor.moved(self.first + a + ahead)) for cursor in cursors]
                self.warp.add_step(variables[a], rows, i, a)
                for old, new in zip(variables[a], coming, strict=True):
                    for variable, value in zip(old, new, strict=True):
                        k.assign(variable, value)
        return looped, variables

    def _load(self, step: int) -> Raw:
        warp = self.warp
        if step < self.whole:
            cursors = [cursor.moved(self.first + step) for cursor in warp.cursors]
        else:
            cursors = [warp.lane.start_of_rest(warp.k, row) for row in warp.rows]
        return [warp.lane.load(warp.k, cursor) for cursor in cursors]


class ChunkLoop:
    """All chunks of a row as one loop, and all steps of a chunk as a loop inside, whose text does not grow with the row.
    The weights of `ahead` steps are in registers that the loop hands on, so their loads run on over the ends of chunks; past
    the last step the last block is loaded again, for nothing. Which lanes have a block in a step is asked in every step."""

    def __init__(self, blocks: Blocks, k: KernelBuilder, tokens_at_once: list[range], most_steps: int) -> None:
        fragments = blocks.fragments
        # Rows of activations that alternate meet the weights that are in registers, so a chunk is a step.
        most = most_steps if len(tokens_at_once) == 1 else 1
        self.ahead = min(blocks.ahead, most, _most_ahead(blocks))
        count = -(-fragments.steps // (most // self.ahead * self.ahead))
        self.steps = _rounded_up(-(-fragments.steps // count), self.ahead)
        values = min(blocks.k, self.steps * fragments.values)
        self.warp = Warp(blocks, k, Layout(blocks.format, values, len(tokens_at_once[0]), blocks.digits))
        self._last_tokens = tokens_at_once[-1]
        self._blocks = blocks.k // blocks.format.block
        loaded = [self._load(step * fragments.blocks + self.warp.lane.block) for step in range(self.ahead)]
        self._raw = [[tuple(in_variable(k, one) for one in raw) for raw in step] for step in loaded]

    def chunks(self) -> Iterator[Value]:
        """Write the loop over chunks; gives the first step of each."""
        return self.warp.k.strided(0, self.warp.fragments.steps, step=self.steps)

    def fill(self, rows: range, first: Value) -> None:
        """Stage these rows of activations for the chunk that starts with step `first`."""
        warp = self.warp
        warp.k.barrier()  # the lanes may still be reading what was staged last
        warp.shared.fill_from(rows, first * (warp.fragments.values // BLOCK), warp.blocks.k)

    def add(self, rows: range, first: Value) -> None:
        """Add all steps of the chunk that starts with step `first` to the sums of these rows of activations."""
        k = self.warp.k
        if self.steps == self.ahead:
            self._add_steps(rows, first, 0)
            return
        for step in k.strided(0, self.steps, step=self.ahead):
            self._add_steps(rows, first + step, step)

    def _add_steps(self, rows: range, start: Value, in_chunk: Index) -> None:
        """As many steps as are loaded ahead, from step `start` of the row on, which is step `in_chunk` of the chunk."""
        k, warp = self.warp.k, self.warp
        blocks = warp.fragments.blocks
        block = start * blocks + warp.lane.block
        everywhere = self._blocks % (self.steps * blocks) == 0
        for number, step in enumerate(self._raw):
            coming = self._load(block + (number + self.ahead) * blocks) if rows is self._last_tokens else None
            with nullcontext() if everywhere else k.when(block + number * blocks < self._blocks):
                warp.add_step(step, rows, in_chunk, number)
            for old, new in zip(step, coming or (), strict=coming is not None):
                for variable, value in zip(old, new, strict=True):
                    k.assign(variable, value)

    def _load(self, block: Index) -> Raw:
        """Load the lane's fragment of this block, or of the last one if there are fewer."""
        k, warp = self.warp.k, self.warp
        inside = min(block, self._blocks - 1) if isinstance(block, int) else k.min(block, self._blocks - 1)
        return [warp.lane.load(k, warp.lane.of_block(row, inside)) for row in warp.rows]


def in_variable(k: KernelBuilder, value: Value) -> Value:
    """A register of its own that holds the value until it is written again."""
    return k.variable(value, value.type)
