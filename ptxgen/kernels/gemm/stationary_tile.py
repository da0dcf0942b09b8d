"""A block of threads of `stationary_{format}_gemm`: activations in registers, weights that come through a ring in shared
memory, sums in shared memory, and in which order these are added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import TYPE_CHECKING

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.half_weights import Pair
from ptxgen.kernels.gemm.half_products import WindowProducts
from ptxgen.kernels.gemm.sliced_gemm import SlicedBlock, added, apart
from ptxgen.kernels.gemm.staged_halves import PIECE
from ptxgen.kernels.gemm.staged_weights import StagedWeights
from ptxgen.kernels.gemm.weight_tile import TILE_ROWS
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.kernels.joined import MatrixOfBlock
from ptxgen.kernels.quantize.activation_halves import STEPS, TILE, tiles_of
from ptxgen.target import FULL_WARP, WARP_SIZE
from ptxgen.types import B32, F32, U32

if TYPE_CHECKING:
    from ptxgen.kernels.gemm.stationary_gemm import StationaryGemm


SHARE = PIECE * WARP_SIZE
"""Bytes of a piece of every lane."""

CORE = TILE * TILE
"""f16 of a core matrix: 8 of 8 rows."""

ABREAST = TILE // 2
"""The most rows whose parts stand side by side in a tile."""

# Of activations: other blocks need them, too.
_KEPT = "L1::evict_last"


class StationaryTile:
    """What a block of threads holds: which rows of both matrices it takes, and which part of k."""

    def __init__(self, kernel: StationaryGemm, k: KernelBuilder) -> None:
        self.kernel, self.k = kernel, k
        self.place = SlicedBlock(kernel, k)
        self.matrix = MatrixOfBlock(kernel, k, self.place.rows, at_once=("w", "y"))
        self.first_row = self.matrix.first_row
        self.part: Index = k.warp if kernel.split > 1 else 0
        self.weights = StagedWeights(k, kernel.tile, kernel.format.row_bytes(kernel.k), self.matrix)
        self.zero = k.f32(0.0)
        ring, shared = kernel.stages * kernel.tile.bytes, k.symbol_address(k.dynamic_shared(U32).name)
        self.ring = self.further(shared, self.part, ring)
        self.all_sums = shared + k.lane * PIECE + kernel.split * ring
        self.sums = self.further(self.all_sums, self.part, kernel.sums * SHARE)

    def further(self, base: Value, index: Index, stride: int) -> Value:
        """base + index * stride."""
        return self.k.mad(index, stride, base) if isinstance(index, Value) else base + index * stride if index else base

    def add_products(self) -> None:
        """Add the products of the warp's windows to its sums: of each window those of all tiles of weights."""
        kernel, k = self.kernel, self.k
        first, end = self.place.windows()
        first = first + self.part if isinstance(first, Value) or first else self.part
        ring = WeightRing(self, first, end)
        for _ in range(kernel.stages - 1):
            ring.fetch()
        if kernel.pdl:
            k.griddepcontrol(action="wait")
            k.griddepcontrol(action="launch_dependents")
        for number in range(kernel.sums):
            k.store(self._sums_at(number), [self.zero] * 4)
        for window in k.strided(first, end, step=kernel.split):
            held = _Held(self, window)
            for offset in k.strided(0, kernel.sums * SHARE, step=kernel.column_tiles * SHARE):
                self._add_tile(self.sums + offset, ring.take(), held)

    def _add_tile(self, sums: Value, raw: Sequence[Sequence[Value]], held: _Held) -> None:
        """Add the products of a tile of weights to the sums that lie there."""
        kernel, k = self.kernel, self.k
        first, second = (kernel.format.unpack_halves(k, words, self.weights.lane) for words in raw)
        products = WindowProducts(k, kernel.column_tiles, kernel.parts > 1, kernel.chains, self.zero)
        (of_tile,) = products.sums([(first, second)], held)
        for place, four in enumerate(of_tile):
            at = Element("shared", sums.register, place * SHARE, F32)
            before = k.load_vector(at, 4)
            scales = held.scales[place]
            k.store(at, [k.fma(scales[c % 2], four[c], before[c]) for c in range(4)])

    def _sums_at(self, number: int) -> Element:
        return Element("shared", self.sums.register, number * SHARE, F32)

    def store(self) -> None:
        """Add up what warps and blocks share and write what is inside the result."""
        kernel, k = self.kernel, self.k
        k.barrier()
        if kernel.slices == 1:
            for number in k.strided(self.part, kernel.sums, step=kernel.split):
                self._store_sums(number, self._of_block(number))
            return
        for number in k.strided(self.part, kernel.sums, step=kernel.split):
            self.place.leave(number, self._of_block(number))
        with k.when(self.place.is_last()):
            for number in k.strided(self.part, kernel.sums, step=kernel.split):
                self._store_sums(number, self.place.of_all(number))

    def _of_block(self, number: Value) -> list[Value]:
        """The sums of this number of all warps, in their order; then those of both parts, where they stand abreast."""
        k, of_warp = self.k, self.kernel.sums * SHARE
        at = k.mad(number, SHARE, self.all_sums)
        four = added(k.load_vector(Element("shared", at.register, part * of_warp, F32), 4) for part in range(self.kernel.split))
        return [one + k.shuffle_xor(one, 2) for one in four] if self.kernel.abreast else four

    def _store_sums(self, number: Value, four: Sequence[Value]) -> None:
        """Write the four sums of this number, or what they come to with what was there: of rows r and r + 8 of a tile of
        weights, and of rows 2 t and 2 t + 1 of a tile of activations."""
        kernel, k = self.kernel, self.k
        tile, place = apart(number, kernel.column_tiles)
        row = self.first_row + tile * TILE_ROWS + (k.lane >> 2)
        x = self.further((k.lane & 3) * 2 + place * TILE, self.place.column, kernel.columns)
        targets = [(x + u if u else x, row + half if half else row) for half, u in product((0, 8), (0, 1))]
        held = [k.f32(0.0) for _ in targets] if kernel.onto else []
        for before, (x, row) in zip(held, targets, strict=False):
            with self._when_inside(x, row) as target:
                k.assign(before, k.load(target))
        for c, (x, row) in enumerate(targets):
            with self._when_inside(x, row) as target:
                k.store(target, held[c] + four[c] if held else four[c])

    @contextmanager
    def _when_inside(self, x: Value, row: Value) -> Iterator[Element]:
        """The threads whose result there is, and its place."""
        kernel, k = self.kernel, self.k
        with (
            nullcontext() if self.matrix.whole else k.when(row < self.matrix.n),
            nullcontext() if kernel.m % kernel.columns == 0 else k.when(x < kernel.m),
        ):
            yield self.matrix.array("y")[k.mad(x, self.matrix.n, row)]


