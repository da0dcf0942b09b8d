"""The rows of activations of a block: their planes and scales in shared memory, copied a stage ahead of their use, and read
there as the fragments that `mma` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats import Format
from ptxgen.kernels.gemm.weight_tile import PAD
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.types import F32, U32

COLUMN_TILE: Final = 8
"""Rows of activations of an `mma`: the columns of its second operand, for one plane."""

PIECE: Final = 16
"""Bytes of an asynchronous copy."""

ONES = 0x01010101


@dataclass(frozen=True)
class StageLayout:
    """A stage of `values` activations of `rows` rows in shared memory: bytes. The digits: all rows of the highest, then those
    of the next; then by blocks of 32 and rows the scales, each with what minima are multiplied by: the negative sum of the
    block, or, where a minimum is for 16 values, of each of its halves, and a word that is free."""

    format: Format
    rows: int
    digits: int
    values: int

    @property
    def row_bytes(self) -> int:
        """Bytes from one row's planes to the next."""
        return self.values + PAD

    @property
    def scale_words(self) -> int:
        """f32 of a scale and what follows it."""
        return 1 if not self.format.has_minimum else 2 if self.format.scale_values == BLOCK else 4

    @property
    def scales(self) -> int:
        """Where the scales start."""
        return self.digits * self.rows * self.row_bytes

    @property
    def bytes(self) -> int:
        """Of all together."""
        return self.scales + self.values // BLOCK * self.rows * 4 * self.scale_words


@dataclass(frozen=True)
class StageMove:
    """What a thread moves in every stage: from `row` (a number, or where it starts) and `offset` values or blocks further than
    the stage starts, to the byte `target` of the first stage; unless it is not `inside`."""

    row: Value
    offset: Value
    target: Value
    inside: Value | None = None

    def when(self, k: KernelBuilder) -> AbstractContextManager[None]:
        """Around the move."""
        return k.when(self.inside) if self.inside is not None else nullcontext()


