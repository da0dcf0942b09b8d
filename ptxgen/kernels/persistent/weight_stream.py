"""The weights of a warp as one stream through a pipeline in shared memory, over the ends of rows, of matrices and of stages:
copies run ahead of the products by as much as the pipeline holds, whatever the products wait for. Copies are of whole 16 bytes
side by side, whatever the format: so each is asked for once, and blocks of 34 or 210 bytes cost no more than others."""

from __future__ import annotations

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.kernels.persistent.part_table import Field, PartTable
from ptxgen.kernels.persistent.segments import PIECE
from ptxgen.target import FULL_WARP, WARP_SIZE
from ptxgen.types import U8, U32, U64


class WeightStream:
    """The stream of a warp. Its order is that of the table: part after part, group after group, of a group segment after
    segment, and of these row after row."""

    def __init__(self, k: KernelBuilder, table: PartTable, pipeline: Value, pipeline_stages: int) -> None:
        """pipeline: where the warp's own `pipeline_stages` stages start in shared memory. Begins to fill them."""
        self.k, self.table, self.pipeline_stages = k, table, pipeline_stages
        self._pipeline = pipeline
        self.stage_bytes = max(one.segments.stage_bytes for one in table.parts)
        self.aligned = all(one.segments.aligned for one in table.parts)
        self._filled, self._taken = (k.variable(0, U32) for _ in range(2))
        self._part = k.variable(table.entry(0), U32)
        self._group = k.variable(table.first_group(self._part), U32)
        self._row, self._rows, self._height, self._live = (k.variable(0, U32) for _ in range(4))
        self._stride, self._left, self._bytes = (k.variable(0, U32) for _ in range(3))
        self._places = [k.variable(0, U64) for _ in range(max(len(one.weights) for one in table.parts))]
        self._find_group()
        for _ in k.strided(0, pipeline_stages):
            self._fetch()

    def take(self, count: int) -> list[SharedPart]:
        """Where the next `count` segments are, once they have come. `refill` must follow when the warp has read them."""
        k = self.k
        k.cp_async_wait_group(self.pipeline_stages - count)
        k.bar_warp_sync(FULL_WARP)
        places = []
        for _ in range(count):
            places.append(SharedPart(k, self._pipeline + self._taken, U8))
            k.assign(self._taken, self._next(self._taken))
        return places

    def refill(self, count: int) -> None:
        """Fetch as many segments as were taken to where they were: all lanes have read them."""
        self.k.bar_warp_sync(FULL_WARP)
        for _ in self.k.strided(0, count):
            self._fetch()

    def _next(self, stage: Value) -> Value:
        k = self.k
        after = stage + self.stage_bytes
        return k.select(after == self.pipeline_stages * self.stage_bytes, 0, after)

    def _fetch(self) -> None:
        """Begin to copy the next segment, if there is one; a group of copies in any case."""
        k = self.k
        row, place = self._row, self._places[0]
        if len(self._places) > 1:
            second = self._row >= self._height
            row = k.select(second, self._row - self._height, self._row)
            place = k.select(second, self._places[1], place)
        self._copy(k.mad_wide(k.min(row, self._live - 1), self._stride, place))
        k.cp_async_commit_group()
        k.assign(self._filled, self._next(self._filled))
        k.assign(self._row, self._row + 1)
        with k.when(self._row == self._rows):
            k.assign(self._row, 0)
            further = k.u64(self.table.word(self._part, Field.BYTES))
            for one in self._places:
                k.assign(one, one + further)
            k.assign(self._left, self._left - 1)
            k.assign(self._bytes, k.select(self._left == 1, self.table.word(self._part, Field.LAST_BYTES), self._bytes))
            with k.when(self._left == 0):
                k.assign(self._group, self._group + self.table.warps)
                self._find_group()

    def _copy(self, start: Value) -> None:
        """The segment that starts there, and what stands before it in its first 16 bytes."""
        k = self.k
        total = self._bytes
        if not self.aligned:
            behind = k.u32(start) & (PIECE - 1)
            start, total = start - k.u64(behind), total + behind
        at = k.lane * PIECE
        source = start + k.u64(at)
        target = self._pipeline + self._filled + at
        for offset in range(0, self.stage_bytes, WARP_SIZE * PIECE):
            first = at + offset if offset else at
            taken = None if self.aligned else k.min(total - first, PIECE)
            k.copy_async(
                Element("shared", target.register, offset, U8),
                Element("global", source.register, offset, U8),
                PIECE,
                taken=taken,
                guard=first < total,
                cache="cg",
                prefetch="L2::128B",
            )

    def _find_group(self) -> None:
        """Go on to the next group that there is, from the one of this number on, and find its rows."""
        k, table = self.k, self.table
        with k.loop() as loop:
            loop.break_if(self._group < table.word(self._part, Field.GROUPS))
            k.assign(self._part, self._part + 4 * Field.WORDS)
            k.assign(self._group, table.first_group(self._part))
        for variable, field in (
            (self._rows, Field.TAKEN),
            (self._height, Field.HEIGHT),
            (self._stride, Field.ROW_BYTES),
            (self._left, Field.SEGMENTS),
        ):
            k.assign(variable, table.word(self._part, field))
        first = self._group * self._height
        k.assign(self._live, k.min(table.word(self._part, Field.ROWS) - first, self._height))
        whole, last = (table.word(self._part, field) for field in (Field.BYTES, Field.LAST_BYTES))
        k.assign(self._bytes, k.select(self._left == 1, last, whole))
        row = table.word(self._part, Field.FIRST) + first
        for which, variable in enumerate(self._places):
            names = [one.weights[min(which, len(one.weights) - 1)] for one in table.parts]
            k.assign(variable, k.mad_wide(row, self._stride, table.argument(self._part, names)))