class WeightRing:
    """The weights that a warp takes, tile after tile of one window after another, from window `first` to below `end`. A stage
    is filled again when all lanes have read it."""

    def __init__(self, block: StationaryTile, first: Index, end: Index) -> None:
        self.block, self.kernel, self.k = block, block.kernel, block.k
        k, kernel = self.k, self.kernel
        self._end = end
        self._window = k.variable(first, U32)
        self._tile = k.variable(0, U32)
        self._filled, self._taken = (k.variable(block.ring, U32) for _ in range(2))
        self._last = block.ring + (kernel.stages - 1) * kernel.tile.bytes

    def fetch(self) -> None:
        """Begin to copy the next tile, if there is one, to the stage after the one that was last filled; a group of copies in
        any case."""
        kernel, k = self.kernel, self.k
        first_row = self.block.first_row + self._tile * TILE_ROWS
        start = self.block.matrix.array("w").at(first_row * kernel.format.row_bytes(kernel.k))
        start = advance(start, self._window, kernel.format.block_bytes)
        self.block.weights.copy(self._filled, start, first_row, self._window < self._end)
        k.cp_async_commit_group()
        k.assign(self._filled, self._after(self._filled))
        k.assign(self._tile, self._tile + 1)
        through = self._tile == kernel.row_tiles
        k.assign(self._tile, k.select(through, 0, self._tile))
        k.assign(self._window, k.select(through, self._window + kernel.split, self._window))

    def take(self) -> list[list[Value]]:
        """The words of the lane's two rows of the next tile; meanwhile another is fetched to where the one before was."""
        k = self.k
        k.cp_async_wait_group(self.kernel.stages - 2)
        k.bar_warp_sync(FULL_WARP)
        self.fetch()
        words = self.block.weights.words(self._taken)
        k.assign(self._taken, self._after(self._taken))
        return words

    def _after(self, stage: Value) -> Value:
        return self.k.select(stage == self._last, self.block.ring, stage + self.kernel.tile.bytes)


