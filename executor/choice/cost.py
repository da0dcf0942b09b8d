"""A cost model of products of several rows of activations: it ranks the strategies that a format has where nothing was measured
on this GPU. Figures are of an H200 and scale with what a GPU's data sheet says; it knows no device and measures nothing.

A launch takes as long as the slowest of three: its bytes; its blocks in as many waves as the GPU needs, each as slow as one
block is alone; and the units of the multiprocessor with the most blocks. Blocks unpack weights and multiply them, and both cost
by rows of weights and windows of 256 values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from executor.base.environment import PRECISIONS
from executor.base.row_tiles import tiles
from executor.choice.strategies import DIGITS, default_strategy, has_form_for_rows
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.gpus.gpu import GPUS, Gpu
from ptxgen.kernels.gemm.block_grid import BlockGrid
from ptxgen.kernels.gemm.f16_mma_gemm import HalfMmaGemm
from ptxgen.kernels.gemm.mma_gemm import MmaGemm
from ptxgen.kernels.gemm.stationary_gemm import StationaryGemm
from ptxgen.kernels.gemm.suited import SUITED, suited_for, wgmma_variants
from ptxgen.kernels.gemm.wgmma_gemm import WgmmaGemm
from ptxgen.kernels.quantize.f16_split import WINDOW
from ptxgen.kernels.registry import entries_of
from ptxgen.kernels.suited import LARGE, Limits
from ptxgen.target import Target

ROUNDING: Final[Mapping[str, Mapping[str, int]]] = {
    precision: {"digits": digits, "parts": 2 if digits > 1 else 1} for precision, digits in DIGITS.items()
}
"""What becomes of an activation, by precision: int8 planes, or f16 parts."""

FITTED_ON: Final = GPUS["h200"]


class Cost(NamedTuple):
    """Of a strategy on the H200. launch, and window (what a block waits for in each of its windows): microseconds. read: the
    share of the data sheet's bandwidth. The others are microseconds of 64 rows of weights and a window of k, per unit of
    unpacking (1 for Q4_K) or per column (a row of activations times its planes or parts): *_alone of a block that has its
    multiprocessor for itself, the others of a multiprocessor that has enough to do. unhidden: the share of the shorter of the
    two that is not hidden by the longer."""

    launch: float
    read: float
    window: float
    unpack_alone: float
    column_alone: float
    unpack: float
    column: float
    unhidden: float = 0.0


COSTS: Final[Mapping[type[KernelType], Cost]] = {
    MmaGemm: Cost(2.7, 0.65, 1.22, 0.393, 0.0048, 0.282, 0.0167),
    HalfMmaGemm: Cost(2.4, 0.57, 0.01, 0.480, 0.0491, 0.348, 0.0112),
    StationaryGemm: Cost(2.9, 0.66, 0.19, 0.808, 0.1241, 0.125, 0.0002),
    WgmmaGemm: Cost(1.4, 0.68, 1.05, 0.132, 0.0021, 0.429, 0.0040, 0.08),
}
"""Fitted to 860 products of Q4_K and Q6_K with many settings (gemm-*-8b-h200.json, tune-rows-8b-h200.json), of which they are
off by 5 to 12 % in the mean."""

STAGED: Final = Cost(6.8, 0.49, 0.0, 0.0005, 0.0102, 0.170, 0.0093, 0.2)
"""Of `wgmma` whose weights are staged."""

PRODUCTS: Final[Mapping[type[KernelType], float]] = {MmaGemm: 2.0, HalfMmaGemm: 2.0, StationaryGemm: 2.0, WgmmaGemm: 3.0}
"""Instructions of a weight below that are none of unpacking."""

UNPACKING: Final[Mapping[type[KernelType], Mapping[str, float]]] = {
    MmaGemm: {
        "iq1m": 9.8, "iq1s": 6.8, "iq2s": 10.4, "iq2xs": 10.4, "iq2xxs": 7.8, "iq3s": 8.8, "iq3xxs": 8.4, "iq4nl": 6.8,
        "iq4xs": 6.8, "mxfp4": 7.4, "nvfp4": 9.5, "q1_0": 6.1, "q2k": 9.1, "q3k": 9.5, "q4_0": 5.9, "q4_1": 5.4, "q4k": 5.6,
        "q5_0": 7.2, "q5_1": 6.6, "q5k": 6.4, "q6k": 9.9, "q8_0_aligned": 5.9, "q8_0": 6.8, "tq1_0": 13.2, "tq2_0": 6.1,
    },
    HalfMmaGemm: {"q4k": 4.8, "q5k": 6.1, "q6k_aligned": 9.8, "q6k": 9.5},
    StationaryGemm: {"q4k": 4.4, "q5k": 5.4, "q6k_aligned": 9.3},
    WgmmaGemm: {"q4k": 6.3, "q5k": 6.9, "q6k_aligned": 8.0, "q6k": 10.5},
}  # fmt: skip
"""Instructions of a weight, by the id of its format, counted in the PTX of 8 rows; of `wgmma`, whose products hide them, fitted
but for Q5_K, which is halfway as in the PTX."""

GEMV_LAUNCH, GEMV_READ = 2.5, 0.62
"""As `launch` and `read` of Cost, of launches of a GEMV for up to 8 rows of activations,"""
PLANE: Final = 0.5e-7
"""microseconds of a weight and a row in each of its int8 planes,"""
ROW: Final = 0.2e-7
"""and beside its planes (gemv-batched-h200.json, tune-rows-8b-h200.json)."""


@dataclass(frozen=True)
class CostModel:
    """What products are expected to take on a GPU. target: what its kernels are for."""

    gpu: Gpu
    target: Target

    def cheapest(self, format: Format, k: int, n: int, rows: int, precision: str) -> tuple[KernelType, float] | None:
        """The kernel for n rows of k weights and so many rows of activations that is expected to take the least time, and its
        microseconds. None where the format has no kernel for several."""
        kernels = strategies(format, k, n, rows, precision, Limits(self.target, self.gpu.multiprocessors))
        costs = [(self.microseconds(one, rows), one) for one in kernels if one.fits(self.target)]
        microseconds, kernel = min(costs, key=lambda one: one[0], default=(0.0, None))
        return None if kernel is None else (kernel, microseconds)

    def microseconds(self, kernel: KernelType, rows: int) -> float:
        """What a kernel of `strategies` is expected to take for so many rows of activations."""
        cost = STAGED if isinstance(kernel, WgmmaGemm) and kernel.staged else COSTS.get(type(kernel))
        return self._of_gemv(kernel, rows) if cost is None else self._of_gemm(kernel, cost)

    def _of_gemm(self, kernel: Any, cost: Cost) -> float:
        kind, gpu = type(kernel), self.gpu
        grid: BlockGrid = kernel.blocks
        launch = kernel.launch()
        split, slices = getattr(kernel, "split", 1), grid.slices
        planes = 1 if grid.abreast else kernel.parameters().get("parts") or kernel.digits
        blocks = math.prod(launch.grid)
        resident = self._resident(kernel, launch.threads, launch.dynamic_shared)
        unpacking = (UNPACKING[kind][kernel.format.id] - PRODUCTS[kind]) / (UNPACKING[kind]["q4k"] - PRODUCTS[kind])
        windows, tiles_of_rows, columns = kernel.k / slices / WINDOW, grid.block_rows / 64, grid.columns * planes
        unpack, column = unpacking / self._clock, columns / (self._clock * self._tensor(kind))
        alone = cost.window / self._clock + (cost.unpack_alone * unpack + cost.column_alone * column) * tiles_of_rows
        waves = -(-blocks // (gpu.multiprocessors * resident))
        busiest: float = (
            -(-blocks // gpu.multiprocessors) * (cost.unpack * unpack + cost.column * column) * tiles_of_rows * windows
        )
        read: float = kernel.work().bytes / (cost.read * self._read)
        waiting: float = waves * windows / split * alone
        return cost.launch + max(read, waiting, busiest) + cost.unhidden * min(waiting, busiest)

    def _resident(self, kernel: Any, threads: int, shared: int) -> int:
        """Blocks that a multiprocessor holds at once, by their threads (of `wgmma`, by 128 registers of each) and what shared
        memory they ask for."""
        held = getattr(kernel, "resident_threads", 512)
        of = self.gpu.multiprocessor
        room = of.shared_bytes // (shared + of.shared_reserved_bytes) if shared else held
        return max(1, min(held // threads, room))

    def _of_gemv(self, kernel: Any, rows: int) -> float:
        planes = getattr(kernel, "digits", 0) or 4  # f32 activations, which take as long as four planes
        each: float = (
            kernel.n * kernel.k * (PLANE * planes + ROW) * FITTED_ON.multiprocessors / self.gpu.multiprocessors / self._clock
        )
        read: float = kernel.format.row_bytes(kernel.k) * kernel.n / (GEMV_READ * self._read)
        return sum(len(starts) * (GEMV_LAUNCH + max(read, each * count)) for count, starts in tiles(rows))

    @property
    def _read(self) -> float:
        """Bytes a microsecond at the data sheet's bandwidth."""
        return self.gpu.bandwidth_gbps * 1e3

    def _tensor(self, kind: type[KernelType]) -> float:
        """What `mma` does in a clock of a multiprocessor, as a share of FITTED_ON's; `wgmma` is there alone."""
        own, fitted = self.gpu.multiprocessor.mma, FITTED_ON.multiprocessor.mma
        return own.int8 / fitted.int8 if kind is MmaGemm else own.f16 / fitted.f16

    @property
    def _clock(self) -> float:
        return self.gpu.clock_mhz / FITTED_ON.clock_mhz


def strategies(
    format: Format, k: int, n: int, rows: int, precision: str = PRECISIONS[0], limits: Limits = LARGE
) -> Iterator[KernelType]:
    """A kernel of each strategy for several rows, with the settings that suit the shape; and the default of one row if it has a
    form for several. Some run on no target but their own."""
    for kind in SUITED:
        for entry in (one for one in entries_of(kind) if one.fixed.get("format") == format):
            rounding = {name: value for name, value in ROUNDING[precision].items() if name in entry.parameters}
            with suppress(ArgumentError):  # of a strategy that cannot do this shape
                kernel = suited_for(kind, format, k=k, n=n, m=rows, rounding=rounding, limits=limits)
                yield kernel
                yield from wgmma_variants(kernel, limits.multiprocessors) if isinstance(kernel, WgmmaGemm) else ()
    usual = default_strategy(format, precision).make(k, n)
    if has_form_for_rows(usual):
        yield usual
