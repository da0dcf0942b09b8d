"""`mma_{format}_gemm`: its settings and what follows from them, then how a block of threads goes along k and adds. Its operands
are read by weight_tile.py and staged_planes.py, and multiplied by block_products.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import DEPENDENT_SM, LaunchConfig
from ptxgen.dsl.memory import Element, Index
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.formats import REPACKED
from ptxgen.kernels.gemm.block_grid import BlockGrid, BlockPlace, require_warps, warp_place
from ptxgen.kernels.gemm.block_products import BlockProducts
from ptxgen.kernels.gemm.staged_planes import COLUMN_TILE, StagedInt8, StageLayout, StageReader
from ptxgen.kernels.gemm.weight_tile import STEP, TILE_ROWS, WeightTile, WeightTileLayout
from ptxgen.kernels.gemv.iteration import kept, load_again, when_below
from ptxgen.kernels.gemv.plane_gemv_type import PACKED, Int8GemvType
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require, require_room
from ptxgen.target import FULL_WARP, MAX_STATIC_SHARED, WARP_SIZE
from ptxgen.types import F32, U32

PAIR: Final = 2 * BLOCK
"""Values of a row of activations that one load of fragments brings."""


@register(format=(*PACKED.values(), REPACKED["Q8_0_ALIGNED"]))  # Q6_K_ALIGNED has products by f16 in the catalogue
@dataclass(frozen=True)
class MmaGemm(Int8GemvType):
    """Y = X W^T for m rows of quantised activations, by int8 tensor cores.

    y: f32[m, n]; w: u8[n, row_bytes]; digits: s8[m, digits, k]; scales: f32[m, k / 32]; sums: s32[m, k / 32], as q8_quantize
    (digits=1), q16_quantize (2) or q24_quantize (3) writes them. A row of y has the same bits whatever m is and whatever the
    other rows are; `split` alone changes them.

    A warp takes 16 row_tiles rows of weights and up to `tile` rows of activations, `warps` such warps lie side by side along n,
    and `split` of them share k, whose sums are added in their order. `steps` times 128 values of all rows of activations of a
    block are staged at once, and the loads of `ahead` steps of weights are under way. With `pdl` the kernel waits for the one
    before it by itself, after its first loads of weights."""

    name_pattern = "mma_{format}_gemm"
    family: ClassVar[str] = "gemm"
    bit_free = ("warps", "row_tiles", "tile", "steps", "ahead", "resident_threads", "pdl")
    dependent_form: ClassVar[Mapping[str, Any]] = {"pdl": True}
    m: int = field(kw_only=True)
    warps: int = field(default=4, kw_only=True)
    row_tiles: int = field(default=1, kw_only=True)
    split: int = field(default=1, kw_only=True)
    tile: int = field(default=32, kw_only=True)
    steps: int = field(default=1, kw_only=True)
    ahead: int = field(default=1, kw_only=True)
    resident_threads: int = field(default=256, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m", "steps")
        require(self, "ahead", high=4)
        if self.steps % self.ahead and self.ahead % self.steps:
            raise ArgumentError(f"{self.name}: ahead must divide steps={self.steps} or be a multiple of it, got {self.ahead}")
        require_warps(self, self.warps, self.split)
        smaller = "tile", "steps", "split", "warps", "row_tiles"
        require_room(self, "a block", self.shared.bytes, MAX_STATIC_SHARED, *smaller)

    @property
    def least_sm(self) -> int:
        return DEPENDENT_SM if self.pdl else 80

    @property
    def batch(self) -> tuple[int, ...]:
        return (self.m,)

    @property
    def blocks(self) -> BlockGrid:
        """What each block of threads has."""
        columns = min(-(-self.m // COLUMN_TILE) * COLUMN_TILE, self.tile)
        return BlockGrid(self.m, self.k, (self.n,), TILE_ROWS * self.row_tiles * self.warps, columns)

    @property
    def row_steps(self) -> int:
        """Steps of a row, the last of which may be partial."""
        return -(-self.k // STEP)

    @property
    def part_steps(self) -> int:
        """Steps of a part of k; the last part may have fewer."""
        return -(-self.row_steps // self.split)

    @property
    def stages(self) -> int:
        """Stages of a warp."""
        return -(-self.part_steps // self.steps)

    @property
    def halves(self) -> bool:
        """Whether a scale is for 16 weights, of which a block of activations has two."""
        return self.format.scale_values < BLOCK

    @property
    def chain(self) -> int:
        """A product of each block, in halves or not, and as many minima; then the sums of the warps that share k."""
        minima = (2 if self.halves else 1) if self.format.has_minimum else 0
        return self.k // BLOCK * (1 + minima) + (1 if self.halves else 0) + self.split - 1

    @property
    def shared(self) -> SharedLayout:
        """What a block has in shared memory."""
        return SharedLayout(self)

    def launch(self) -> LaunchConfig:
        threads = WARP_SIZE * self.warps * self.split
        resident = max(1, self.resident_threads // threads)
        return LaunchConfig(grid=self.blocks.groups, block=threads, resident=resident, dependent=self.pdl)

    def emit(self, k: KernelBuilder) -> None:
        block = BlockTile(self, k)
        block.add_row()
        block.store()

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[MmaGemm]:
        block = max(fixed["format"].block, BLOCK)
        if fixed["format"].name != "Q4_K":
            k = 2 * block if not fixed["format"].common else 5 * BLOCK if block == BLOCK else block
            yield cls(m=1, k=k, n=17, digits=3, warps=1, **fixed)
        else:
            yield cls(m=3, k=256, n=17, digits=3, warps=2, **fixed)
            yield cls(m=9, k=1536, n=33, digits=1, warps=2, split=2, ahead=2, **fixed)
            yield cls(m=17, k=768, n=33, digits=2, warps=1, row_tiles=2, split=2, tile=8, steps=2, **fixed)


class SharedLayout:
    """The shared memory of a block: bytes. The stages of each part of k, then the tiles of each warp; in the end, over both,
    the sums of the warps that are to be added to those of the first part of k."""

    def __init__(self, kernel: MmaGemm) -> None:
        self.stage = StageLayout(kernel.format, kernel.blocks.columns, kernel.digits, kernel.steps * STEP)
        self.buffers = min(2, kernel.stages)
        self.tile = WeightTileLayout(kernel.format)
        self.sums_of_warp = 4 * WARP_SIZE * kernel.row_tiles * kernel.blocks.column_tiles * 4
        self.stages = self.buffers * self.stage.bytes
        self.tiles = kernel.split * self.stages
        self.tiles_of_warp = kernel.row_tiles * self.tile.bytes
        last = self.tiles + kernel.split * kernel.warps * self.tiles_of_warp
        self.bytes = max(last, (kernel.split - 1) * kernel.warps * self.sums_of_warp)


class BlockTile:
    """What a block of threads holds: which rows of both matrices it takes, where, and the sums of each lane."""

    def __init__(self, kernel: MmaGemm, k: KernelBuilder) -> None:
        self.kernel, self.blocks, self.k = kernel, kernel.blocks, k
        self.layout = layout = kernel.shared
        place = BlockPlace(self.blocks, k)
        self.part, self.along_n = warp_place(k, kernel.warps, kernel.split)
        self.first_row: Value = (place.rows * kernel.warps + self.along_n) * (TILE_ROWS * kernel.row_tiles)
        self.first_column: Index = place.column * self.blocks.columns
        self.base = k.symbol_address(k.shared(U32, layout.bytes // 4).name)
        self.tiles = [self._weight_tile(i) for i in range(kernel.row_tiles)]
        self.staged = self._staged()
        self.products = BlockProducts(k, kernel.format, kernel.digits)
        places = range(self.blocks.column_tiles)
        self.totals = [[[k.f32(0.0) for _ in range(4)] for _ in places] for _ in range(kernel.row_tiles)]

    def _weight_tile(self, i: int) -> WeightTile:
        kernel, k, layout = self.kernel, self.k, self.layout
        base = k.mad(k.warp, layout.tiles_of_warp, self.base) + (layout.tiles + i * layout.tile.bytes)
        first = self.first_row + i * TILE_ROWS if i else self.first_row
        return WeightTile(k, kernel.format, kernel.k, first, kernel.n, base)

    def _staged(self) -> StagedInt8:
        kernel, k, layout = self.kernel, self.k, self.layout
        threads = kernel.warps * WARP_SIZE
        thread = k.tid.x if kernel.split == 1 else k.tid.x % threads
        base = k.mad(self.part, layout.stages, self.base) if isinstance(self.part, Value) else self.base
        return StagedInt8(
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
        return [kept(k, one) for one in [tile.load(place) for tile in self.tiles]]

    def _step_inside(self, step: Index) -> Index:
        """The step, clamped to the last one of the row; the duplicate is not used."""
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
        load_again(self.k, raw, tile.load(self._step_inside(step)))

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
            scales = [[self.products.scales(tile, block) for tile in weights] for block in blocks]
            for place in range(self.blocks.column_tiles):
                digits = [activations_here.digits(place, plane) for plane in range(self.kernel.digits)]
                for number, block in enumerate(blocks):
                    columns = [one[2 * number : 2 * number + 2] for one in digits]
                    with self._when_block_inside(step, start + block):
                        xs = activations_here.scales(place, block)
                        for i in range(len(weights)):
                            sums = self.products.sums(codes[number][i], columns, signed=self.tiles[i].signed)
                            self.products.add_block(self.totals[i][place], sums, scales[number][i], xs)

    def _when_block_inside(self, step: Index, value: Value) -> AbstractContextManager[None]:
        """Around what is done to the block that starts at `value` of a step: the last step may have fewer."""
        if self.kernel.k % STEP == 0:
            return nullcontext()
        return self._when(step * (STEP // BLOCK) + value // BLOCK, self.kernel.k // BLOCK)

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
        kernel, blocks, k = self.kernel, self.blocks, self.k
        row = self.first_row + (k.lane >> 2)
        column = (k.lane & 3) * 2 + self.first_column
        for i, tiles in enumerate(self.totals):
            for place, totals in enumerate(tiles):
                for c, total in enumerate(totals):
                    at = row + (i * TILE_ROWS + c // 2 * 8)
                    x = column + (place * COLUMN_TILE + c % 2)
                    with when_below(k, at, kernel.n, blocks.block_rows), when_below(k, x, kernel.m, blocks.columns):
                        k.store(k.arg.y[x, at], total)
