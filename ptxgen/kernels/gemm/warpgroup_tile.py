"""A block of threads of `wgmma_{format}_gemm`: how its warpgroups go along k, what they unpack while products are under way,
and in which order sums are added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats import Format
from ptxgen.formats.half_weights import HalfMinima, HalfWeights
from ptxgen.kernels.gemm.block_grid import BlockPlace
from ptxgen.kernels.gemm.f16_gemm_type import F16GemmType
from ptxgen.kernels.gemm.f16_products import operand
from ptxgen.kernels.gemm.staged_f16 import SplitStageLayout, StagedF16
from ptxgen.kernels.gemm.staged_weights import StagedWeights, TileLayout
from ptxgen.kernels.gemv.iteration import advance, kept, load_again, when_below
from ptxgen.kernels.quantize.f16_split import STEPS, TILE
from ptxgen.kernels.segments import MatrixOfBlock
from ptxgen.target import WARPGROUP_SIZE

GROUP_ROWS: Final = 64
"""Rows of weights of a product."""

WARP_ROWS: Final = 16
"""Those of them whose integers one warp has."""

Unpacked = Sequence[tuple[int, Sequence[Value], Sequence[Value] | None]]
"""Steps by number, as left operands: the integers, and what they lack."""


@dataclass(frozen=True)
class WarpgroupBlock:
    """A block of threads: the fields of WgmmaGemm that describe it, and what it has in shared memory."""

    format: Format
    parts: int
    warpgroups: int
    columns: int
    stages: int
    unpacked: int
    staged: bool

    @property
    def rows(self) -> int:
        """Rows of weights."""
        return GROUP_ROWS * self.warpgroups

    @property
    def layout(self) -> SplitStageLayout:
        """A window of activations in shared memory."""
        return SplitStageLayout(self.columns, self.parts)

    @property
    def tile(self) -> TileLayout:
        """A window of 16 rows of weights in shared memory."""
        return TileLayout(self.format)

    @property
    def stage_bytes(self) -> int:
        """Of a window of activations, and of weights if they are staged."""
        return self.layout.bytes + (self.rows // WARP_ROWS * self.tile.bytes if self.staged else 0)

    @property
    def shared_bytes(self) -> int:
        """Of shared memory."""
        return self.stages * self.stage_bytes


class WarpgroupTile:
    """What a block of threads holds: which rows of both matrices it takes, and the sums of each lane.

    Every window is gone through alike: its header becomes scales, and its first steps integers, while the minima of the window
    before are multiplied. Then the products of some steps are under way while those after them are unpacked. Between the
    first half and the second the block meets: the next window has come, and the one before may be overwritten. Warpgroups
    may be apart by as much, so that some multiply while others scale their sums."""

    def __init__(self, kernel: F16GemmType, block: WarpgroupBlock, k: KernelBuilder) -> None:
        self.kernel, self.block, self.blocks, self.k = kernel, block, kernel.blocks, k
        self.place = BlockPlace(self.blocks, k)
        self.first_column: Index = self.place.column * block.columns
        self.matrix = MatrixOfBlock(self.blocks, k, self.place.rows)
        self.first_row: Value = self.matrix.first_row + k.warp * WARP_ROWS
        self.first, self.end = self.place.windows()
        self.weights = self._weights()
        threads, windows = WARPGROUP_SIZE * block.warpgroups, (self.first, self.end)
        self.staged = StagedF16(k, block.layout, block.stages, threads, self.first_column, kernel.m, windows, block.stage_bytes)
        self.totals = [k.f32(0.0) for _ in range(block.columns // 2)]
        self.sums = [k.f32(0.0) for _ in range(block.columns // 2)]
        self.minimum_scales = [k.f32(0.0) for _ in (0, 8)]
        # Zeros that the assembler does not know. It does without overlapping products where one register is two operands of
        # theirs, or a copy of one.
        self.zeros = [k.ctaid.y, k.ctaid.z]

    def _weights(self) -> _CopiedWeights | _LoadedWeights:
        return _CopiedWeights(self) if self.block.staged else _LoadedWeights(self)

    def add_rows(self) -> None:
        """Add the products of all windows of the slice."""
        kernel, block, k, weights = self.kernel, self.block, self.k, self.weights
        weights.begin()
        early = weights.of_first() if kernel.pdl and not block.staged else None
        if kernel.pdl:
            k.griddepcontrol(action="wait")
            k.griddepcontrol(action="launch_dependents")
        self.staged.begin()
        if not kernel.pdl and not block.staged:
            early = weights.of_first()
        self.has_minima = kernel.format.minimum is not None
        if self.has_minima:
            self.staged.forget_before()
        if block.stages > 2:
            self.staged.arrive(block.stages - 2)
        elif self.has_minima:
            k.barrier()
        self.raw = kept(k, early or weights.of_first())
        for window in k.strided(self.first, self.end):
            self._add_window(window)
        self._end_minima()

    def _add_window(self, window: Value) -> None:
        block, k, staged = self.block, self.k, self.staged
        weights = [block.format.unpack_halves(k, raw, self.weights.lane) for raw in self.raw]
        order = weights[0].order
        sets = [order[i : i + block.unpacked] for i in range(0, STEPS, block.unpacked)]
        unpacked = self._unpack(weights, sets[0])
        self._end_minima()
        # With two stages nothing is left to copy to before the window before has been multiplied everywhere.
        meeting = -1 if block.stages == 2 else len(sets) // 2 - 1
        if meeting < 0:
            staged.arrive(0)
        portions = iter(_shares(staged.pieces, len(sets) - 1 - max(meeting, 0)))
        descriptor = staged.descriptor()
        for number in range(len(sets)):
            self._multiply(unpacked, descriptor, first=number == 0)
            if number == meeting:
                staged.arrive(block.stages - 3)
            elif number > meeting and number > 0:
                staged.copy(next(portions), window)
            if number + 1 < len(sets):
                if number:
                    k.wgmma_wait_group(1)
                unpacked = self._unpack(weights, sets[number + 1])
        self.weights.copy(window)
        k.cp_async_commit_group()
        scales = [one.scales[0] for one in weights]
        minima = [one.minima for one in weights if one.minima is not None]
        load_again(k, self.raw, self.weights.after(window))
        k.wgmma_wait_group(0)
        self._add(scales, staged.here + staged.reads)
        if minima:
            self._begin_minima(minima, descriptor)
        staged.turn()

    def _unpack(self, weights: Sequence[HalfWeights], numbers: Iterable[int]) -> Unpacked:
        """The operands of these steps. What integers lack counts where activations have two parts."""
        operands = []
        for number in numbers:
            steps = [one.step(number) for one in weights]
            lows = [step.low for step in steps if step.low is not None]
            low = operand(lows) if lows and self.kernel.parts > 1 else None
            operands.append((number, operand([step.high for step in steps]), low))
        return operands

    def _multiply(self, unpacked: Unpacked, descriptor: Value, *, first: bool) -> None:
        """Begin a group of products: the integers with each part of the activations, what they lack with the first."""
        k = self.k
        k.wgmma_fence()
        for number, high, low in unpacked:
            for left, part in ((high, 0), (low, 0), (high, 1)):
                if left is not None and part < self.kernel.parts:
                    k.wgmma(self.sums, left, self._moved(descriptor, number, part), accumulate=not first)
                    first = False
        k.wgmma_commit_group()

    def _moved(self, descriptor: Value, step: int, part: int) -> Value:
        offset = self.staged.offset(step, part)
        return descriptor + offset if offset else descriptor

    def _begin_minima(self, minima: Sequence[HalfMinima], descriptor: Value) -> None:
        """Begin the products of the minima with the sums of 16 activations."""
        k = self.k
        (first, _), (second, _) = (one.halves for one in minima)
        operand = [value ^ zero for zero in self.zeros for value in (first, second)]
        k.wgmma_fence()
        for part in range(self.kernel.parts):
            k.wgmma(self.sums, operand, self._moved(descriptor, STEPS, part), accumulate=part > 0)
        k.wgmma_commit_group()
        for variable, one in zip(self.minimum_scales, minima, strict=True):
            k.assign(variable, -one.scale)

    def _end_minima(self) -> None:
        """Take off the minima of the window before."""
        if self.has_minima:
            self.k.wgmma_wait_group(0)
            self._add(self.minimum_scales, self.staged.before + self.staged.reads)

    def _add(self, scales: Sequence[Value], place: Value) -> None:
        """Add scale times scale times sum to the totals; scales of rows r and r + 8, and of the activations that lie there."""
        k = self.k
        for tile in range(self.block.columns // TILE):
            xs = self.staged.scales(place, tile)
            for c in range(4):
                total = self.totals[4 * tile + c]
                k.assign(total, k.fma(scales[c // 2] * xs[c % 2], self.sums[4 * tile + c], total))

    def store(self) -> None:
        """Write the totals, those of all slices together, that are inside the result."""
        k, place = self.k, self.place
        if self.blocks.slices == 1:
            self._store_totals()
            return
        fours = [self.totals[i : i + 4] for i in range(0, len(self.totals), 4)]
        first = k.warp * self.blocks.column_tiles
        for tile, four in enumerate(fours):
            place.leave(first + tile, four)
        with k.when(place.is_last()):
            for tile, four in enumerate(fours):
                for variable, value in zip(four, place.of_all(first + tile), strict=True):
                    k.assign(variable, value)
            self._store_totals()

    def _store_totals(self) -> None:
        """Write the totals that are inside the result, or what they come to with what is there."""
        kernel, k, matrix = self.kernel, self.k, self.matrix
        first = (k.lane & 3) * 2 + self.first_column
        row = self.first_row + (k.lane >> 2)
        self.y = matrix.array("y")
        for half in (0, 8):
            below = row + half if half else row
            with nullcontext() if matrix.whole else k.when(below < matrix.n):
                numbers = [number for number in range(len(self.totals)) if number % 4 // 2 * 8 == half]
                held = self._held(row, half, first, numbers) if kernel.residual else {}
                for number in numbers:
                    with self._when_inside(first, number) as x:
                        value = kernel.epilogue.value(held.get(number), self.totals[number])
                        k.store(self._result(x, row + half if half else row), value)

    def _held(self, row: Value, half: int, first: Value, numbers: Sequence[int]) -> dict[int, Value | None]:
        """What y holds where the totals of these numbers go: under way all at once."""
        k, row = self.k, row + half
        zeros = {number: k.f32(0.0) for number in numbers}

        @contextmanager
        def place(number: int) -> Iterator[Element]:
            with self._when_inside(first, number) as x:
                yield self._result(x, row)

        return {number: self.kernel.epilogue.load(k, partial(place, number), zero) for number, zero in zeros.items()}

    def _result(self, x: Value, row: Value) -> Element:
        return self.y[x * self.matrix.n + row]

    @contextmanager
    def _when_inside(self, first: Value, number: int) -> Iterator[Value]:
        """The threads whose total of this number is inside, and its row of activations; the first total has `first`."""
        x = first + (number // 4 * TILE + number % 2)
        with when_below(self.k, x, self.kernel.m, self.block.columns):
            yield x


class _LoadedWeights:
    """Weights that each lane loads to its registers, a window ahead."""

    def __init__(self, block: WarpgroupTile) -> None:
        self.block, self.k, self.kernel = block, block.k, block.kernel
        self.lane = self.kernel.format.half_lane(self.k, self.k.lane & 3)
        self.rows = [self._row(half) for half in (0, 8)]

    def _row(self, half: int) -> GlobalArray:
        """The lane's row in one half of its warp's, clamped to the last one; the duplicate is not stored."""
        matrix = self.block.matrix
        row = self.block.first_row + ((self.k.lane >> 2) + half)
        return matrix.array("w").at(self.k.min(row, matrix.n - 1) * self.kernel.format.row_bytes(self.kernel.k))

    def begin(self) -> None:
        """Nothing is copied."""

    def copy(self, window: Value) -> None:
        """Nothing is."""

    def of_first(self) -> Sequence[Sequence[Value]]:
        """The words of the lane's two rows, of the first window."""
        return self._load(0)

    def after(self, window: Value) -> Sequence[Sequence[Value]]:
        """The same of the window after this one."""
        return self._load(self.k.min(window + 1, self.kernel.windows - 1))

    def _load(self, window: Index) -> list[tuple[Value, ...]]:
        format = self.kernel.format
        last: Index = self.kernel.windows - 1 - window
        return [format.load_halves(self.k, advance(row, window, format.block_bytes), self.lane, last) for row in self.rows]


