"""`half_mma_{format}_gemm`: its settings and what follows from them, then how a block of threads goes along k, when integers
become weights there, and in which order sums are added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import Element, GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.half_weights import Pair
from ptxgen.kernels.gemm.block_grid import BlockGrid, BlockPlace, require_warps, warp_place
from ptxgen.kernels.gemm.f16_gemm_type import CATALOGUED, SUM_UNITS, F16GemmType
from ptxgen.kernels.gemm.f16_products import Rows, WindowProducts
from ptxgen.kernels.gemm.weight_tile import TILE_ROWS
from ptxgen.kernels.gemv.iteration import advance, further, kept, load_again, when_below
from ptxgen.kernels.quantize.f16_split import STEPS, TILE, WINDOW, tiles_of
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require, require_room
from ptxgen.target import MAX_STATIC_SHARED, WARP_SIZE
from ptxgen.types import B32, F32

CORES = 2 * TILE * TILE
"""f16 of a part of a step for a tile of activations: two core matrices, which are the right operand of an `mma`."""

# Of activations: every row of weights needs them again.
_KEPT = "L1::evict_last"


@register(format=CATALOGUED)
@dataclass(frozen=True)
class HalfMmaGemm(F16GemmType):
    """Y = X W^T for m rows of an f16 split of activations, by f16 tensor cores: scales are applied once for 256 values.

    y: f32[m, n]; w: u8[n, row_bytes]; halves, scales: as pack_halves writes them, `parts` f16 a value. A row of y has the same
    bits whatever m is and whatever the other rows are; `split` and `chains` alone change them.

    A warp takes 16 row_tiles rows of weights, whose integers it unpacks in its registers, and up to `tile` rows of activations.
    `warps` such warps lie side by side along n, and `split` of them share k, a window of 256 values each in turn, whose sums
    are added in their order. The products of a window go to `chains` sums in turn, none of which waits for the others; they are
    added where scales are applied. Weights are loaded `ahead` windows before they are used. With `pdl` the kernel waits for
    the one before it by itself, after its first loads of weights. With `residual` it adds its result to y in place."""

    name_pattern = "half_mma_{format}_gemm"
    bit_free = ("warps", "row_tiles", "tile", "ahead", "resident_threads", "pdl")
    warps: int = field(default=1, kw_only=True)
    row_tiles: int = field(default=1, kw_only=True)
    split: int = field(default=8, kw_only=True)
    chains: int = field(default=1, kw_only=True)
    tile: int = field(default=32, kw_only=True)
    ahead: int = field(default=1, kw_only=True)
    resident_threads: int = field(default=512, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)
    residual: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "ahead", low=0, high=2)
        require(self, "chains", high=4)
        require_warps(self, self.warps, self.split)
        smaller = "tile", "split", "warps", "row_tiles"
        require_room(self, "the sums of a block", 4 * self.shared_words, MAX_STATIC_SHARED, *smaller)

    @property
    def blocks(self) -> BlockGrid:
        columns = min(tiles_of(self.m) * TILE, self.tile)
        return BlockGrid(self.m, self.k, (self.n,), TILE_ROWS * self.row_tiles * self.warps, columns)

    @property
    def shared_words(self) -> int:
        """f32 of the sums of all warps of a block, where some share k."""
        return 0 if self.split == 1 else self.split * self.blocks.block_rows * self.blocks.columns

    @property
    def chain(self) -> int:
        """The products of a window, those of low registers too, and the sums that they go to; a product and an fma for each of
        its scales and for the minima, an fma of the window; the sums of windows and of warps that share k."""
        products = WINDOW * (self.parts + 1)
        scales = 2 if self.format.half_run == WINDOW // 4 else STEPS
        return SUM_UNITS * products + self.chains - 1 + scales + 2 + -(-self.windows // self.split) + self.split

    def launch(self) -> LaunchConfig:
        threads = WARP_SIZE * self.warps * self.split
        resident = max(1, self.resident_threads // threads)
        return LaunchConfig(grid=self.blocks.groups, block=threads, resident=resident, dependent=self.pdl)

    def emit(self, k: KernelBuilder) -> None:
        block = F16Tile(self, k)
        block.add_rows()
        block.store()

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[HalfMmaGemm]:
        if fixed["format"].name == "Q4_K":
            yield cls(m=3, k=1280, n=17, split=2, chains=3, **fixed)
            wide: dict[str, Any] = {"ahead": 0, "resident_threads": 256}
            yield cls(m=9, k=768, n=33, parts=1, row_tiles=2, split=1, residual=True, **wide, **fixed)
            yield cls(m=9, k=1280, n=33, warps=3, split=2, **wide, **fixed)
        else:
            block = fixed["format"].block
            k, resident = (3 * block, 512) if block == WINDOW else (WINDOW + 3 * block, 384)
            yield cls(m=1, k=k, n=17, split=2, ahead=0, resident_threads=resident, **fixed)


class F16Tile:
    """What a block of threads holds: which rows of both matrices it takes, and the sums of each lane."""

    def __init__(self, kernel: HalfMmaGemm, k: KernelBuilder) -> None:
        self.kernel, self.blocks, self.k = kernel, kernel.blocks, k
        place = BlockPlace(self.blocks, k)
        self.part, self.along_n = warp_place(k, kernel.warps, kernel.split)
        self.first_row: Value = (place.rows * kernel.warps + self.along_n) * (TILE_ROWS * kernel.row_tiles)
        self.column = place.column
        self.lane = kernel.format.half_lane(k, k.lane & 3)
        self.rows = [self._row(i, half) for i in range(kernel.row_tiles) for half in (0, 8)]
        self.totals = [[[k.f32(0.0) for _ in range(4)] for _ in self.places] for _ in range(kernel.row_tiles)]
        self.zero = k.f32(0.0)

    @property
    def places(self) -> range:
        """The block's tiles of rows of activations."""
        return range(self.blocks.column_tiles)

    def _row(self, tile: int, half: int) -> GlobalArray:
        """The lane's row of weights in one half of a tile, clamped to the last row; the duplicate is not stored."""
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
        has fewer. Clamped to the last tile; duplicates are not stored."""
        kernel, k = self.kernel, self.k
        tiles, count = tiles_of(kernel.m), self.blocks.column_tiles
        first = self.column * count
        if tiles % count == 0:
            return [self._tile(first)]
        return [self._tile(k.min(first + place, tiles - 1)) for place in self.places]

    def _tile(self, number: Index) -> GlobalArray:
        start: GlobalArray = self.k.arg.halves.at(number, 0, 0, 0, 0, 0, 0).at(self.k.lane * 2)
        return start

    def _first_load(self, window: Index) -> list[list[Value]]:
        """The loads of a window, as registers that are written again in the loop."""
        last = self.kernel.windows - 1
        inside = min(window, last) if isinstance(window, int) else self.k.min(window, last)
        return kept(self.k, self._load(inside))

    def _loads(self, window: Value, loaded: list[list[list[Value]]], turn: int) -> list[list[Value]]:
        """What was loaded of this window; the loads of one later are written."""
        kernel, k = self.kernel, self.k
        if not kernel.ahead:
            return self._load(window)
        if len(loaded) == kernel.ahead:  # the set of registers that is not used yet
            loaded.append([[k.variable(0, value.type) for value in raw] for raw in loaded[0]])
        later = window + kernel.ahead * kernel.split
        with self._when_inside(later):
            load_again(k, loaded[(turn + kernel.ahead) % len(loaded)], self._load(later))
        return loaded[turn]

    def _load(self, window: Index) -> list[list[Value]]:
        """The loads of all rows of a window."""
        format = self.kernel.format
        per_window = max(1, WINDOW // format.block)
        first = window * per_window if per_window > 1 else window
        whole = per_window > 1 and self.kernel.k % WINDOW == 0
        last = per_window - 1 if whole else self.kernel.k // format.block - 1 - first
        blocks = (advance(row, first, format.block_bytes) for row in self.rows)
        return [list(format.load_halves(self.k, block, self.lane, last)) for block in blocks]

    @contextmanager
    def _when_inside(self, window: Value) -> Iterator[None]:
        with self.k.when(window < self.kernel.windows):
            yield

    def _add_window(self, window: Value, raw: Sequence[Sequence[Value]], of_window: _Activations) -> None:
        """Add the products of a window. Scales are applied where they change, that of the activations once."""
        kernel, k = self.kernel, self.k
        weights = [kernel.format.unpack_halves(k, one, self.lane) for one in raw]
        tiles: list[Rows] = list(zip(weights[::2], weights[1::2], strict=True))
        products = WindowProducts(k, self.blocks.column_tiles, kernel.parts > 1, kernel.chains, self.zero)
        sums = products.sums(tiles, of_window)
        xs = [of_window.scales(place) for place in self.places]
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
        turns = [self.part + first for first in range(0, len(flat), kernel.split)] if kernel.residual else []
        held = [self._held(turn, len(flat)) for turn in turns]
        k.barrier()
        if not kernel.residual:
            for turn in k.strided(self.part, len(flat), step=kernel.split):
                self._store_sum(turn, self._added(k.mad(turn, 4 * WARP_SIZE, mine), of_part))
        for turn, before in zip(turns, held, strict=True):
            with when_below(k, turn, len(flat), kernel.split):
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

        @contextmanager
        def inside() -> Iterator[Element]:
            row, x = self._place(number)
            several = when_below(self.k, number, count, self.kernel.split) if isinstance(number, Value) else nullcontext()
            with several, self._when_stored(row, x) as element:
                yield element

        return self.kernel.epilogue.load(self.k, inside)

    def _store_sum(self, number: Index, sum: Value, before: Value | None = None) -> None:
        """Write the sum of this number among the lane's, or what it comes to with what was there."""
        with self._when_stored(*self._place(number)) as element:
            self.k.store(element, self.kernel.epilogue.value(before, sum))

    @contextmanager
    def _when_stored(self, row: Value, x: Value) -> Iterator[Element]:
        """The threads whose result there is, and its place."""
        kernel, k, blocks = self.kernel, self.k, self.blocks
        with when_below(k, row, kernel.n, blocks.block_rows), when_below(k, x, kernel.m, blocks.columns):
            yield k.arg.y[x, row]

    def _place(self, number: Index) -> tuple[Value, Value]:
        """Where the sum of this number goes: row r + 8 (c // 2) of a tile of weights, row 2 t + c % 2 of a tile of
        activations."""
        k, blocks = self.k, self.blocks
        c, tile = number % 4, number // 4
        place, i = tile % blocks.column_tiles, tile // blocks.column_tiles
        row = self.first_row + (k.lane >> 2) + (i * TILE_ROWS + c // 2 * 8)
        x = (k.lane & 3) * 2 + (place * TILE + c % 2) + self.column * blocks.columns
        return row, x


class _Activations:
    """A window of the block's rows of activations, as its lanes read it from global memory."""

    def __init__(self, tile: F16Tile, window: Value, starts: Sequence[GlobalArray]) -> None:
        self.k, self.kernel, self._columns = tile.k, tile.kernel, tile.blocks.columns
        self._window, self._column = window, tile.column
        size = (STEPS + 1) * self.kernel.parts * CORES
        halves = [advance(start, window, size) for start in starts]
        follow = tile.places[1:] if len(halves) == 1 else ()
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
        first = (k.lane & 3) * 2 + place * TILE + self._column * self._columns
        return [k.load(k.arg.scales[k.min(first + i, kernel.m - 1), self._window]) for i in range(2)]
