"""The fast GEMV on activation digits: fragments of super-blocks on neighbouring lanes, activations in shared memory,
several rows a warp, weights loaded ahead. On one row of activations, on several, and with the residual connection as epilogue:
what a projection adds to the stream goes there at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import RING_SHARED, LaunchConfig
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.formats import RepackedFormat
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.gemv.chunks import Chunk, ChunkLoop, Warp, loops
from ptxgen.kernels.gemv.digit_gemv_type import PACKED_WITH_REPACKED, SAMPLED_WITH_THREE
from ptxgen.kernels.gemv.hw_dp4a_type import LATE_FROM, MULTIPROCESSORS, NO_RING, HwDp4aType
from ptxgen.kernels.gemv.shared_digits import Layout, chunks, rows_at_once
from ptxgen.kernels.gemv.turns import Turns
from ptxgen.kernels.gemv.weight_ring import WeightRing
from ptxgen.kernels.joined import further
from ptxgen.kernels.quantize.activation_digits import BLOCK
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import MAX_STATIC_SHARED, WARP_SIZE
from ptxgen.types import F32

SHARED = ("format", "k", "digits", "normed", "row_parts")
"""The fields in which matrices must be alike to be multiplied in one launch."""

SIXTEEN_WARPS, THEIR_REGISTERS = 16 * WARP_SIZE, 80
"""Threads of a block, and the most registers of each that leave room on a multiprocessor for a block of 8 warps of 96, as those
that multiply by gate and up and copy ahead beside one of the output projection. With 88 a thread a step of the 8B took 1588 us
instead of 1537 (H200)."""

MOST_BATCHED = 8
"""Rows of activations of a batched kernel."""


@register(format=PACKED_WITH_REPACKED)
@dataclass(frozen=True)
class HwDp4aGemv(HwDp4aType):
    """y = W x on quantised activations, the fast path: dp4a on fragments that neighbouring lanes share a super-block in.

    y: f32[n]; w: u8[n, row_bytes]; digits: s8[1, digits, k]; scales: f32[1, k / 32]; sums: s32[1, k / 32], as q8_quantize
    (digits=1), q16_quantize (2) or q24_quantize (3) writes them. A half-warp takes four super-blocks of Q4_K side by side, a
    lane the 64 weights of a chunk: so each pair of 6-bit scales is unpacked once, where a half-warp for one super-block would
    unpack it in four lanes. The rows of a warp share every read of the activations, the warps of a block their staging."""

    name_pattern = "hw_dp4a_{format}_gemv"
    batched_alike = True

    def batched(self, m: int) -> tuple[KernelType, ...]:
        if type(self) is not HwDp4aGemv or self.normed:  # a subclass computes something else
            return ()
        return (BatchedHwDp4aGemv(self.format, k=self.k, n=self.n, m=m, digits=self.digits),)

    def with_norm(self) -> KernelType | None:
        return replace(self, normed=True)

    def in_parts(self, parts: int) -> KernelType | None:
        return replace(self, row_parts=parts) if self._takes_parts(parts) else None

    def _takes_parts(self, parts: int) -> bool:
        """Whether a row can come in so many parts: it is staged at once, not in a loop, with room for the squares beside it."""
        if self.pdl or self.activation_rows > 1 or self.k % (BLOCK * parts) or not self.stages_at_once:
            return False
        squares = F32.bytes * self.k // BLOCK
        static = Layout(self.format, self.k, 1, self.digits).bytes + squares + self.static_bytes
        if not self.asked_for and static > MAX_STATIC_SHARED:
            return False
        return self.in_turns or not loops(self, chunks(self.format, self.k, 1, self.digits))

    def with_residual_norm(self, digits: int) -> KernelType | None:
        from ptxgen.kernels.gemv.hw_dp4a_normed import HwDp4aGemvResidualNormed  # is an HwDp4aGemv itself

        return HwDp4aGemvResidualNormed.suited(self, digits) if type(self) is HwDp4aGemv else None

    def gated(self, up: KernelType, digits: int) -> KernelType | None:
        from ptxgen.kernels.gemv.gated_hw_dp4a import GatedHwDp4aGemv  # is an HwDp4aGemv itself

        if type(self) is not HwDp4aGemv or type(up) is not HwDp4aGemv:
            return None
        alike = all(getattr(up, name) == getattr(self, name) for name in (*SHARED, "n"))
        return GatedHwDp4aGemv.suited(self, digits) if alike else None

    def with_residual(self) -> KernelType | None:
        return HwDp4aGemvResidual(**self.parameters(), format=self.format) if type(self) is HwDp4aGemv else None

    def joined(self, others: Sequence[KernelType]) -> KernelType | None:
        """With this one's settings, and the bits that each has alone. The last of three may have another format."""
        from ptxgen.kernels.gemv.joined_hw_dp4a import JoinedHwDp4aGemv  # is an HwDp4aGemv itself
        from ptxgen.kernels.gemv.mixed_hw_dp4a import MixedHwDp4aGemv

        def alike(one: KernelType, names: Sequence[str] = SHARED) -> TypeGuard[HwDp4aGemv]:
            return type(one) is HwDp4aGemv and all(getattr(one, name) == getattr(self, name) for name in names)

        if type(self) is not HwDp4aGemv:
            return None
        more = further(others, alike)
        if more is not None:
            turns = self.turns if min((n for n in more if n), default=self.n) >= self.warp_results else 1
            settings = {**self.parameters(), "turns": turns, **NO_RING}
            return JoinedHwDp4aGemv(**settings, format=self.format, n2=more[0], n3=more[1])
        if len(others) != 2:
            return None
        same, other = others
        if not (alike(same) and alike(other, [name for name in SHARED if name != "format"])):
            return None
        return MixedHwDp4aGemv.of(self, same, other)

    def emit(self, k: KernelBuilder) -> None:
        if self.in_turns:
            self._emit_turns(k)
            return
        together = rows_at_once(self.format, self.k, self.activation_rows, self.digits)
        turns = [range(row, min(row + together, self.activation_rows)) for row in range(0, self.activation_rows, together)]
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
            with k.loads_in_order() if self.loads_rows_first else nullcontext():
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
                    before = self._early(k, warp)
                chunk.add(rows)
        self._store(k, warp, before)

    def _emit_looped(self, k: KernelBuilder, turns: list[range], most_steps: int) -> None:
        loop = ChunkLoop(self, k, turns, most_steps)
        if self.pdl:
            k.griddepcontrol(action="wait")
        before = self._early(k, loop.warp)
        for first in loop.chunks():
            for rows in turns:
                loop.fill(rows, first)
                if self.pdl and rows is turns[0]:
                    k.griddepcontrol(action="launch_dependents")
                loop.add(rows, first)
        self._store(k, loop.warp, before)

    def _emit_turns(self, k: KernelBuilder) -> None:
        warp = Warp(self, k, Layout(self.format, self.k, 1, self.digits))
        turns = WeightRing(warp, self.ring_start) if self.ring else Turns(warp)
        if self.pdl:
            k.griddepcontrol(action="wait")
        elif self.ring:
            k.wait_for_launch_before()
        warp.shared.fill(range(1), 0, self.k, turns.fill_late if isinstance(turns, WeightRing) else None)
        if self.pdl:
            k.griddepcontrol(action="launch_dependents")
        early: list[Value | None] = []
        sums = turns.sums(lambda: early.extend(self._early(k, warp)))
        if self.holds_next:
            k.let_next_launch_start()
        self._store_own(k, warp, sums, early)

    def _early(self, k: KernelBuilder, warp: Warp) -> list[Value | None]:
        """What `_store` and `_store_own` need beside the sums, loaded before they are known."""
        return [self._before(k, row) for row in warp.numbers] if not self.in_turns else []

    def _before(self, k: KernelBuilder, row: Value) -> Value | None:
        """What an epilogue needs of a row's result before the sum is known, loaded so early that nobody waits for it. `row` is
        below n."""
        return None

    def _store(self, k: KernelBuilder, warp: Warp, before: list[Value | None]) -> None:
        sums = [[warp.sum(total) for total in totals] for totals in warp.totals]
        y = warp.result()
        with k.when(warp.lane.place == 0):
            for i, (of_row, loaded) in enumerate(zip(sums, before, strict=True)):
                row = warp.number(i)
                with nullcontext() if warp.whole else k.when(row < warp.n):
                    self._store_row(k, y, row, of_row, loaded)

    def _store_own(self, k: KernelBuilder, warp: Warp, sums: list[Value], before: list[Value | None]) -> None:
        """From the sum of each row of the warp, in the lane that has it (Warp.own), all that is written."""
        y, row = warp.result(), warp.first_row + warp.own
        has_row = warp.own < self.warp_results
        with k.when(has_row if warp.whole else has_row & (row >= warp.first_new)):
            self._store_row(k, y, row, sums, None)

    def _store_row(self, k: KernelBuilder, y: GlobalArray, row: Value, sums: list[Value], before: Value | None) -> None:
        """Store what a row of weights gave with each row of activations."""
        k.store(y[row], sums[0])

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[HwDp4aGemv]:
        yield from super().cases(**fixed)
        if fixed["format"].name == "Q4_K":
            yield cls(k=28672, n=2, rows_per_warp=1, **fixed)  # more than fits shared memory at once
            yield cls(k=4096, n=5, digits=3, normed=True, **cls._narrow(), **fixed)
            yield cls(k=1024, n=27, digits=3, **cls._narrow() | {"rows_per_warp": 2}, **fixed)  # two rows side by side
            in_turns = {**cls._narrow(), "turns": 4}
            yield cls(k=4096, n=37, digits=3, normed=True, **in_turns, **fixed)  # the last warp has one new row
            yield cls(k=1024, n=53, digits=3, **in_turns, **fixed)
            yield cls(k=3584, n=13, digits=3, normed=True, ring=2, **cls._narrow(), **fixed)  # weights copied ahead
            yield cls(k=4096, n=37, digits=3, ring=3, **in_turns, **fixed)
            yield cls(k=4096, n=5, digits=3, ring=3, turns=2, holds_next=True, **cls._narrow(), **fixed)
            yield cls(k=18944, n=5, digits=3, ring=2, **cls._narrow(), **fixed)  # a loop
            yield cls(k=4096, n=5, digits=3, normed=True, row_parts=2, ring=2, **cls._narrow(), **fixed)
        if fixed["format"].name == "Q6_K":
            yield cls(k=896 * 2, n=3, digits=3, normed=True, **cls._narrow(), **fixed)
        if fixed["format"].name == "Q8_0_ALIGNED":
            yield cls(k=3584, n=5, digits=2, row_parts=4, **cls._narrow(), **fixed)
            yield cls(k=4864, n=5, digits=3, ring=2, turns=2, **cls._narrow() | {"rows_per_warp": 2}, **fixed)
        if fixed["format"].name == "Q3_K":
            yield cls(k=4864, n=5, digits=3, num_warps=2, **fixed)  # a loop, of one chunk


