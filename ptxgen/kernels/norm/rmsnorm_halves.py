"""RMSNorm of several rows and the f16 halves of the result in one launch: the bits of batched_rmsnorm and pack_halves one after
the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HalfForm, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.kernels.norm.rmsnorm import LARGEST_ROW, THREADS, RmsNorm
from ptxgen.kernels.quantize.activation_halves import TILE, WINDOW, arrays, pack, tiles_of, unwritten, windows_of
from ptxgen.kernels.quantize.half_bounds import half_bounds
from ptxgen.kernels.quantize.pack_halves import LANES, RUN, PackHalves, Run, lane_runs, write_halves, write_staged_halves
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32

MANY_ROWS = 128
"""From so many rows on blocks of whole rows are enough work for a GPU; fewer rows are spread over more blocks, each of which
reads them."""

ROWS = WARP_SIZE // LANES
"""Of a block of whole rows: a warp packs windows of each."""

WARPS = ROWS * THREADS // WARP_SIZE
"""Of a block of whole rows."""

Loaded = tuple[Run, tuple[Value, ...], tuple[Value, ...]]
"""A run of a row, its values and their gammas."""


@register
@dataclass(frozen=True)
class BatchedRmsNormHalves(RmsNorm):
    """y = gamma * x / sqrt(mean(x^2) + eps) for each of m rows, and y as one or two f16 with a scale for every 256.

    y, x: f32[m, hidden]; halves: f16[ceil(m / 8), ceil(hidden / 256), 17, parts, 2, 8, 8]; scales: f32[m, ceil(hidden / 256)];
    gamma: f32[hidden]; eps: f32 scalar. hidden is a multiple of 4. What the halves mean: quantize/activation_halves.py. Rows
    past the last of a tile have halves, too: zeros.
    """

    name = "batched_rmsnorm_halves"
    least_sm = 80
    m: int = field(kw_only=True)
    parts: int = field(kw_only=True)
    lane_run: int = field(kw_only=True)

    def __post_init__(self) -> None:
        require(self, "hidden", high=LARGEST_ROW, multiple=RUN)
        require(self, "m", high=MOST_ROWS // TILE * TILE)
        assert self.form  # checks parts and lane_run

    @property
    def rows(self) -> int:
        return self.m

    @property
    def form(self) -> HalfForm:
        """In which form it writes the halves."""
        return HalfForm(self.parts, self.lane_run)

    def signature(self) -> Signature:
        y, *inputs = super().signature().items()
        return dict([y, *arrays(self.m, self.hidden, self.form, "out").items(), *inputs])

    def launch(self) -> LaunchConfig:
        if self.m >= MANY_ROWS:
            return LaunchConfig(grid=TILE // ROWS * tiles_of(self.m), block=ROWS * THREADS, resident=2)
        return LaunchConfig(grid=(self.chunks, TILE * tiles_of(self.m)), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        if self.m >= MANY_ROWS:
            self._write_rows(k)
        else:
            self._write_chunk(k)

    def _write_rows(self, k: KernelBuilder) -> None:
        """Two rows: each half of the block adds up the squares of one, then each warp packs windows of both, so that its stores
        fill whole sectors. A lane loads by itself what it packs, from the cache, because other lanes have it for the sum."""
        row, window = k.ctaid.x * ROWS + k.lane // LANES, k.warp
        loaded = self._load_window(k, row, window)  # here, so that it comes while the squares are added
        summed = k.ctaid.x * ROWS + k.tid.x // THREADS
        x, total = k.arg.x.at(k.min(summed, self.m - 1) if self.m % TILE else summed, 0), k.f32(0.0)
        for chunk in range(self.chunks):
            start, inside = self.place(k, chunk, k.tid.x % THREADS)
            self.add_squares(k, total, self.load_values(k, x, start), inside)
        scale = self.inverse_root(k, k.part_sum(total, ROWS, k.lane // LANES))
        windows = windows_of(self.hidden)
        for first in range(0, windows, WARPS):
            if first > 0:
                window = k.warp + first
                loaded = self._load_window(k, row, window)
            with k.when(window < windows) if first + WARPS > windows else nullcontext():
                self._write_window(k, row, window, scale, loaded)

    def _load_window(self, k: KernelBuilder, row: Value, window: Value) -> list[Loaded]:
        """What the lane packs of a window of a row, and the gammas of it; of the last window for one past that."""
        windows = windows_of(self.hidden)
        within = k.min(window, windows - 1) if windows % WARPS else window
        runs = lane_runs(k, self.form, row, within, self.m, self.hidden)
        return [(run, run.load(k, k.arg.x), k.load_vector(k.arg.gamma[run.loaded[1]], RUN)) for run in runs]

    def _write_window(self, k: KernelBuilder, row: Value, window: Value, scale: Value, loaded: Sequence[Loaded]) -> None:
        xs: list[Value] = []
        for run, values, gammas in loaded:
            results = self.scaled(list(values), scale, list(gammas))
            run.store(k, k.arg.y, results)
            xs += run.or_zeros(k, results)
        write_halves(k, self.form, row, window, xs)

    def _chunk(self, k: KernelBuilder, row: Value | int) -> tuple[Value, Value, list[Value]]:
        """Where the thread's values of the block's chunk of a row start, whether they are in the row, and their results. Each
        block adds up the squares of the whole row by itself, so that nobody waits for another block."""
        x = k.arg.x.at(row, 0)
        start, inside = self.place(k, k.ctaid.x)
        self._fetch_gamma(k, start)
        values, gammas = self.load_values(k, x, start), self.load_values(k, k.arg.gamma, start)
        total = k.f32(0.0)
        for chunk in range(self.chunks):
            place, counted = self.place(k, chunk)
            self.add_squares(k, total, self.load_values(k, x, place), counted)
        return start, inside, self.scaled(values, self._scale(k, total), gammas)

    def _write_chunk(self, k: KernelBuilder) -> None:
        """1024 values of a row, the squares of which each block adds up by itself."""
        row, values = k.ctaid.y, THREADS * self.width
        start, inside, results = self._chunk(k, k.min(row, self.m - 1) if self.m % TILE else row)
        inside = inside & (row < self.m)
        with k.when(inside):
            k.store(k.arg.y[row, start], results)
        staged = k.shared(F32, values)
        k.store(staged[k.tid.x * self.width], [k.select(inside, result, 0.0) for result in results])
        k.barrier()
        count = values // WINDOW
        write_staged_halves(k, self.form, row, k.ctaid.x * count, count, staged)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        y = super().reference(**arguments)["y"]
        return {"y": y, **pack(y, self.form)._asdict()}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """y as in rmsnorm; the halves are those of any value that near."""
        y, bound = super().reference(**arguments)["y"], np.asarray(super().tolerance(**arguments)["y"])
        return {"y": bound, **half_bounds(y, bound, self.form)}

    def work(self) -> Work:
        """That of rmsnorm, and of the packing without reading y again."""
        norm, packing = super().work(), PackHalves(self.m, self.hidden, self.parts, self.lane_run).work()
        return Work(flops=norm.flops + packing.flops, bytes=norm.bytes + packing.bytes - F32.bytes * self.m * self.hidden)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(hidden=1312, m=3, parts=2, lane_run=64)
        yield cls(hidden=4, m=1, parts=1, lane_run=4)
        yield cls(hidden=260, m=MANY_ROWS + 1, parts=2, lane_run=64)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().inputs(rng), **unwritten(self.m, self.hidden, self.form)}
