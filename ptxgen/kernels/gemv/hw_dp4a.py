"""The fast GEMV on activation digits: fragments of super-blocks on neighbouring lanes, activations in shared memory,
several rows a warp, weights loaded ahead. What all kernels on activation digits have in common stands in
digit_gemv_type.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ptxgen.dsl.kernel_type import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.chunks import Chunk, ChunkLoop, Warp, loops
from ptxgen.kernels.gemv.digit_gemv_type import PACKED, SAMPLED_WITH_THREE, DigitGemvType
from ptxgen.kernels.gemv.fragments import Fragments
from ptxgen.kernels.gemv.shared_digits import Layout, chunks, rows_at_once
from ptxgen.kernels.quantize.activation_digits import BLOCK
from ptxgen.kernels.registry import register_variants
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE

if TYPE_CHECKING:
    from ptxgen.dsl.builder import KernelBuilder

MOST_BATCHED = 8
"""Rows of activations of a batched kernel."""


@register_variants("format", {f"hw_dp4a_{id}_gemv": format for id, format in PACKED.items()})
@dataclass(frozen=True)
class HwDp4aGemv(DigitGemvType):
    """y = W x on quantised activations, the fast path: dp4a on fragments that neighbouring lanes share a super-block in.

    y: f32[n]; w: u8[n, row_bytes]; digits: s8[1, digits, k]; scales: f32[1, k / 32]; sums: s32[1, k / 32], as q8_quantize
    (digits=1), q16_quantize (2) or q24_quantize (3) writes them. A half-warp takes four super-blocks of Q4_K side by side, a
    lane the 64 weights of a chunk: so each pair of 6-bit scales is unpacked once, where a half-warp for one super-block would
    unpack it in four lanes. A warp takes rows_per_warp rows, which share every read of the activations; a block num_warps
    warps, which share their staging. The loads of the first `ahead` steps of weights are issued
    before the activations are touched: with `pdl` before the wait for the kernel that writes them (programmatic dependent
    launch, sm_90 and later). A multiprocessor's registers hold resident_threads threads."""

    num_warps: int = field(default=8, kw_only=True)
    rows_per_warp: int = field(default=2, kw_only=True)
    ahead: int = field(default=2, kw_only=True)
    resident_threads: int = field(default=512, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)

    @property
    def name(self) -> str:
        return f"hw_dp4a_{self.format.id}_gemv"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "num_warps", high=32)
        require(self, "rows_per_warp", high=8)
        require(self, "ahead", high=8)
        require(self, "resident_threads", high=2048)

    @property
    def least_sm(self) -> int:
        return 90 if self.pdl else 75

    @property
    def fragments(self) -> Fragments:
        return Fragments(self.format, self.k)

    @property
    def chain(self) -> int:
        # A fragment has at most a run for each row of its depth, with or without a minimum.
        runs = self.format.depth * (2 if self.format.has_minimum else 1)
        return self.fragments.steps * runs + (WARP_SIZE.bit_length() - 1)

    @property
    def block_rows(self) -> int:
        """Rows of a block of threads."""
        return self.num_warps * self.rows_per_warp

    def launch(self) -> LaunchConfig:
        threads = self.num_warps * WARP_SIZE
        resident = max(1, self.resident_threads // threads)
        return LaunchConfig(grid=-(-self.n // self.block_rows), block=threads, resident=resident, early=self.pdl)

    def emit(self, k: KernelBuilder) -> None:
        together = rows_at_once(self.format, self.k, self.batch, self.digits)
        turns = [range(row, min(row + together, self.batch)) for row in range(0, self.batch, together)]
        parts = chunks(self.format, self.k, together, self.digits)
        if loops(self, parts):
            self._emit_looped(k, turns, parts[0][1])
        else:
            self._emit_written_out(k, turns, parts)

    def _emit_written_out(self, k: KernelBuilder, turns: list[range], parts: list[tuple[int, int]]) -> None:
        step_values = self.fragments.values
        layout = Layout(self.format, min(self.k, parts[0][1] * step_values), len(turns[0]), self.digits)
        warp = Warp(self, k, layout)
        before: list[Value | None] = []
        for first, steps in parts:
            chunk = Chunk(warp, first, steps)
            chunk.load_ahead()
            for rows in turns:
                fresh = not first and rows is turns[0]
                if not fresh:
                    k.barrier()  # the lanes may still be reading what was staged last
                elif self.pdl:
                    k.griddepcontrol(action="wait")
                warp.shared.fill(rows, first * step_values, min(self.k - first * step_values, steps * step_values))
                if fresh and self.pdl:
                    k.griddepcontrol(action="launch_dependents")
                if fresh:
                    before = [self._before(k, row) for row in warp.numbers]
                chunk.add(rows)
        self._store(k, warp, before)

    def _emit_looped(self, k: KernelBuilder, turns: list[range], most_steps: int) -> None:
        loop = ChunkLoop(self, k, turns, most_steps)
        if self.pdl:
            k.griddepcontrol(action="wait")
        before = [self._before(k, row) for row in loop.warp.numbers]
        for first in loop.chunks():
            for rows in turns:
                loop.fill(rows, first)
                if self.pdl and rows is turns[0]:
                    k.griddepcontrol(action="launch_dependents")
                loop.add(rows, first)
        self._store(k, loop.warp, before)

    def _before(self, k: KernelBuilder, row: Value) -> Value | None:
        """What an epilogue needs of a row's result before the sum is known, loaded so early that nobody waits for it. `row` is
        below n."""
        return None

    def _store(self, k: KernelBuilder, warp: Warp, before: list[Value | None]) -> None:
        sums = [[k.warp_sum(total) for total in totals] for totals in warp.totals]
        with k.when(k.lane == 0):
            for i, (of_row, loaded) in enumerate(zip(sums, before, strict=True)):
                row = warp.first_row + i if i else warp.first_row
                if self.n % self.block_rows:
                    with k.when(row < self.n):
                        self._store_row(k, row, of_row, loaded)
                else:
                    self._store_row(k, row, of_row, loaded)

    def _store_row(self, k: KernelBuilder, row: Value, sums: list[Value], before: Value | None) -> None:
        """Store what a row of weights gave with each row of activations."""
        k.store(k.arg.y[row], sums[0])

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[HwDp4aGemv]:
        yield from super().cases(**fixed)
        if fixed["format"].name == "Q4_K":
            yield cls(k=28672, n=2, rows_per_warp=1, **fixed)  # more than fits shared memory at once
        if fixed["format"].name == "Q3_K":
            yield cls(k=4864, n=5, digits=3, num_warps=2, **fixed)  # a loop, of one chunk

    @classmethod
    def _narrow(cls) -> dict[str, Any]:
        return {"num_warps": 2, "rows_per_warp": 1, "ahead": 3, "resident_threads": 256}


@register_variants("format", {f"batched_hw_dp4a_{id}_gemv": format for id, format in PACKED.items()})
@dataclass(frozen=True)
class BatchedHwDp4aGemv(HwDp4aGemv):
    """y = x W^T for m rows of quantised activations: hw_dp4a, with every weight loaded and unpacked once for all of them.

    y: f32[m, n]; w: u8[n, row_bytes]; digits: s8[m, digits, k]; scales: f32[m, k / 32]; sums: s32[m, k / 32]. Row i has the
    very bits that hw_dp4a gives for row i alone. m is at most 8: beyond, tiles of 8."""

    m: int = field(kw_only=True)
    rows_per_warp: int = field(default=1, kw_only=True)

    @property
    def name(self) -> str:
        return f"batched_hw_dp4a_{self.format.id}_gemv"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m", high=MOST_BATCHED)

    @property
    def batch(self) -> int:
        return self.m

    @property
    def _y_shape(self) -> tuple[int, ...]:
        return (self.m, self.n)

    def _store_row(self, k: KernelBuilder, row: Value, sums: list[Value], before: Value | None) -> None:
        for number, total in enumerate(sums):
            k.store(k.arg.y[number, row], total)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[BatchedHwDp4aGemv]:
        size = max(fixed["format"].block, BLOCK)
        yield cls(m=4, k=2048, n=9, **fixed)
        yield cls(m=3, k=11 * size, n=3, digits=1, num_warps=2, rows_per_warp=2, **fixed)
        if fixed["format"].name == "Q4_K":
            yield cls(m=8, k=4096, n=2, **fixed)  # more than fits shared memory at once
            yield cls(m=8, k=4352, n=2, digits=3, num_warps=2, **fixed)  # rows in two turns, in a loop over chunks
        elif fixed["format"].name in SAMPLED_WITH_THREE:
            yield cls(m=3, k=19 * size, n=3, digits=3, num_warps=2, **fixed)