@register(format=PACKED_WITH_REPACKED)
@dataclass(frozen=True)
class BatchedHwDp4aGemv(HwDp4aGemv):
    """y = x W^T for m rows of quantised activations: hw_dp4a, with every weight loaded and unpacked once for all of them.

    y: f32[m, n]; w: u8[n, row_bytes]; digits: s8[m, digits, k]; scales: f32[m, k / 32]; sums: s32[m, k / 32]. Row i has the
    very bits that hw_dp4a gives for row i alone. m is at most 8: beyond, tiles of 8."""

    m: int = field(kw_only=True)
    rows_per_warp: int = field(default=1, kw_only=True)

    name_pattern = "batched_hw_dp4a_{format}_gemv"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m", high=MOST_BATCHED)

    @property
    def batch(self) -> tuple[int, ...]:
        return (self.m,)

    def _store_row(self, k: KernelBuilder, y: GlobalArray, row: Value, sums: list[Value], before: Value | None) -> None:
        for number, total in enumerate(sums):
            k.store(y[number, row], total)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[BatchedHwDp4aGemv]:
        size = max(fixed["format"].block, BLOCK)
        if isinstance(fixed["format"], RepackedFormat):
            yield cls(m=3, k=11 * size, n=3, digits=3, num_warps=2, rows_per_warp=2, **fixed)
            return
        yield cls(m=4, k=2048, n=9, **fixed)
        yield cls(m=3, k=11 * size, n=3, digits=1, num_warps=2, rows_per_warp=2, **fixed)
        if fixed["format"].name == "Q4_K":
            yield cls(m=8, k=4096, n=2, **fixed)  # more than fits shared memory at once
            yield cls(m=8, k=4352, n=2, digits=3, num_warps=2, **fixed)  # rows in two turns, in a loop over chunks
        elif fixed["format"].name in SAMPLED_WITH_THREE:
            yield cls(m=3, k=19 * size, n=3, digits=3, num_warps=2, **fixed)


