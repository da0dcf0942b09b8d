"""How RMSNorm writes the f16 split of its results: a block has a chunk of a row, or, where rows are many, two whole rows. The
bits are those of batched_rmsnorm and pack_halves one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HalfForm
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.kernels.norm.row import THREADS, NormRow, scaled
from ptxgen.kernels.quantize.f16_split import TILE, WINDOW, tiles_of, windows_of
from ptxgen.kernels.quantize.pack_f16 import LANES, RUN, LaneRun, lane_runs, write_f16_split, write_staged_f16_split
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32

MANY_ROWS: Final = 128
"""From so many rows on blocks of whole rows are enough work for a GPU; fewer rows are spread over more blocks, each of which
reads them."""

ROWS: Final = WARP_SIZE // LANES
"""Of a block of whole rows: a warp packs windows of each."""

WARPS: Final = ROWS * THREADS // WARP_SIZE
"""Of a block of whole rows."""

Loaded = tuple[LaneRun, tuple[Value, ...], tuple[Value, ...]]
"""A run of a row, its values and their gammas."""


class SplitRows:
    """m rows of f32[m, hidden], normalised and written in this form."""

    def __init__(self, hidden: int, m: int, form: HalfForm) -> None:
        self._row, self._m, self._form = NormRow(hidden), m, form

    def launch(self) -> LaunchConfig:
        """The geometry that `emit` needs."""
        if self._m >= MANY_ROWS:
            return LaunchConfig(grid=TILE // ROWS * tiles_of(self._m), block=ROWS * THREADS, resident=2)
        return chunk_launch(self._row, self._m)

    def emit(self, k: KernelBuilder) -> None:
        """Write y and its f16 split."""
        if self._m >= MANY_ROWS:
            self._write_rows(k)
        else:
            self._write_chunk(k)

    def _write_rows(self, k: KernelBuilder) -> None:
        """Two rows: each half of the block adds up the squares of one, then each warp packs windows of both, so that its stores
        fill whole sectors. A lane loads by itself what it packs, from the cache, because other lanes have it for the sum."""
        row, window = k.ctaid.x * ROWS + k.lane // LANES, k.warp
        loaded = self._load_window(k, row, window)  # here, so that it comes while the squares are added
        summed = k.ctaid.x * ROWS + k.tid.x // THREADS
        x, total = k.arg.x.at(in_array(k, summed, self._m), 0), k.f32(0.0)
        for chunk in range(self._row.chunks):
            start, inside = self._row.place(k, chunk, k.tid.x % THREADS)
            self._row.add_squares(k, total, self._row.load(k, x, start), inside)
        scale = self._row.inverse_root(k, k.part_sum(total, ROWS, k.lane // LANES))
        windows = windows_of(self._row.hidden)
        for first in range(0, windows, WARPS):
            if first > 0:
                window = k.warp + first
                loaded = self._load_window(k, row, window)
            with k.when(window < windows) if first + WARPS > windows else nullcontext():
                self._write_window(k, row, window, scale, loaded)

    def _load_window(self, k: KernelBuilder, row: Value, window: Value) -> list[Loaded]:
        """What the lane packs of a window of a row, and the gammas of it; of the last window for one past that."""
        windows = windows_of(self._row.hidden)
        within = k.min(window, windows - 1) if windows % WARPS else window
        runs = lane_runs(k, self._form, row, within, self._m, self._row.hidden)
        return [(run, run.load(k, k.arg.x), k.load_vector(k.arg.gamma[run.loaded[1]], RUN)) for run in runs]

    def _write_window(self, k: KernelBuilder, row: Value, window: Value, scale: Value, loaded: Sequence[Loaded]) -> None:
        xs: list[Value] = []
        for run, values, gammas in loaded:
            results = scaled(values, scale, gammas)
            run.store(k, k.arg.y, results)
            xs += run.or_zeros(k, results)
        write_f16_split(k, self._form, row, window, xs)

    def _write_chunk(self, k: KernelBuilder) -> None:
        """1024 values of a row. Each block adds up the squares of the whole row, so that no block waits for another."""
        row = k.ctaid.y
        start, inside, results = self._chunk(k, in_array(k, row, self._m))
        write_chunk(k, self._form, start, inside & (row < self._m), results)

    def _chunk(self, k: KernelBuilder, row: Value) -> tuple[Value, Value, list[Value]]:
        """Where the thread's values of the block's chunk of a row start, whether they are in the row, and their results."""
        x = k.arg.x.at(row, 0)
        start, inside = self._row.place(k, k.ctaid.x)
        self._row.prefetch(k, k.arg.gamma, start)
        values, gammas = self._row.load(k, x, start), self._row.load(k, k.arg.gamma, start)
        total = k.f32(0.0)
        for chunk in range(self._row.chunks):
            place, counted = self._row.place(k, chunk)
            self._row.add_squares(k, total, self._row.load(k, x, place), counted)
        return start, inside, scaled(values, self._row.inverse_root(k, k.block_sum(total)), gammas)


def chunk_launch(row: NormRow, m: int) -> LaunchConfig:
    """A block a chunk of a row: the geometry of `write_chunk`."""
    return LaunchConfig(grid=(row.chunks, TILE * tiles_of(m)), block=THREADS)


def in_array(k: KernelBuilder, row: Value, m: int) -> Value:
    """The row, or the last one where a tile has rows past it."""
    return k.min(row, m - 1) if m % TILE else row


def write_chunk(k: KernelBuilder, form: HalfForm, start: Value, inside: Value, results: Sequence[Value]) -> None:
    """Write a thread's results of the block's chunk of a row to y, and the f16 split of the chunk. start: of the results in the
    row; inside: whether there is such a row, and they are in it."""
    row, width = k.ctaid.y, len(results)
    with k.when(inside):
        k.store(k.arg.y[row, start], results)
    staged = k.shared(F32, THREADS * width)
    k.store(staged[k.tid.x * width], [k.select(inside, result, 0.0) for result in results])
    k.barrier()
    count = THREADS * width // WINDOW
    write_staged_f16_split(k, form, row, k.ctaid.x * count, count, staged)