class StagedInt8:
    """The `stages` stages of the warps that share a part of k: `thread` is a thread's number among their `threads`, `first` the
    first value of the first stage, which is `most` at most. Two stages, of which one is read while the other is filled, lie
    from the byte `base` on; one, if there is but one. Rows of activations start with `row`; rows past the last, `rows` - 1, are
    that row again, and values past the end of a row, `length`, are the last ones again: neither is used."""

    def __init__(
        self, k: KernelBuilder, layout: StageLayout, base: Value, stages: int, thread: Value, threads: int, row: Index,
        rows: int, first: Index, most: int, length: int,
    ) -> None:  # fmt: skip
        self.k = k
        self.layout = layout
        self._base, self._stages = base, stages
        self._threads = threads
        self._row, self._rows = row, rows
        self._first, self._length = first, length
        self._beyond = most + stages * layout.values > length
        self._pieces = list(self._shares(layout.digits * layout.rows * layout.values // PIECE, thread, self._piece))
        self._blocks = list(self._shares(layout.values // BLOCK * layout.rows, thread, self._block))
        self._loaded: list[Sequence[Value]] = []
        # Lane l names row l % 8 of the matrix l / 8, which are 64 values of a row, 16 each.
        self.get_planes = k.mad(k.lane & 7, layout.row_bytes, base) + (k.lane >> 3) * 16
        self.get_scales = k.mad((k.lane & 3) * 2, 4 * layout.scale_words, base)

    def fetch(self, stage: Index) -> None:
        """Start to copy a stage if there is one of this number: the planes on their own, scales into registers that `put`
        stores."""
        if isinstance(stage, int) and stage >= self._stages:
            return
        with self.k.when(stage < self._stages) if isinstance(stage, Value) else nullcontext():
            self._copy_planes(stage)
        self._load_scales(stage)

    def _copy_planes(self, stage: Index) -> None:
        k = self.k
        digits = k.arg.digits.at(0, 0, 0)
        for piece in self._pieces:
            value = self._inside(self._first + stage * self.layout.values + piece.offset, PIECE, self._length)
            target = self.moved(piece.target, stage, 0)
            with piece.when(k):
                element = Element("shared", target.register, 0, U32)
                k.cp_async(element.address, digits.at(piece.row + value)[0].address, PIECE, cache="cg")
        k.cp_async_commit_group()

    def _load_scales(self, stage: Index) -> None:
        """A stage past the last one, which is not used, has the scales of the last one again."""
        stage = self.k.min(stage, self._stages - 1) if isinstance(stage, Value) else stage
        before = self._first // BLOCK + stage * (self.layout.values // BLOCK)
        self._loaded = []
        for one in self._blocks:
            block = self._inside(before + one.offset, 1, self._length // BLOCK)
            self._loaded.append(self._load_scale(one.row, block))

    def put(self, stage: Index) -> None:
        """Store the scales of the stage that was fetched last, of this number."""
        if isinstance(stage, int) and stage >= self._stages:
            return
        k, layout = self.k, self.layout
        for one, (scale, *sums) in zip(self._blocks, self._loaded, strict=True):
            words = [scale, *(-(scale * k.f32(sum)) for sum in sums)]
            words += [words[-1]] * (layout.scale_words - len(words))
            element = Element("shared", self.moved(one.target, stage, 0).register, layout.scales, F32)
            with one.when(k):
                k.store(element, words if len(words) > 1 else scale)

    def arrive(self) -> None:
        """Wait until the whole block has its stage, and has done with the one before."""
        self.k.cp_async_wait_group(0)
        self.k.barrier()

    def reader(self, stage: Index, step_value: Index) -> StageReader:
        """What reads a stage from this value of it on, a multiple of 128."""
        layout = self.layout
        digits = self.moved(self.get_planes, stage, step_value)
        scales = self.moved(self.get_scales, stage, step_value // BLOCK * (layout.rows * 4 * layout.scale_words))
        return StageReader(self.k, layout, digits, scales)

    def moved(self, place: Value, stage: Index, offset: Index) -> Value:
        """A place of the first stage, in this stage, and so many bytes further."""
        if isinstance(stage, Value):
            place = self.k.mad(stage & 1, self.layout.bytes, place)
        elif stage % 2:
            place = place + self.layout.bytes
        return place + offset if isinstance(offset, Value) or offset else place

    def _shares(self, count: int, thread: Value, make: Callable[[Value], StageMove]) -> Iterator[StageMove]:
        """What a thread moves of `count` things; the last ones again, but for the copy, where there are fewer than threads."""
        for start in range(0, count, self._threads):
            number = thread + start if start else thread
            if start + self._threads > count:
                yield replace(make(self.k.min(number, count - 1)), inside=number < count)
            else:
                yield make(number)

    def _piece(self, number: Value) -> StageMove:
        """Of the digits: the first plane of all rows, then the next."""
        layout, per_row = self.layout, self.layout.values // PIECE
        column, value = number // per_row, number % per_row * PIECE
        row = self._row_inside(column % layout.rows) * layout.digits + column // layout.rows
        target = self.k.mad(column, layout.row_bytes, self._base) + value
        return StageMove(row * self._length, value, target)

    def _block(self, number: Value) -> StageMove:
        """Of the scales: the first block of all rows, then the next."""
        layout = self.layout
        target = self.k.mad(number, 4 * layout.scale_words, self._base)
        return StageMove(self._row_inside(number % layout.rows), number // layout.rows, target)

    def _row_inside(self, row: Value) -> Value:
        """The number of a row of the block, among all."""
        number = row + self._row if isinstance(self._row, Value) or self._row else row
        clamped: Value = self.k.min(number, self._rows - 1)
        return clamped

    def _inside(self, number: Value, count: int, length: int) -> Value:
        """The number of the first of `count` things, all below `length`."""
        inside: Value = self.k.min(number, length - count) if self._beyond else number
        return inside

    def _load_scale(self, row: Value, block: Value) -> Sequence[Value]:
        """The scale of a block, and the sum, or the sums of its halves."""
        k, layout = self.k, self.layout
        place = k.mad(row, self._length // BLOCK, block)
        scale = k.load(k.arg.scales.at(0, 0).at(place)[0])
        if layout.scale_words == 1:
            return [scale]
        if layout.scale_words == 2:
            return [scale, k.load(k.arg.sums.at(0, 0).at(place)[0])]
        start = k.arg.digits.at(0, 0, 0).at(k.mad(row * layout.digits, self._length, block * BLOCK))
        return [scale, *(self._sum_of_half(start.at(half)) for half in (0, BLOCK // 2))]

    def _sum_of_half(self, start: GlobalArray) -> Value:
        """The sum of the integers of 16 activations."""
        k = self.k
        total: Value | None = None
        for plane in range(self.layout.digits):
            sum = total << 8 if total is not None else k.s32(0)
            for word in k.load_vector(start.at(plane * self._length)[0], 4, U32):
                sum = k.dp4a(ONES, word, sum, a_type="u32", b_type="s32")
            total = sum
        assert total is not None
        return total


@dataclass(frozen=True)
class StageReader:
    """A stage, or the rest of one, for the lanes of a warp: where each finds its planes and its scales."""

    k: KernelBuilder
    layout: StageLayout
    get_planes: Value
    get_scales: Value

    def further(self, value: Value) -> StageReader:
        """From this value on, a multiple of 32."""
        scales = self.k.mad(value, self.layout.rows * 4 * self.layout.scale_words // BLOCK, self.get_scales)
        return replace(self, get_planes=self.get_planes + value, get_scales=scales)

    def digits(self, tile: int, plane: int) -> tuple[Value, ...]:
        """The fragments of `mma` for this tile of rows and the first 64 values: a register for 16."""
        row = plane * self.layout.rows + tile * COLUMN_TILE
        place = Element("shared", self.get_planes.register, row * self.layout.row_bytes, U32)
        matrices: tuple[Value, ...] = self.k.ldmatrix(place.address, num="x4", space="shared")
        return matrices

    def scales(self, tile: int, value: int) -> list[tuple[Value, ...]]:
        """The scale of the block of value number `value`, and its negative sums: of the lane's two rows of a tile."""
        layout, words = self.layout, self.layout.scale_words
        place = layout.scales + 4 * words * (value // BLOCK * layout.rows + tile * COLUMN_TILE)
        loaded: list[Value] = []
        for start in range(0, 2 * words, 4):
            element = Element("shared", self.get_scales.register, place + 4 * start, F32)
            loaded += self.k.load_vector(element, min(4, 2 * words))
        return [tuple(loaded[:words]), tuple(loaded[words:])]