@register(format=PACKED_WITH_REPACKED)
@dataclass(frozen=True)
class HwDp4aGemvResidual(HwDp4aGemv):
    """y += W x on quantised activations: hw_dp4a and residual_add in one, with the very bits of the two.

    y: f32[n], in place; w, digits, scales and sums as in hw_dp4a."""

    name_pattern = "hw_dp4a_{format}_gemv_residual"
    paced = True
    late_from = LATE_FROM

    def signature(self) -> Signature:
        return {**super().signature(), "y": update(F32, self.n)}

    def launch(self) -> LaunchConfig:
        """With a ring that leaves half of the shared memory, 16 warps leave registers, too, for a block of what comes next."""
        launch = super().launch()
        leaves = self.ring and self.asked_for <= RING_SHARED // 2 and launch.threads == SIXTEEN_WARPS
        return replace(launch, most_registers=THEIR_REGISTERS) if leaves else launch

    def with_weight_ring(self) -> KernelType | None:
        """By blocks of 16 warps of a row or two, one a multiprocessor, as those that leave a norm have them; of more rows only
        where activations come in pieces else (43 -> 18 us of 18944 x 3584, H200). A third slot of a row, of down of half of the
        8B, won 22 us of a step of 1415 (two H100s)."""
        for rows in (1, 2):
            one = replace(self, num_warps=16, rows_per_warp=rows, turns=1, pdl=False, **NO_RING)
            if one.launch().blocks <= MULTIPROCESSORS:
                return one.ringed(3)
        return self.ringed(2) if len(chunks(self.format, self.k, 1, self.digits)) > 1 else None

    def _before(self, k: KernelBuilder, row: Value) -> Value | None:
        if self.n % self.block_rows:
            return None  # a warp without a row of its own is given the last one, which another warp may be writing
        value: Value = k.load(k.arg.y[row])
        return value

    def _store_row(self, k: KernelBuilder, y: GlobalArray, row: Value, sums: list[Value], before: Value | None) -> None:
        held = k.load(y[row]) if before is None else before
        k.store(y[row], held + sums[0])

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        return {"y": arguments["y"].astype("f8") + super().reference(**arguments)["y"]}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        """That of hw_dp4a, and the rounding of one more addition."""
        product = super().tolerance(**arguments)["y"]
        return {"y": product + UNIT * (np.abs(self.reference(**arguments)["y"]) + product)}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return super().inputs(rng) | {"y": rng.standard_normal(self.n).astype(np.float32)}

    def work(self) -> Work:
        product = super().work()
        return Work(flops=product.flops + self.n, bytes=product.bytes + 4 * self.n)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[HwDp4aGemvResidual]:
        yield cls(k=512, n=5, digits=3, **cls._narrow(), **fixed)  # the sum is tested in hw_dp4a
        if fixed["format"].name == "Q4_K":
            yield cls(k=512, n=4, digits=3, **cls._narrow(), **fixed)  # every warp has rows, so y is loaded early
            yield cls(k=14336, n=5, digits=3, row_parts=2, ring=2, **cls._narrow(), **fixed)
