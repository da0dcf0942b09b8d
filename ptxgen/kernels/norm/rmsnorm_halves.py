"""RMSNorm of several rows and the f16 halves of the result in one launch: the bits of batched_rmsnorm and pack_halves one after
the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HalfForm, KernelType, LaunchConfig, Signature, Work
from ptxgen.kernels.norm.rmsnorm import LARGEST_ROW, THREADS, RmsNorm
from ptxgen.kernels.quantize.activation_halves import TILE, WINDOW, arrays, pack, tiles_of, unwritten
from ptxgen.kernels.quantize.half_bounds import half_bounds
from ptxgen.kernels.quantize.pack_halves import RUN, PackHalves, write_staged_halves
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.types import F32


@register
@dataclass(frozen=True)
class BatchedRmsNormHalves(RmsNorm):
    """y = gamma * x / sqrt(mean(x^2) + eps) for each of m rows, and y as one or two f16 with a scale for every 256.

    y, x: f32[m, hidden]; halves: f16[ceil(m / 8), ceil(hidden / 256), 17, parts, 2, 8, 8]; scales: f32[m, ceil(hidden / 256)];
    gamma: f32[hidden]; eps: f32 scalar. hidden is a multiple of 4. What the halves mean: quantize/activation_halves.py. Each
    block makes the results of 1024 values of a row, or of a row past the last of a tile, the halves of which are zeros.
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
        return LaunchConfig(grid=(self.chunks, TILE * tiles_of(self.m)), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
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

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().inputs(rng), **unwritten(self.m, self.hidden, self.form)}
