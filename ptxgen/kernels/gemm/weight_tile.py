"""The rows of weights of a warp: unpacked by its lanes as for `dp4a`, and handed over in its own shared memory as the fragments
that `mma` takes. What a lane loads and unpacks is the format's business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats import Format
from ptxgen.formats.format import LaneAddress
from ptxgen.formats.packed import Run
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32

STEP: Final = 128
"""Values of a row that a warp unpacks at a time: half a super-block, or a few blocks."""

TILE_ROWS: Final = 16
"""Rows of weights of an `mma`."""

PAD: Final = 16
"""Bytes free after what a row has in shared memory, so that eight rows lie in different banks for `ldmatrix`."""

Raw = list[tuple[Value, ...]]
"""What was loaded of a step of a tile, by fragments of the lane."""


@dataclass(frozen=True)
class WeightTileLayout:
    """A tile of 16 rows and a step in shared memory: bytes. The codes, row after row; then the scales, each with its minimum
    where the format has them, by parts of a row with one scale: row r and row r + 8 side by side."""

    format: Format

    @property
    def row_bytes(self) -> int:
        """Bytes from one row's codes to the next."""
        return STEP + PAD

    @property
    def scale_words(self) -> int:
        """f32 of a scale and its minimum."""
        return 2 if self.format.has_minimum else 1

    def scale(self, part: int) -> int:
        """Where the scales of a part of the rows start."""
        return TILE_ROWS * (self.row_bytes + 4 * self.scale_words * part)

    @property
    def bytes(self) -> int:
        """Of all together."""
        return self.scale(STEP // self.format.scale_values)


class WeightTile:
    """16 rows of weights from row `first` on, in shared memory from the byte `base` on. Rows past the last one, `rows` - 1, are
    that row again. A step goes through three hands: `load`, `put`, and, when the warp has met, `codes` and `scales`."""

    signed: bool
    """Whether codes are s8 or u8; known when the first step is put."""

    def __init__(self, k: KernelBuilder, format: Format, length: int, first: Value, rows: int, base: Value) -> None:
        self.k = k
        self.format = format
        self.layout = WeightTileLayout(format)
        self._length = length
        # Neighbouring lanes take the fragments of a row, then those of the next row.
        of_row = STEP // format.fragment_values
        place, row = k.lane % of_row, k.lane // of_row
        sharing = format.columns // format.packed_width
        self._part: Value = place // sharing if sharing > 1 else place
        self._column: Index = place % sharing * format.packed_width if sharing > 1 else 0
        self._first_value = self._part * (format.packed_depth * format.columns) + self._column
        numbers = (first + (row + at if at else row) for at in range(0, TILE_ROWS, WARP_SIZE // of_row))
        self._rows = [k.arg.w.at(k.min(number, rows - 1), 0) for number in numbers]
        self._put_codes = k.mad(row, self.layout.row_bytes, base) + self._first_value
        self._between = WARP_SIZE // of_row
        self._put_row, self._base = row, base
        # Lane l names row l % 8 of the matrix l / 8: the two halves of the rows, then the next 16 values of both.
        matrix_row = (k.lane & 7) + (k.lane & 8)
        self._get_codes = k.mad(matrix_row, self.layout.row_bytes, base) + (k.lane >> 4) * 16
        self._get_scales = k.mad(k.lane >> 2, 8 * self.layout.scale_words, base)

    def load(self, step: Index) -> Raw:
        """Write the loads of the lane's fragments of a step."""
        group = self._group(step)
        return [self.format.load_packed(self.k, self._place(row, step), group) for row in self._rows]

    def put(self, raw: Sequence[Sequence[Value]], step: Index) -> None:
        """Unpack the step that was loaded, and store it for the warp."""
        for number, one in enumerate(raw):
            for run in self.format.unpack(self.k, one, self._group(step)):
                self.signed = run.signed
                self._store_codes(run, number)
                self._store_scale(run, number)

    def further(self, value: Value) -> TileReader:
        """What reads the step from this value of it on, a multiple of 32."""
        layout = self.layout
        per_value = TILE_ROWS * 4 * layout.scale_words // self.format.scale_values
        return TileReader(self.k, layout, self._get_codes + value, self.k.mad(value, per_value, self._get_scales))

    def _group(self, step: Index) -> Index:
        """The group of the lane's fragment in its block."""
        format = self.format
        if format.block <= STEP:
            return self._part % format.packed_groups if format.packed_groups > 1 else 0
        steps = format.block // STEP
        start = step % steps * (format.packed_groups // steps)
        return start + self._part if format.packed_groups > steps else start

    def _place(self, row: GlobalArray, step: Index) -> LaneAddress:
        format, last = self.format, self._length // self.format.block - 1
        if format.block > STEP:
            number = step // (format.block // STEP)
        else:
            of_step = self._part // format.packed_groups if format.packed_groups > 1 else self._part
            number = step * (STEP // format.block) + of_step
            if self._length % STEP:
                number = self.k.min(number, last)  # what stands past the end is not used
        block = advance(row, number, format.block_bytes)
        return LaneAddress(block, advance(block, self._column, 1), self._column)

    def _store_codes(self, run: Run, number: int) -> None:
        place = number * self._between * self.layout.row_bytes + run.offset
        width = min(4, len(run.words))
        for start in range(0, len(run.words), width):
            element = Element("shared", self._put_codes.register, place + 4 * start, U32)
            self.k.store(element, run.words[start : start + width])

    def _store_scale(self, run: Run, number: int) -> None:
        """A scale is stored by the lane whose run starts with its first value."""
        k, shared = self.k, self.format.scale_values
        row = self._put_row + number * self._between if number else self._put_row
        value = self._first_value + run.offset if run.offset else self._first_value
        words = self.layout.scale_words
        pair = k.mad((row & 7) * 2 + (row >> 3), 4 * words, self._base)
        place = k.mad(value // shared, TILE_ROWS * 4 * words, pair)
        element = Element("shared", place.register, self.layout.scale(0), F32)
        scale = (run.scale, run.minimum) if run.minimum is not None else run.scale
        if 4 * len(run.words) == shared:
            k.store(element, scale)
        else:
            with k.when(value % shared == 0):
                k.store(element, scale)


@dataclass(frozen=True)
class TileReader:
    """A step of a tile, or the rest of one, for the lanes of the warp: where each finds its codes and its scales."""

    k: KernelBuilder
    layout: WeightTileLayout
    get_codes: Value
    get_scales: Value

    def codes(self, value: int) -> tuple[Value, ...]:
        """The fragment of `mma` for the 32 values from number `value` on: for 16 values rows r and r + 8, then for
        the next 16."""
        matrices: tuple[Value, ...] = self.k.ldmatrix(
            Element("shared", self.get_codes.register, value, U32).address, num="x4", space="shared"
        )
        return matrices

    def scales(self, value: int) -> list[tuple[Value, ...]]:
        """The scale, and the minimum if there is one, of the value of this number: of the lane's rows, r and r + 8."""
        words = self.layout.scale_words
        start = self.layout.scale(value // self.layout.format.scale_values)
        loaded = self.k.load_vector(Element("shared", self.get_scales.register, start, F32), 2 * words)
        return [tuple(loaded[:words]), tuple(loaded[words:])]
