"""A block of threads of `half_mma_{format}_gemm`: how it goes along k, what its lanes multiply, when integers become weights,
and in which order sums are added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.half_weights import Pair
from ptxgen.kernels.gemm.half_products import Rows, WindowProducts
from ptxgen.kernels.gemm.weight_tile import TILE_ROWS
from ptxgen.kernels.gemv.iteration import advance, further
from ptxgen.kernels.quantize.activation_halves import STEPS, TILE, WINDOW, tiles_of
from ptxgen.target import WARP_SIZE
from ptxgen.types import B32, F32

if TYPE_CHECKING:
    from ptxgen.kernels.gemm.half_mma_gemm import HalfMmaGemm

CORES = 2 * TILE * TILE
"""f16 of a part of a step for a tile of activations: two core matrices, which are the right operand of an `mma`."""

# Of activations: every row of weights needs them again.
_KEPT = "L1::evict_last"


class HalfTile:
    """What a block of threads holds: which rows of both matrices it takes, and the sums of each lane."""

    def __init__(self, kernel: HalfMmaGemm, k: KernelBuilder) -> None:
        self.kernel = kernel
        self.k = k
        columns = -(-kernel.m // kernel.block_columns)
        # Blocks with the same weights follow each other, so that these come from the L2 cache for all but one.
        number, column = (k.ctaid.x // columns, k.ctaid.x % columns) if columns > 1 else (k.ctaid.x, None)
        self.part, self.along_n = self._warp_place()
        self.first_row: Value = (number * kernel.warps + self.along_n) * (TILE_ROWS * kernel.row_tiles)
        self.column: Index = column if column is not None else 0
        self.lane = kernel.format.half_lane(k, k.lane & 3)
        self.rows = [self._row(i, half) for i in range(kernel.row_tiles) for half in (0, 8)]
        self.totals = [
            [[k.f32(0.0) for _ in range(4)] for _ in range(kernel.column_tiles)] for _ in range(kernel.row_tiles)
        ]  # fmt: skip
        self.zero = k.f32(0.0)

    def _warp_place(self) -> tuple[Index, Index]:
        """Which part of k a warp takes, and its place along n."""
        kernel, k = self.kernel, self.k
        if kernel.split == 1:
            return 0, k.warp
        return (k.warp, 0) if kernel.warps == 1 else (k.warp // kernel.warps, k.warp % kernel.warps)

    def _row(self, tile: int, half: int) -> GlobalArray:
        """The lane's row of weights in one half of a tile; past the last one that again, which nobody stores."""
        row = self.first_row + ((self.k.lane >> 2) + (TILE_ROWS * tile + half))
        start: GlobalArray = self.k.arg.w.at(self.k.min(row, self.kernel.n - 1), 0)
        return start

    def add_rows(self) -> None:
        """Add the products of the warp's windows: every split-th from its part on. The weights of a window are loaded into
        registers of their own while those before are multiplied, so one window more than are loaded ahead is written out."""
        kernel, k = self.kernel, self.k
        split, sets = kernel.split, kernel.ahead + 1
        loaded = [self._first_load(self.part + ahead * split) for ahead in range(kernel.ahead)]
        if kernel.pdl:
            k.griddepcontrol(action="wait")
            k.griddepcontrol(action="launch_dependents")
        activations = self._activations()
        for first in k.strided(self.part, kernel.windows, step=split * sets):
            for turn in range(sets):
                window = first + turn * split if turn else first
                with self._when_inside(window) if turn else nullcontext():
                    raw = self._loads(window, loaded, turn)
                    self._add_window(window, raw, _Activations(self, window, activations))

    def _activations(self) -> list[GlobalArray]:
        """Where the lane's activations start: in the block's first tile, which the others follow; in each where the last block
        has fewer. Past the last tile that again, which nobody stores."""
        kernel, k = self.kernel, self.k
        tiles, count = tiles_of(kernel.m), kernel.column_tiles
        first = self.column * count
        if tiles % count == 0:
            return [self._tile(first)]
        return [self._tile(k.min(first + place, tiles - 1)) for place in range(count)]

    def _tile(self, number: Index) -> GlobalArray:
        start: GlobalArray = self.k.arg.halves.at(number, 0, 0, 0, 0, 0, 0).at(self.k.lane * 2)
        return start

    def _first_load(self, window: Index) -> list[list[Value]]:
        """The loads of a window, as registers that are written again in the loop."""
        last = self.kernel.windows - 1
        inside = min(window, last) if isinstance(window, int) else self.k.min(window, last)
        return [[self.k.variable(value, value.type) for value in raw] for raw in self._load(inside)]

    def _loads(self, window: Value, loaded: list[list[list[Value]]], turn: int) -> list[list[Value]]:
        """What was loaded of this window; the loads of one later are written."""
        kernel, k = self.kernel, self.k
        if not kernel.ahead:
            return self._load(window)
        if len(loaded) == kernel.ahead:  # the set of registers that nobody uses yet
            loaded.append([[k.variable(0, value.type) for value in raw] for raw in loaded[0]])
        later = window + kernel.ahead * kernel.split
        with self._when_inside(later):
            for old, new in zip(loaded[(turn + kernel.ahead) % len(loaded)], self._load(later), strict=True):
                for variable, value in zip(old, new, strict=True):
                    k.assign(variable, value)
        return loaded[turn]

    def _load(self, window: Index) -> list[list[Value]]:
        """The loads of all rows of a window."""
        format = self.kernel.format
        per_window = max(1, WINDOW // format.block)
        first = window * per_window if per_window > 1 else window
        whole = per_window > 1 and self.kernel.k % WINDOW == 0
        last = per_window - 1 if whole else self.kernel.k // format.block - 1 - first
        return [
            list(format.load_halves(self.k, advance(row, first, format.block_bytes), self.lane, last)) for row in self.rows
        ]  # fmt: skip

    @contextmanager
    def _when_inside(self, window: Value) -> Iterator[None]:
        with self.k.when(window < self.kernel.windows):
            yield

    def _add_window(self, window: Value, raw: Sequence[Sequence[Value]], of_window: _Activations) -> None:
        """Add the products of a window. Scales are applied where they change, that of the activations once."""
        kernel, k = self.kernel, self.k
        weights = [kernel.format.unpack_halves(k, one, self.lane) for one in raw]
        tiles: list[Rows] = list(zip(weights[::2], weights[1::2], strict=True))
        products = WindowProducts(k, kernel.column_tiles, kernel.parts > 1, kernel.chains, self.zero)
        sums = products.sums(tiles, of_window)
        xs = [of_window.scales(place) for place in range(kernel.column_tiles)]
        for totals, of_rows in zip(self.totals, sums, strict=True):
            for four, added, x in zip(totals, of_rows, xs, strict=True):
                for c, (total, one) in enumerate(zip(four, added, strict=True)):
                    k.assign(total, k.fma(x[c % 2], one, total))

    def store(self) -> None:
        """Add up the parts of k and write what is inside the result."""
        kernel, k = self.kernel, self.k
        flat = [total for tile in self.totals for four in tile for total in four]
        if not isinstance(self.part, Value):
            held = [self._held(number, len(flat)) for number in range(len(flat))]
            for number, total in enumerate(flat):
                self._store_sum(number, total, held[number])
            return
        shared = k.symbol_address(k.shared(F32, kernel.shared_words).name)
        of_part = WARP_SIZE * len(flat) * kernel.warps
        mine = shared + (self.along_n * (WARP_SIZE * len(flat)) + k.lane) * 4
        target = k.mad(self.part, 4 * of_part, mine)
        for number, total in enumerate(flat):
            k.store(Element("shared", target.register, number * 4 * WARP_SIZE, F32), total)
        # The warps of the parts take the sums in turns: written out where what they are added to is under way meanwhile.
        turns = [self.part + first for first in range(0, len(flat), kernel.split)] if kernel.onto else []
        held = [self._held(turn, len(flat)) for turn in turns]
        k.barrier()
        if not kernel.onto:
            for turn in k.strided(self.part, len(flat), step=kernel.split):
                self._store_sum(turn, self._added(k.mad(turn, 4 * WARP_SIZE, mine), of_part))
        for turn, before in zip(turns, held, strict=True):
            with self._when_below(turn, len(flat), kernel.split):
                self._store_sum(turn, self._added(k.mad(turn, 4 * WARP_SIZE, mine), of_part), before)

    def _added(self, base: Value, of_part: int) -> Value:
        """The sum of all parts of k whose first lies at `base`."""
        k = self.k
        sum = k.load(Element("shared", base.register, 0, F32))
        for part in range(1, self.kernel.split):
            sum = sum + k.load(Element("shared", base.register, part * 4 * of_part, F32))
        return sum

    def _held(self, number: Index, count: int) -> Value | None:
        """What y holds where the sum of this number, one of `count`, goes, if it is added to that."""
        kernel, k = self.kernel, self.k
        if not kernel.onto:
            return None
        before = k.f32(0.0)
        row, x = self._place(number)
        with (
            self._when_below(number, count, kernel.split) if isinstance(number, Value) else nullcontext(),
            self._when_below(row, kernel.n, kernel.block_rows),
            self._when_below(x, kernel.m, kernel.block_columns),
        ):
            before @= k.load(k.arg.y[x, row])
        return before

    def _store_sum(self, number: Index, sum: Value, before: Value | None = None) -> None:
        """Write the sum of this number among the lane's, or what it comes to with what was there."""
        kernel, k = self.kernel, self.k
        row, x = self._place(number)
        with self._when_below(row, kernel.n, kernel.block_rows), self._when_below(x, kernel.m, kernel.block_columns):
            k.store(k.arg.y[x, row], sum if before is None else before + sum)

    def _place(self, number: Index) -> tuple[Value, Value]:
        """Where the sum of this number goes: row r + 8 (c // 2) of a tile of weights, row 2 t + c % 2 of a tile of
        activations."""
        kernel, k = self.kernel, self.k
        c, tile = number % 4, number // 4
        place, i = tile % kernel.column_tiles, tile // kernel.column_tiles
        row = self.first_row + (k.lane >> 2) + (i * TILE_ROWS + c // 2 * 8)
        x = (k.lane & 3) * 2 + (place * TILE + c % 2) + self.column * kernel.block_columns
        return row, x

    def _when_below(self, number: Value, count: int, share: int) -> AbstractContextManager[None]:
        return nullcontext() if count % share == 0 else self.k.when(number < count)


class _Activations:
    """A window of the block's rows of activations, as its lanes read it from global memory."""

    def __init__(self, tile: HalfTile, window: Value, starts: Sequence[GlobalArray]) -> None:
        self.k, self.kernel = tile.k, tile.kernel
        self._window, self._column = window, tile.column
        size = (STEPS + 1) * self.kernel.parts * CORES
        halves = [advance(start, window, size) for start in starts]
        follow = range(1, self.kernel.column_tiles) if len(halves) == 1 else ()
        self._tiles = [*halves, *(further(halves[0], place * self.kernel.windows * size) for place in follow)]

    def parts(self, place: int, number: int) -> list[Pair]:
        """As ActivationWindow."""
        kernel, k = self.kernel, self.k
        start = number * kernel.parts * CORES
        words = [k.load(self._tiles[place][start + i * CORES // 2], B32, evict=_KEPT) for i in range(2 * kernel.parts)]
        return list(zip(words[::2], words[1::2], strict=True))

    def scales(self, place: int) -> list[Value]:
        """Those of the lane's two rows of a tile; past the last row those of that again."""
        kernel, k = self.kernel, self.k
        first = (k.lane & 3) * 2 + place * TILE + self._column * kernel.block_columns
        return [k.load(k.arg.scales[k.min(first + i, kernel.m - 1), self._window]) for i in range(2)]