class _CopiedWeights:
    """Weights that come through the stages, after the activations of their window: those of a warp are its own."""

    def __init__(self, block: WarpgroupTile) -> None:
        self.block, self.k, self.kernel = block, block.k, block.kernel
        k, kernel, shape = self.k, self.kernel, block.block
        self._row_bytes = kernel.format.row_bytes(kernel.k)
        self._staged = StagedWeights(k, shape.tile, self._row_bytes, block.matrix)
        self._tile = block.matrix.array("w").at(block.first_row * self._row_bytes)
        self._behind = k.mad(k.warp, shape.tile.bytes, shape.layout.bytes)
        self.lane = self._staged.lane

    def begin(self) -> None:
        """Begin to copy the first windows, all that have stages but one."""
        first = self.block.first
        for number in range(self.block.block.stages - 1):
            self._copy(first + number if number else first, self.block.staged.place(number))

    def copy(self, window: Value) -> None:
        """Begin to copy what comes where the window before this one was."""
        self._copy(window + (self.block.block.stages - 1), self.block.staged.before)

    def _copy(self, window: Index, stage: Value) -> None:
        staged = self.block.staged
        if not staged.beyond(window):
            start = advance(self._tile, window, self.kernel.format.block_bytes)
            self._staged.copy(stage + self._behind, start, self.block.first_row, staged.guard(window))

    def of_first(self) -> Sequence[Sequence[Value]]:
        """The words of the lane's two rows, of the first window, which has come."""
        return self._staged.words(self.block.staged.here + self._behind)

    def after(self, window: Value) -> Sequence[Sequence[Value]]:
        """The same of the window after this one, which has come if there is one."""
        staged, k = self.block.staged, self.k
        stage = k.select(window + 1 < self.block.end, staged.following(), staged.here)
        return self._staged.words(stage + self._behind)


def _shares(count: int, parts: int) -> list[range]:
    """`count` numbers in so many ranges, as even as can be."""
    ends = [count * i // parts for i in range(parts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]
