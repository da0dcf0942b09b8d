"""`stationary_{format}_gemm`: its settings and what follows from them, then how a block of threads goes along k, and in which
order sums are added. Its activations in registers are held_f16.py's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import Element, Index
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.gemm.block_grid import BlockGrid, BlockPlace, added, apart, matrices_of, moved, require_shares
from ptxgen.kernels.gemm.f16_gemm_type import SUM_UNITS, F16GemmType
from ptxgen.kernels.gemm.f16_products import WindowProducts
from ptxgen.kernels.gemm.held_f16 import ABREAST, HeldWindow
from ptxgen.kernels.gemm.staged_f16 import PIECE
from ptxgen.kernels.gemm.staged_weights import IN_PIECES, StagedWeights, TileLayout
from ptxgen.kernels.gemm.weight_tile import TILE_ROWS
from ptxgen.kernels.gemv.iteration import advance, when_below
from ptxgen.kernels.quantize.f16_split import STEPS, TILE, WINDOW
from ptxgen.kernels.registry import register
from ptxgen.kernels.segments import MatrixOfBlock
from ptxgen.kernels.shape import require, require_room
from ptxgen.target import FULL_WARP, HOPPER, MAX_THREADS, WARP_SIZE
from ptxgen.types import F32, U32

MOST_COLUMNS = 32
"""Rows of activations of a block with one part, at most, and half of it with two: a lane holds 68 or 34 registers for 8."""

SHARE = PIECE * WARP_SIZE
"""Bytes of a piece of every lane."""


@register(format=IN_PIECES)
@dataclass(frozen=True)
class StationaryGemm(F16GemmType):
    """Y = X W^T for few rows of an f16 split, by f16 tensor cores: activations stay in registers while weights go by.

    y: f32[m, n]; w: u8[n, row_bytes]; halves, scales: as pack_halves writes them, `parts` f16 a value. A row of y has the same
    bits whatever m is and whatever the other rows are; `slices`, `split`, `chains` and `abreast` alone change them. With one
    slice, and not abreast, they are those of half_mma with the same split and chains.

    A warp keeps a window of 256 values of `columns` rows of activations and multiplies it with `row_tiles` tiles of 16 rows of
    weights, one after another, before it takes its next window. Weights come through a pipeline of `stages` tiles in shared
    memory that each warp has for itself, so that none waits for others. `split` warps of a block share the
    windows, every split-th each, and `slices` blocks share k: each leaves its sums in `partials`, and the last to come adds
    them in their order. counters: u32, zeros before and after a launch. The products of a window go to `chains` sums in turn.
    With `abreast` both parts of up to four rows stand side by side in one tile of activations, and half as many products do.
    With `pdl` the kernel waits for the one before it by itself, after its first copies of weights. With `residual` it adds its
    result to y in place. One launch may multiply two or three matrices, of n, n2 and n3 rows, by the same activations: w2 and
    y2, w3 and y3 are as w and y. `room`: bytes of shared memory that a block may have on the GPU that it is for."""

    name_pattern = "stationary_{format}_gemm"
    bit_free = ("row_tiles", "columns", "stages", "resident_threads", "pdl", "room")
    n2: int = field(default=0, kw_only=True)
    n3: int = field(default=0, kw_only=True)
    slices: int = field(default=1, kw_only=True)
    row_tiles: int = field(default=2, kw_only=True)
    columns: int = field(default=8, kw_only=True)
    split: int = field(default=8, kw_only=True)
    stages: int = field(default=3, kw_only=True)
    chains: int = field(default=1, kw_only=True)
    abreast: bool = field(default=False, kw_only=True)
    resident_threads: int = field(default=512, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)
    residual: bool = field(default=False, kw_only=True)
    room: int = field(default=HOPPER.max_shared, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_shares(self, self.n2, self.windows)
        if not self.format.half_bytes:
            known = ", ".join(format.name for format in IN_PIECES)
            raise ArgumentError(
                f"{self.format} has blocks that are not made of aligned pieces for lanes; formats whose are: {known}"
            )
        require(self, "row_tiles", high=64)
        require(self, "columns", multiple=TILE, high=MOST_COLUMNS // self.parts)
        require(self, "split", high=MAX_THREADS // WARP_SIZE)
        require(self, "stages", low=2, high=8)
        require(self, "chains", high=4)
        require(self, "resident_threads", high=2048)
        require(self, "room", high=HOPPER.max_shared)
        if self.abreast and (self.parts, self.columns) != (2, TILE):
            raise ArgumentError(
                f"{self.name}: what stands abreast are two parts in {TILE} columns, got parts={self.parts}, "
                f"columns={self.columns}"
            )
        if self.abreast:
            require(self, "m", high=ABREAST)
        smaller = "stages", "row_tiles", "split", "columns"
        require_room(self, "weights and sums of a block", self.dynamic_shared, self.room, *smaller)

    @property
    def blocks(self) -> BlockGrid:
        matrices, rows = matrices_of(self.n, self.n2, self.n3), TILE_ROWS * self.row_tiles
        return BlockGrid(self.m, self.k, matrices, rows, self.columns, self.slices, self.abreast)

    @property
    def tile(self) -> TileLayout:
        """A tile of weights in shared memory."""
        return TileLayout(self.format)

    @property
    def dynamic_shared(self) -> int:
        """Bytes of shared memory of a block: the pipelines of its warps, then their sums."""
        return self.split * (self.stages * self.tile.bytes + self.blocks.sums * SHARE)

    @property
    def chain(self) -> int:
        """The products of a window, those of low registers too, and the sums that they go to; a product of scales and an fma
        for the minima, an fma of the window; the sums of windows, of warps, of parts that stand abreast and of blocks that
        share k."""
        products = WINDOW * (self.parts + 1) + STEPS * self.parts
        windows = -(-self.blocks.slice_windows // self.split)
        return SUM_UNITS * products + self.chains - 1 + 4 + windows + self.split + self.slices + self.abreast

    @property
    def most_row_tiles(self) -> int:
        """The most tiles of weights of a block whose sums have room beside its pipelines."""
        pipelines = self.stages * self.tile.bytes
        return (self.room // self.split - pipelines) // (self.blocks.column_tiles * SHARE)

    def parameters(self) -> dict[str, Any]:
        """Of the room, where there is less than on Hopper."""
        return {name: value for name, value in super().parameters().items() if (name, value) != ("room", HOPPER.max_shared)}

    def launch(self) -> LaunchConfig:
        """A dependent block takes more than half of the room, nearly all that a multiprocessor has: else some would get two
        while others, where the kernels before still run, get none."""
        threads = WARP_SIZE * self.split
        shared = max(self.dynamic_shared, self.room // 2 + 1) if self.pdl else self.dynamic_shared
        resident = max(1, self.resident_threads // threads)
        return LaunchConfig(self.blocks.groups * self.slices, threads, resident, dependent=self.pdl, dynamic_shared=shared)

    def emit(self, k: KernelBuilder) -> None:
        block = StationaryTile(self, k)
        block.add_products()
        block.store()

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[StationaryGemm]:
        narrow = {"resident_threads": 256, **fixed}
        if fixed["format"].name == "Q4_K":
            yield cls(m=3, k=1280, n=35, n2=9, n3=64, split=2, slices=2, chains=3, **narrow)
            yield cls(m=9, k=768, n=65, parts=1, columns=16, row_tiles=3, split=3, stages=2, residual=True, **narrow)
        else:
            yield cls(m=1, k=512, n=17, row_tiles=1, split=2, **narrow)
        yield cls(m=3, k=768, n=33, row_tiles=2, split=2, slices=2, abreast=True, **narrow)


class StationaryTile:
    """What a block of threads holds: which rows of both matrices it takes, and which part of k."""

    def __init__(self, kernel: StationaryGemm, k: KernelBuilder) -> None:
        self.kernel, self.blocks, self.k = kernel, kernel.blocks, k
        self.place = BlockPlace(self.blocks, k)
        self.matrix = MatrixOfBlock(self.blocks, k, self.place.rows, at_once=("w", "y"))
        self.first_row = self.matrix.first_row
        self.part: Index = k.warp if kernel.split > 1 else 0
        self.weights = StagedWeights(k, kernel.tile, kernel.format.row_bytes(kernel.k), self.matrix)
        self.zero = k.f32(0.0)
        pipeline, shared = kernel.stages * kernel.tile.bytes, k.symbol_address(k.dynamic_shared(U32).name)
        self.pipeline = moved(k, shared, self.part, pipeline)
        self.all_sums = shared + k.lane * PIECE + kernel.split * pipeline
        self.sums = moved(k, self.all_sums, self.part, self.blocks.sums * SHARE)

    def add_products(self) -> None:
        """Add the products of the warp's windows to its sums: of each window those of all tiles of weights."""
        kernel, k = self.kernel, self.k
        first, end = self.place.windows()
        first = first + self.part if isinstance(first, Value) or first else self.part
        pipeline = StationaryPipeline(self, first, end)
        for _ in range(kernel.stages - 1):
            pipeline.fetch()
        if kernel.pdl:
            k.griddepcontrol(action="wait")
            k.griddepcontrol(action="launch_dependents")
        for number in range(self.blocks.sums):
            k.store(self._sums_at(number), [self.zero] * 4)
        for window in k.strided(first, end, step=kernel.split):
            held = HeldWindow(kernel, k, self.place.column, window)
            for offset in k.strided(0, self.blocks.sums * SHARE, step=self.blocks.column_tiles * SHARE):
                self._add_tile(self.sums + offset, pipeline.take(), held)

    def _add_tile(self, sums: Value, raw: Sequence[Sequence[Value]], held: HeldWindow) -> None:
        """Add the products of a tile of weights to the sums that lie there."""
        kernel, k = self.kernel, self.k
        first, second = (kernel.format.unpack_halves(k, words, self.weights.lane) for words in raw)
        products = WindowProducts(k, self.blocks.column_tiles, kernel.parts > 1, kernel.chains, self.zero)
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
            for number in k.strided(self.part, self.blocks.sums, step=kernel.split):
                self._store_sums(number, self._of_block(number))
            return
        for number in k.strided(self.part, self.blocks.sums, step=kernel.split):
            self.place.leave(number, self._of_block(number))
        with k.when(self.place.is_last()):
            for number in k.strided(self.part, self.blocks.sums, step=kernel.split):
                self._store_sums(number, self.place.of_all(number))

    def _of_block(self, number: Value) -> list[Value]:
        """The sums of this number of all warps, in their order; then those of both parts, where they stand abreast."""
        k, of_warp = self.k, self.blocks.sums * SHARE
        at = k.mad(number, SHARE, self.all_sums)
        four = added(k.load_vector(Element("shared", at.register, part * of_warp, F32), 4) for part in range(self.kernel.split))
        return [one + k.shuffle_xor(one, 2) for one in four] if self.kernel.abreast else four

    def _store_sums(self, number: Value, four: Sequence[Value]) -> None:
        """Write the four sums of this number, or what they come to with what was there: of rows r and r + 8 of a tile of
        weights, and of rows 2 t and 2 t + 1 of a tile of activations."""
        kernel, k = self.kernel, self.k
        tile, place = apart(number, self.blocks.column_tiles)
        row = self.first_row + tile * TILE_ROWS + (k.lane >> 2)
        x = moved(k, (k.lane & 3) * 2 + place * TILE, self.place.column, kernel.columns)
        targets = [(x + u if u else x, row + half if half else row) for half, u in product((0, 8), (0, 1))]
        zeros = [k.f32(0.0) if kernel.residual else None for _ in targets]
        held = [kernel.epilogue.load(k, partial(self._when_inside, *at), zero) for at, zero in zip(targets, zeros, strict=True)]
        for at, before, sum in zip(targets, held, four, strict=True):
            with self._when_inside(*at) as element:
                k.store(element, kernel.epilogue.value(before, sum))

    @contextmanager
    def _when_inside(self, x: Value, row: Value) -> Iterator[Element]:
        """The threads whose result there is, and its place."""
        kernel, k = self.kernel, self.k
        with nullcontext() if self.matrix.whole else k.when(row < self.matrix.n), when_below(k, x, kernel.m, kernel.columns):
            yield self.matrix.array("y")[k.mad(x, self.matrix.n, row)]


class StationaryPipeline:
    """The weights that a warp takes, tile after tile of one window after another, from window `first` to below `end`. A stage
    is filled again when all lanes have read it."""

    def __init__(self, block: StationaryTile, first: Index, end: Index) -> None:
        self.block, self.kernel, self.k = block, block.kernel, block.k
        k, kernel = self.k, self.kernel
        self._end = end
        self._window = k.variable(first, U32)
        self._tile = k.variable(0, U32)
        self._filled, self._taken = (k.variable(block.pipeline, U32) for _ in range(2))
        self._last = block.pipeline + (kernel.stages - 1) * kernel.tile.bytes

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
        return self.k.select(stage == self._last, self.block.pipeline, stage + self.kernel.tile.bytes)
