"""Quantised activations staged in shared memory by a block, and read there by its lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, Index
from ptxgen.dsl.value import Value
from ptxgen.formats import Format
from ptxgen.kernels.gemv.fragments import FragmentLane, Fragments
from ptxgen.kernels.gemv.lane_planes import LoadedPlanes
from ptxgen.kernels.norm.squares import SumOfSquares, inverse_root
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.target import MAX_STATIC_SHARED, WARP_SIZE
from ptxgen.types import F32, U32, DType

# Planes are padded after so many values, a multiple of what no fragment straddles.
PADDED = 128

PIECE = 16
"""Values (of one plane) that a thread moves at a time, with one 16-byte load."""

MOST_SHARED = 59 * 1024
"""Bytes that all activations of a row may take, where more than MAX_STATIC_SHARED are asked for by the launch: every GPU has
so many for a block. 14336 values of any format take 57344 at most; 17408 of MXFP4, three planes of which take 60928, have more
steps in one piece than a lane's registers hold: 32 bytes are spilt."""

# Pieces that a thread loads before it stores the first.
LOADS_AHEAD = 8

Load = Callable[[Value], Sequence[Value]]
Store = Callable[[Value, Sequence[Value]], None]
"""Write the load, or the store, of the thing of this number: a piece of planes, or the scale (and sum) of a block."""