class _Held:
    """A window of the block's rows of activations in registers. Past the last tile of them that again, which nobody stores."""

    def __init__(self, block: StationaryTile, window: Value) -> None:
        kernel, k = block.kernel, block.k
        steps = STEPS + (kernel.format.minimum is not None)
        if kernel.abreast:
            self._hold_abreast(kernel, k, window, steps)
            return
        self._parts: list[list[list[Pair]]] = []
        self.scales: list[list[Value]] = []
        for place in range(kernel.column_tiles):
            last = tiles_of(kernel.m) - 1
            tile: Value | int
            if kernel.column_blocks > 1:
                tile, present = k.min(block.place.column * kernel.column_tiles + place, last), TILE
            else:
                tile = min(place, last)
                present = kernel.m - tile * TILE
            start = k.arg.halves.at(tile, window, 0, 0, 0, 0, 0)
            pairs = self._load(k, start.at(k.lane * 2), steps * kernel.parts, present)
            self._parts.append([pairs[i : i + kernel.parts] for i in range(0, len(pairs), kernel.parts)])
            first = block.further((k.lane & 3) * 2 + place * TILE, block.place.column, kernel.columns)
            rows = [k.min(first + i if i else first, kernel.m - 1) for i in range(2)]
            self.scales.append([k.load(k.arg.scales[row, window]) for row in rows])

    def _hold_abreast(self, kernel: StationaryGemm, k: KernelBuilder, window: Value, steps: int) -> None:
        """Both parts of a tile's first rows as one right operand, the second where the last rows would be."""
        start = k.arg.halves.at(0, window, 0, 0, 0, 0, 0).at((k.lane >> 4) * (2 * CORE) + (k.lane & 15) * 2)
        cores = [(step * kernel.parts * 2 + c) * CORE for step in range(steps) for c in range(2)]
        pairs = self._words(k, [start[core] for core in cores], k.lane >> 2 & 3, kernel.m, ABREAST)
        self._parts = [[[pair] for pair in pairs]]
        first = (k.lane & 1) * 2
        rows = [k.min(first + i if i else first, kernel.m - 1) for i in range(2)]
        self.scales = [[k.load(k.arg.scales[row, window]) for row in rows]]

    def _load(self, k: KernelBuilder, start: GlobalArray, steps: int, rows: int) -> list[Pair]:
        """The right operands of so many parts of steps."""
        return self._words(k, [start[i * CORE] for i in range(2 * steps)], k.lane >> 2, rows, TILE)

    def _words(
        self, k: KernelBuilder, addresses: Sequence[Element], row: Value, rows: int, most: int
    ) -> list[Pair]:  # fmt: skip
        """The lane's words there, of this row. Where there are fewer rows than there could be, the others, which are zeros, are
        not asked for: all blocks load the same activations, as many bytes together as half of the weights."""
        if rows >= most:
            words = [k.load(address, B32, evict=_KEPT) for address in addresses]
        else:
            words = [k.variable(0, B32) for _ in addresses]
            with k.when(row < rows):
                for word, address in zip(words, addresses, strict=True):
                    k.assign(word, k.load(address, B32, evict=_KEPT))
        return list(zip(words[::2], words[1::2], strict=True))

    def parts(self, place: int, number: int) -> Sequence[Pair]:
        """As ActivationWindow."""
        return self._parts[place][number]
