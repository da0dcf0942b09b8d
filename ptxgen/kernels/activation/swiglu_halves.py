"""SwiGLU of several rows as f16 halves, for a down projection that reads these and nothing else. Few rows: a block a
window of a row, one thread a value. Many: a block a window of a tile of rows, a lane 16 values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HalfForm, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.kernels.activation.elementwise import BatchedFusedSwiglu
from ptxgen.kernels.quantize.activation_halves import TILE, WINDOW, arrays, pack, tiles_of, unwritten, windows_of
from ptxgen.kernels.quantize.half_bounds import half_bounds
from ptxgen.kernels.quantize.pack_halves import LANES, RUN, THREADS, PackHalves, lane_runs, write_halves, write_staged_halves
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.types import F32

MANY_ROWS = 32
"""From so many rows on tiles are enough work for a GPU; fewer rows are spread over more threads, to be done sooner."""


@register
@dataclass(frozen=True)
class BatchedFusedSwigluHalves(KernelType):
    """The halves of gate * sigmoid(gate) * up for m rows: batched_fused_swiglu and pack_halves, bit for bit.

    gate, up: f32[m, n], n a multiple of 4. halves: f16[ceil(m / 8), ceil(n / 256), 17, parts, 2, 8, 8]; scales: f32[m,
    ceil(n / 256)].
    """

    family: ClassVar[str] = "activation"
    name = "batched_fused_swiglu_halves"
    least_sm = 80
    n: int
    m: int
    parts: int
    lane_run: int

    def __post_init__(self) -> None:
        require(self, "n", multiple=RUN)
        require(self, "m", high=MOST_ROWS // TILE * TILE)
        assert self.form  # checks parts and lane_run

    @property
    def form(self) -> HalfForm:
        """In which form it writes the halves."""
        return HalfForm(self.parts, self.lane_run)

    @property
    def swiglu(self) -> BatchedFusedSwiglu:
        """The kernel that makes the values."""
        return BatchedFusedSwiglu(n=self.n, m=self.m)

    def signature(self) -> Signature:
        _, *inputs = self.swiglu.signature().items()
        return dict([*arrays(self.m, self.n, self.form, "out").items(), *inputs])

    def launch(self) -> LaunchConfig:
        if self.m >= MANY_ROWS:
            return LaunchConfig(grid=(windows_of(self.n), tiles_of(self.m)), block=THREADS)
        return LaunchConfig(grid=(windows_of(self.n), TILE * tiles_of(self.m)), block=WINDOW)

    def emit(self, k: KernelBuilder) -> None:
        if self.m >= MANY_ROWS:
            self._write_tile(k)
        else:
            self._write_window(k)

    def _write_tile(self, k: KernelBuilder) -> None:
        """A window of eight rows, two of them a warp, so that its stores fill whole sectors. A lane makes the 16 values that it
        packs: their loads are on the way together, and their exponentials are computed side by side."""
        row, window = k.ctaid.y * TILE + k.tid.x // LANES, k.ctaid.x
        runs = lane_runs(k, self.form, row, window, self.m, self.n)
        gates, ups = ([value for run in runs for value in run.load(k, source)] for source in (k.arg.gate, k.arg.up))
        values = iter([gated * up for gated, up in zip(mathlib.silu_of_each(k, gates), ups, strict=True)])
        write_halves(k, self.form, row, window, [x for run in runs for x in run.or_zeros(k, list(islice(values, RUN)))])

    def _write_window(self, k: KernelBuilder) -> None:
        """A window of a row: a thread computes a value, and the first lanes pack what all have staged."""
        row, place = k.ctaid.y, k.ctaid.x * WINDOW + k.tid.x
        live = (row < self.m) & (place < self.n)
        staged = k.shared(F32, WINDOW)
        value = k.f32(0.0)
        with k.when(live):
            value @= self.swiglu.compute(k, k.load(k.arg.gate[row, place]), k.load(k.arg.up[row, place]))
        k.store(staged[k.tid.x], value)
        k.barrier()
        write_staged_halves(k, self.form, row, k.ctaid.x, 1, staged)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return pack(self.swiglu.reference(**arguments)["y"], self.form)._asdict()

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """What that of fused_swiglu lets the halves be."""
        y, bound = self.swiglu.reference(**arguments)["y"], np.asarray(self.swiglu.tolerance(**arguments)["y"])
        return half_bounds(y, bound, self.form)

    def work(self) -> Work:
        swiglu, packing = self.swiglu.work(), PackHalves(self.m, self.n, self.parts, self.lane_run).work()
        return Work(flops=swiglu.flops + packing.flops, bytes=swiglu.bytes + packing.bytes - 2 * F32.bytes * self.swiglu.size)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(n=576, m=3, parts=2, lane_run=64)
        yield cls(n=4, m=1, parts=1, lane_run=4)
        yield cls(n=260, m=MANY_ROWS + 1, parts=2, lane_run=64)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        inputs = self.swiglu.inputs(rng)
        return {"gate": inputs["gate"], "up": inputs["up"], **unwritten(self.m, self.n, self.form)}