@cache
def padding(format: Format) -> int:
    """Bytes to leave free after every PADDED planes so that the lanes of a warp meet the fewest bank conflicts."""
    fragments, width = Fragments(format, format.block), min(PIECE, format.packed_width)
    firsts = [fragments.first_value(lane) for lane in range(WARP_SIZE)]
    together = min(WARP_SIZE, 128 // width)  # lanes that shared memory serves at a time

    def conflicts(pad: int) -> int:
        worst = 0
        for start in range(0, WARP_SIZE, together):
            words = {
                (first + first // PADDED * pad) // 4 + i
                for first in firsts[start : start + together]
                for i in range(width // 4)
            }
            banks = [word % 32 for word in words]
            worst = max(worst, max(banks.count(bank) for bank in set(banks)))
        return worst

    return min(range(0, 128, PIECE), key=conflicts)


@dataclass(frozen=True)
class Layout:
    """Where `values` activations of `rows` rows stand in shared memory: bytes. Each plane of a row, padded, the highest first,
    then those of the next row; scales as f32, each with its negative sum behind it where the format has minima."""

    format: Format
    values: int
    rows: int
    digits: int

    def padded(self, value: int) -> int:
        """The byte of a value in its planes."""
        return value + value // PADDED * padding(self.format)

    @property
    def plane_bytes(self) -> int:
        """Bytes of one plane of a row, padded."""
        return -(-self.padded(self.values) // PIECE) * PIECE

    @property
    def scale_bytes(self) -> int:
        """Bytes of a block's scale and sum."""
        return 8 if self.format.has_minimum else 4

    @property
    def row_scale_bytes(self) -> int:
        """Bytes of a row's scales and sums."""
        return self.values // BLOCK * self.scale_bytes

    @property
    def bytes(self) -> int:
        """Of all rows together."""
        return self.rows * (self.digits * self.plane_bytes + self.row_scale_bytes)


def rows_at_once(format: Format, k: int, rows: int, digits: int) -> int:
    """How many of `rows` rows to stage together: all, unless not even one step of them fits shared memory (8 rows of three
    planes); else those of the fewest parts in which it does."""
    step = min(k, Fragments(format, k).values)
    sizes = (-(-rows // parts) for parts in range(1, rows + 1))
    return next(size for size in sizes if Layout(format, step, size, digits).bytes <= MAX_STATIC_SHARED)


def chunks(format: Format, k: int, rows: int, digits: int) -> list[tuple[int, int]]:
    """(first step, steps) of each chunk of `rows` rows whose activations fit shared memory at once: all of a single row in
    MOST_SHARED, else what is static."""
    fragments = Fragments(format, k)
    if Layout(format, k, rows, digits).bytes <= (MOST_SHARED if rows == 1 else MAX_STATIC_SHARED):
        return [(0, fragments.steps)]
    most = 1
    while Layout(format, (most + 1) * fragments.values, rows, digits).bytes <= MAX_STATIC_SHARED:
        most += 1
    return [(first, min(most, fragments.steps - first)) for first in range(0, fragments.steps, most)]


def planes_before(layout: Layout, first: Index) -> Index:
    """Bytes of a row of planes before those of the value `first`, a multiple of what no fragment straddles."""
    return first + first // PADDED * padding(layout.format) if isinstance(first, Value) else layout.padded(first)


@cache
def dynamic_bytes(format: Format, k: int, rows: int, digits: int) -> int:
    """What a launch asks for so that all activations of a row are there at once; 0 where what is static does."""
    whole = Layout(format, k, rows, digits).bytes
    return whole if rows == 1 and MAX_STATIC_SHARED < whole <= MOST_SHARED else 0


class SharedPlanes:
    """The shared memory of a block and the lane's place in it."""

    def __init__(
        self, k: KernelBuilder, layout: Layout, lane: FragmentLane, *, dynamic: bool, norm: NormOfReader | None = None
    ) -> None:
        """dynamic: the launch asks for the memory."""
        self.k = k
        self.layout = layout
        self._norm = norm
        plane_bytes = layout.rows * layout.digits * layout.plane_bytes
        self._planes = k.dynamic_shared(U32).name if dynamic else k.shared(U32, plane_bytes // 4).name
        self._scales = self._planes if dynamic else k.shared(F32, layout.rows * layout.row_scale_bytes // 4).name
        self._scales_start = plane_bytes if dynamic else 0
        self._fragments = Fragments(layout.format, layout.values)
        first = lane.first_value
        padded = planes_before(layout, first)
        self._lane_planes = k.symbol_address(self._planes) + padded
        self._lane_scales = k.symbol_address(self._scales) + (first // BLOCK * layout.scale_bytes + self._scales_start)

    def fill(self, rows: range, first: int, count: int, behind_loads: Callable[[], None] | None = None) -> None:
        """Copy the activations `first` to `first + count - 1` of these rows, by all threads of the block, and wait for each
        other. Loads are written before stores, for several pieces at a time; behind_loads: writes what comes between."""
        k = self.k
        moves: list[Move] = []
        for place, row in enumerate(rows):
            for plane in range(self.layout.digits):
                copy = self._planes_copy(place, row, plane, first)
                moves += [Move(k, *copy, start, count // PIECE) for start in range(0, count // PIECE, k.threads)]
            copy = self._scales_copy(place, row, first)
            moves += [Move(k, *copy, start, count // BLOCK) for start in range(0, count // BLOCK, k.threads)]
        self._move(moves, behind_loads)

    def fill_from(self, rows: range, first: Value, total: int) -> None:
        """As `fill`, as many activations as there is room for, from the block of activations number `first` on: known when the
        kernel runs. Past the end of a row, which has `total`, stands the last piece or scale again, for nobody."""
        k, layout = self.k, self.layout
        moves: list[Move] = []
        pieces, blocks = layout.values // PIECE, layout.values // BLOCK
        for start in range(0, pieces, k.threads):
            source = self._clamped(first * (BLOCK // PIECE), start, pieces, total // PIECE)
            for place, row in enumerate(rows):
                for plane in range(layout.digits):
                    moves.append(Move(k, *self._planes_copy(place, row, plane, 0), start, pieces, source))
        for start in range(0, blocks, k.threads):
            source = self._clamped(first, start, blocks, total // BLOCK)
            for place, row in enumerate(rows):
                moves.append(Move(k, *self._scales_copy(place, row, 0), start, blocks, source))
        self._move(moves)

    def _planes_copy(self, place: int, row: int, plane: int, first: int) -> tuple[Load, Store]:
        """Of a plane of a row, from value `first` on, to the row at this place; in pieces."""
        k, layout = self.k, self.layout
        source = k.arg.digits.at(row, plane, first)
        target, pad = (place * layout.digits + plane) * layout.plane_bytes, padding(layout.format)

        def load(piece: Value) -> Sequence[Value]:
            return k.load_vector(source.at(piece * PIECE)[0], 4, U32)

        def store(piece: Value, words: Sequence[Value]) -> None:
            byte = piece * PIECE
            if pad:
                byte = k.mad(piece // (PADDED // PIECE), pad, byte)
            base = k.symbol_address(self._planes) + byte
            k.store(Element("shared", base.register, target, U32), words)

        return load, store

    def _scales_copy(self, place: int, row: int, first: int) -> tuple[Load, Store]:
        """Of a row's scales, each with its negative sum where the format has minima; by blocks of activations."""
        k, layout = self.k, self.layout
        scales, sums = k.arg.scales.at(row, first // BLOCK), k.arg.sums.at(row, first // BLOCK)
        target = place * layout.row_scale_bytes + self._scales_start

        def load(block: Value) -> Sequence[Value]:
            return [k.load(array.at(block)[0]) for array in (scales, sums)[: 1 + layout.format.has_minimum]]

        def store(block: Value, loaded: Sequence[Value]) -> None:
            base = k.symbol_address(self._scales) + block * layout.scale_bytes
            scale, *total = loaded
            if self._norm is not None:
                scale = scale * self._norm.factor
            k.store(Element("shared", base.register, target, F32), (scale, -(scale * k.f32(total[0]))) if total else scale)

        return load, store

    def _clamped(self, first: Value, start: int, count: int, total: int) -> Value:
        place = first + (self.k.tid.x + start if start else self.k.tid.x)
        return self.k.min(place, total - 1) if start + self.k.threads > count or total % count else place

    def _move(self, moves: Sequence[Move], behind_loads: Callable[[], None] | None = None) -> None:
        if self._norm is not None:
            self._norm.load()
        for start in range(0, len(moves), LOADS_AHEAD):
            some = moves[start : start + LOADS_AHEAD]
            for move in some:
                move.load()
            if behind_loads is not None and start == 0:
                behind_loads()
            if self._norm is not None and start == 0:
                self._norm.add()
            for move in some:
                move.store()
        self.k.barrier()

    def read(self, place: int, step: Index, more: int = 0) -> SharedLanePlanes:
        """What the lane's fragment meets in step `step + more` of the chunk that is staged, in the row at this place among
        the staged ones."""
        return SharedLanePlanes(self.k, self.layout, self._fragments, self._lane_planes, self._lane_scales, place, step, more)


class NormOfReader:
    """What the scales of planes of gamma * x are multiplied by, where the one who reads them normalises x: 1 / sqrt(mean(x^2) +
    eps) of a row of `size` values. k.arg.squares: f32[size / 32], the sum of the squares of each block; k.arg.eps."""

    def __init__(self, k: KernelBuilder, size: int) -> None:
        self._k, self._size = k, size

    def load(self) -> None:
        """Write the loads."""
        self._sum = SumOfSquares(self._k, self._k.arg.squares, self._size // BLOCK)

    def add(self) -> None:
        """Write all else: behind the loads of the planes, for a root has branches that loads are not moved across."""
        self.factor: Value = inverse_root(self._k, self._sum.total(), self._size, self._k.arg.eps)


class Move:
    """One thread's part of a copy of `count` things, those from `start` on: thread t takes number start + t. `source` is which
    thing of the source that is, where the source does not start with the first of them."""

    def __init__(self, k: KernelBuilder, load: Load, store: Store, start: int, count: int, source: Value | None = None) -> None:
        self._k, self._load, self._store = k, load, store
        self._beyond = start + k.threads > count
        self._target = k.tid.x + start if start else k.tid.x
        self._count = count
        self._source = source

    def load(self) -> None:
        """Write the load; threads past the end load the last thing again, so that loads need no branch."""
        source = self._source
        if source is None:
            source = self._k.min(self._target, self._count - 1) if self._beyond else self._target
        self._loaded = self._load(source)

    def store(self) -> None:
        """Write the store, in a branch where threads are left over."""
        with self._k.when(self._target < self._count) if self._beyond else nullcontext():
            self._store(self._target, self._loaded)


class SharedLanePlanes(LoadedPlanes):
    """Int8 planes of activations in shared memory: those of the fragment that the lane has in step `step + more`. lane_planes
    and lane_scales: where those of the first step stand of the row at place 0."""

    def __init__(
        self,
        k: KernelBuilder,
        layout: Layout,
        fragments: Fragments,
        lane_planes: Value,
        lane_scales: Value,
        place: int,
        step: Index,
        more: int = 0,
    ) -> None:
        super().__init__(k, layout.digits)
        self._layout, self._two_blocks = layout, fragments.format.fragment_values % (2 * BLOCK) == 0
        digits, scales = layout.padded(fragments.values), fragments.values // BLOCK * layout.scale_bytes
        self._planes, self._plane_offset = self._moved(lane_planes, step, digits)
        self._scales, self._scale_offset = self._moved(lane_scales, step, scales)
        self._plane_offset += place * layout.digits * layout.plane_bytes + more * digits
        self._scale_offset += place * layout.row_scale_bytes + more * scales

    def _moved(self, place: Value, step: Index, stride: int) -> tuple[Value, int]:
        if isinstance(step, int):
            return place, step * stride
        return self.k.mad(step, stride, place), 0

    def load_words(self, plane: int, offset: int, count: int) -> Sequence[Value]:
        """See LoadedDigits."""
        element = self._element(self._planes, self._plane_offset + plane * self._layout.plane_bytes + offset, U32)
        return [self.k.load(element)] if count == 1 else self.k.load_vector(element, count)

    def load_block(self, block: int) -> tuple[Value, Value | None]:
        """See LoadedDigits."""
        element = self._element(self._scales, self._scale_offset + block * self._layout.scale_bytes, F32)
        if not self._layout.format.has_minimum:
            return self.k.load(element), None
        if self._two_blocks and block % 2 == 0:
            # The fragment has the next block, too, and 16 bytes come at the price of 8.
            scale, total, self._scales_of[block + 1], self._sums_of[block + 1] = self.k.load_vector(element, 4)
            return scale, total
        scale, total = self.k.load_vector(element, 2)
        return scale, total

    def _element(self, base: Value, offset: int, type: DType) -> Element:
        return Element("shared", base.register, offset, type)
