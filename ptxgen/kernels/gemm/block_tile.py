"""A block of threads of `mma_{format}_gemm`: how it goes along k, what its lanes multiply and when sums become numbers, and in
which order these are added."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Literal

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, Index
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemm.staged_digits import COLUMN_TILE, StagedDigits, StageLayout, StageReader
from ptxgen.kernels.gemm.weight_tile import STEP, TILE_ROWS, TileLayout, TileReader, WeightTile
from ptxgen.kernels.quantize.activation_digits import BLOCK
from ptxgen.target import FULL_WARP, WARP_SIZE
from ptxgen.types import F32, S32, U32

if TYPE_CHECKING:
    from ptxgen.kernels.gemm.mma_gemm import MmaGemm

Columns = Sequence[Sequence[Value]]
"""The registers of the second operand of `mma` for a block of activations, by digit."""

PAIR: Final = 2 * BLOCK
"""Values of a row of activations that one load of fragments brings."""


class SharedLayout:
    """The shared memory of a block: bytes. The stages of each part of k, then the tiles of each warp; in the end, over both,
    the sums of the warps that are to be added to those of the first part of k."""

    def __init__(self, kernel: MmaGemm) -> None:
        self.stage = StageLayout(kernel.format, kernel.block_columns, kernel.digits, kernel.steps * STEP)
        self.buffers = min(2, kernel.stages)
        self.tile = TileLayout(kernel.format)
        self.sums_of_warp = 4 * WARP_SIZE * kernel.row_tiles * kernel.column_tiles * 4
        self.stages = self.buffers * self.stage.bytes
        self.tiles = kernel.split * self.stages
        self.tiles_of_warp = kernel.row_tiles * self.tile.bytes
        last = self.tiles + kernel.split * kernel.warps * self.tiles_of_warp
        self.bytes = max(last, (kernel.split - 1) * kernel.warps * self.sums_of_warp)


class BlockTile:
    """What a block of threads holds: which rows of both matrices it takes, where, and the sums of each lane."""

    def __init__(self, kernel: MmaGemm, k: KernelBuilder) -> None:
        self.kernel = kernel
        self.k = k
        self.layout = layout = kernel.shared
        columns = -(-kernel.m // kernel.block_columns)
        # Blocks with the same weights follow each other, so that these come from the L2 cache for all but one.
        number, column = (k.ctaid.x // columns, k.ctaid.x % columns) if columns > 1 else (k.ctaid.x, None)
        self.part, self.along_n = self._warp_place()
        self.first_row: Value = (number * kernel.warps + self.along_n) * (TILE_ROWS * kernel.row_tiles)
        self.first_column: Index = column * kernel.block_columns if column is not None else 0
        self.base = k.symbol_address(k.shared(U32, layout.bytes // 4).name)
        self.tiles = [self._weight_tile(i) for i in range(kernel.row_tiles)]
        self.staged = self._staged()
        self.starts = [[k.variable(_start_bits(kernel.digits, digit), S32) for _ in range(4)] for digit in range(kernel.digits)]
        self.totals = [
            [[k.f32(0.0) for _ in range(4)] for _ in range(kernel.column_tiles)] for _ in range(kernel.row_tiles)
        ]  # fmt: skip

    def _warp_place(self) -> tuple[Index, Index]:
        """Which part of k a warp takes, and its place along n."""
        kernel, k = self.kernel, self.k
        if kernel.split == 1:
            return 0, k.warp
        return (k.warp, 0) if kernel.warps == 1 else (k.warp // kernel.warps, k.warp % kernel.warps)

    def _weight_tile(self, i: int) -> WeightTile:
        kernel, k, layout = self.kernel, self.k, self.layout
        base = k.mad(k.warp, layout.tiles_of_warp, self.base) + (layout.tiles + i * layout.tile.bytes)
        first = self.first_row + i * TILE_ROWS if i else self.first_row
        return WeightTile(k, kernel.format, kernel.k, first, kernel.n, base)

    def _staged(self) -> StagedDigits:
        kernel, k, layout = self.kernel, self.k, self.layout
        threads = kernel.warps * WARP_SIZE
        thread = k.tid.x if kernel.split == 1 else k.tid.x % threads
        base = k.mad(self.part, layout.stages, self.base) if isinstance(self.part, Value) else self.base
        return StagedDigits(
            k, layout.stage, base, kernel.stages, thread, threads, self.first_column, kernel.m, self._first_step * STEP,
            (kernel.split - 1) * kernel.part_steps * STEP, kernel.k,
        )  # fmt: skip

    @property
    def _first_step(self) -> Index:
        """The first step of the warp's part of k."""
        return self.part * self.kernel.part_steps

    def add_row(self) -> None:
        """Add the products of the warp's part of k. The weights of a step are loaded while those before are multiplied, into
        registers of their own, so as many steps as are loaded ahead are written out."""
        kernel, k = self.kernel, self.k
        raw = [self._first_loads(step) for step in range(kernel.ahead)]
        if kernel.pdl:
            k.griddepcontrol(action="wait")
        self.staged.fetch(0)
        self.staged.put(0)
        if kernel.pdl:
            k.griddepcontrol(action="launch_dependents")
        written = max(1, kernel.ahead // kernel.steps)
        for first in self._counted(kernel.stages, written):
            for further in range(min(written, kernel.stages)):
                stage = first + further if further else first
                with self._when(stage, kernel.stages) if further and kernel.stages % written else nullcontext():
                    self._add_stage(stage, raw[further * kernel.steps :])

    def _first_loads(self, step: int) -> list[list[list[Value]]]:
        """The loads of a step of the part of k, by tile and fragment, as registers that a loop hands on."""
        k, place = self.k, self._step_inside(self._first_step + step)
        loaded = [tile.load(place) for tile in self.tiles]
        return [[[k.variable(value, value.type) for value in one] for one in raw] for raw in loaded]

    def _step_inside(self, step: Index) -> Index:
        """The step, or the last one of the row, which nobody uses there."""
        last = self.kernel.row_steps - 1
        return min(step, last) if isinstance(step, int) else self.k.min(step, last)

    def _add_stage(self, stage: Index, raw: Sequence[Sequence[list[list[Value]]]]) -> None:
        """Add a stage of activations, whose steps take turns with the registers of those that are loaded ahead."""
        kernel = self.kernel
        self.staged.arrive()
        self.staged.fetch(stage + 1)
        turns = min(kernel.ahead, kernel.steps)
        for inside in self._counted(kernel.steps, turns):
            for turn in range(turns):
                in_stage = inside + turn if turn else inside
                number = stage * kernel.steps + in_stage if kernel.steps > 1 else stage
                self._add_loaded(number, self.staged.reader(stage, in_stage * STEP), raw[turn])
        self.staged.put(stage + 1)

    def _add_loaded(self, number: Index, activations: StageReader, raw: Sequence[list[list[Value]]]) -> None:
        """Add step `number` of the part of k, whose weights are loaded, and load those of a later step in their place."""
        kernel, k = self.kernel, self.k
        step = self._first_step + number
        with self._when_inside(number, step):
            for tile, one in zip(self.tiles, raw, strict=True):
                tile.put(one, step)
            for tile, one in zip(self.tiles, raw, strict=True):
                self._load_again(tile, one, step + kernel.ahead)
            k.bar_warp_sync(FULL_WARP)
            self._add_step(activations, step)
            k.bar_warp_sync(FULL_WARP)

    def _counted(self, count: int, step: int = 1) -> Iterator[Index]:
        return iter([0]) if count <= step else self.k.strided(0, count, step=step)

    def _when(self, number: Index, count: int) -> AbstractContextManager[None]:
        return self.k.when(self.k.u32(number) < count)

    def _load_again(self, tile: WeightTile, raw: list[list[Value]], step: Index) -> None:
        """Load a step into the registers of one before."""
        if isinstance(step, int) and step >= self.kernel.row_steps:
            return
        for old, new in zip(raw, tile.load(self._step_inside(step)), strict=True):
            for variable, value in zip(old, new, strict=True):
                self.k.assign(variable, value)

    @contextmanager
    def _when_inside(self, number: Index, step: Index) -> Iterator[None]:
        """Around step `number` of the part of k, and `step` of the row: the last stage and the last part may have fewer."""
        kernel = self.kernel
        whole_stages, whole_parts = kernel.part_steps % kernel.steps == 0, kernel.row_steps % kernel.split == 0
        with (
            nullcontext() if whole_stages else self._when(number, kernel.part_steps),
            nullcontext() if whole_parts else self._when(step, kernel.row_steps),
        ):
            yield

    def _add_step(self, activations: StageReader, step: Index) -> None:
        """Add the products of a step, a pair of blocks at a time: a loop, so that no more than these are in registers."""
        blocks = (0, BLOCK)
        for start in self.k.strided(0, STEP, step=PAIR):
            weights, activations_here = [tile.further(start) for tile in self.tiles], activations.further(start)
            codes = [[tile.codes(block) for tile in weights] for block in blocks]
            scales = [[self._scales(tile, block) for tile in weights] for block in blocks]
            for place in range(self.kernel.column_tiles):
                digits = [activations_here.digits(place, digit) for digit in range(self.kernel.digits)]
                for number, block in enumerate(blocks):
                    columns = [one[2 * number : 2 * number + 2] for one in digits]
                    with self._when_block_inside(step, start + block):
                        xs = activations_here.scales(place, block)
                        for i in range(len(weights)):
                            sums = self._products(codes[number][i], columns, signed=self.tiles[i].signed)
                            self._add_block(self.totals[i][place], sums, scales[number][i], xs)

    def _when_block_inside(self, step: Index, value: Value) -> AbstractContextManager[None]:
        """Around what is done to the block that starts at `value` of a step: the last step may have fewer."""
        if self.kernel.k % STEP == 0:
            return nullcontext()
        return self._when(step * (STEP // BLOCK) + value // BLOCK, self.kernel.k // BLOCK)

    def _scales(self, tile: TileReader, value: int) -> list[list[tuple[Value, ...]]]:
        """The scales of a block, by part of it with one scale, and rows r and r + 8."""
        return [tile.scales(value + part) for part in range(0, BLOCK, self.kernel.format.scale_values)]

    def _products(self, codes: Sequence[Value], columns: Columns, signed: bool) -> list[list[Sequence[Value]]]:
        """The sums of a block's products, s32, by part with one scale and digit: four of the lane each."""
        parts = 2 if self.kernel.halves else 1
        of_codes, of_columns = len(codes) // parts, 2 // parts
        a_type: Literal["s8", "u8"] = "s8" if signed else "u8"

        def multiply(part: int, column: Sequence[Value], start: Sequence[Value]) -> Sequence[Value]:
            a = codes[part * of_codes : (part + 1) * of_codes]
            b = column[part * of_columns : (part + 1) * of_columns]
            return self.k.mma(a, b, start, a_type=a_type, b_type="s8")

        pairs = list(zip(columns, self.starts, strict=True))
        return [[multiply(part, column, start) for column, start in pairs] for part in range(parts)]

    def _add_block(
        self, totals: Sequence[Value], sums: Sequence[Sequence[Sequence[Value]]], scales: Sequence[Sequence[Sequence[Value]]],
        xs: Sequence[Sequence[Value]],
    ) -> None:  # fmt: skip
        """Add a block to the lane's four sums: x's scale times (scale times sum of products, for both halves), less the minima.
        Sum number c is of row r + 8 (c // 2) of the weights and the lane's row c % 2 of the activations."""
        k = self.k
        for c, total in enumerate(totals):
            x, *negative = xs[c % 2]
            added: Value | None = None
            for of_part, of_rows in zip(sums, scales, strict=True):
                scale = of_rows[c // 2][0]
                added = self._scaled(scale, [k.bits(of_digit[c], F32) for of_digit in of_part], added)
            assert added is not None
            new = k.fma(x, added, total)
            for of_rows, sum in zip(scales, negative, strict=False):
                new = k.fma(of_rows[c // 2][1], sum, new)
            k.assign(total, new)

    def _scaled(self, scale: Value, sums: Sequence[Value], before: Value | None) -> Value:
        """before + scale times what the sums of all digits come to. These are floats whose lower bits are the sums (`_start`),
        so no conversion is needed. Of one digit scale times its start, taken off in the fma, is exact: a scale is the product
        of an f16 and a code of 8 bits at most, and the start has two bits. Of more the first sum, less what all started with,
        is exact; so is the addition of the second where the two come to under 2^24; the last one is rounded once, if at all."""
        k, digits = self.k, self.kernel.digits
        if digits == 1 and before is None:
            scaled: Value = k.fma(scale, sums[0], scale * -_start(1, 0))
            return scaled
        number = sums[0] - sum(_start(digits, digit) for digit in range(digits))
        for other in sums[1:]:
            number = number + other
        return k.fma(scale, number, before) if before is not None else scale * number

    def store(self) -> None:
        """Add up the parts of k and write what is inside the result."""
        kernel, k = self.kernel, self.k
        if not isinstance(self.part, Value):
            self._store_rows()
            return
        k.barrier()  # the sums go where weights and activations were
        with k.when(self.part >= 1):
            base = self._sums_of(self.part - 1)
            for number, total in enumerate(self._flat()):
                k.store(Element("shared", base.register, number * 4 * WARP_SIZE, F32), total)
        k.barrier()
        with k.when(self.part == 0):
            for part in range(1, kernel.split):
                base = self._sums_of(part - 1)
                for number, total in enumerate(self._flat()):
                    k.assign(total, total + k.load(Element("shared", base.register, number * 4 * WARP_SIZE, F32)))
            self._store_rows()

    def _flat(self) -> list[Value]:
        return [total for tile in self.totals for four in tile for total in four]

    def _sums_of(self, part: Index) -> Value:
        """Where the lane finds the sums of the warp at its place along n, of this part of k (less one)."""
        warp = part * self.kernel.warps + self.along_n
        lane = self.k.lane * 4
        if isinstance(warp, int):
            return self.base + (lane + warp * self.layout.sums_of_warp)
        place: Value = self.k.mad(warp, self.layout.sums_of_warp, self.base + lane)
        return place

    def _store_rows(self) -> None:
        kernel, k = self.kernel, self.k
        row = self.first_row + (k.lane >> 2)
        column = (k.lane & 3) * 2 + self.first_column
        for i, tiles in enumerate(self.totals):
            for place, totals in enumerate(tiles):
                for c, total in enumerate(totals):
                    at = row + (i * TILE_ROWS + c // 2 * 8)
                    x = column + (place * COLUMN_TILE + c % 2)
                    with self._when_below(at, kernel.n, kernel.block_rows), self._when_below(x, kernel.m, kernel.block_columns):
                        k.store(k.arg.y[x, at], total)

    def _when_below(self, number: Value, count: int, share: int) -> AbstractContextManager[None]:
        return nullcontext() if count % share == 0 else self.k.when(number < count)


def _start(digits: int, digit: int) -> float:
    """What the sums of a digit start with, as a float: 1.5 * 2^23 times what the digit counts. A sum of 32 products of a code
    and a digit is under 2^20 (255 * 128 * 32), so it changes the lower bits of the mantissa alone, by the unit that it counts:
    the bits are those of the float of start plus sum times 256^i."""
    return 1.5 * 2.0 ** (23 + 8 * (digits - 1 - digit))


def _start_bits(digits: int, digit: int) -> int:
    return int.from_bytes(struct.pack("<f", _start(digits, digit)), "little")
