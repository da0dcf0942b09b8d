"""The plainest kernel on an f16 split of activations, for tests of how the executor gives them to kernels: a thread a
result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HalfForm
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.quantize.f16_split import STEPS, TILE, WINDOW, pack, values
from ptxgen.types import F16


@dataclass(frozen=True)
class PlainHalvesGemm(GemvType):
    """Y = X W^T for m rows; y: f32[m, n]; w: u8[n, row_bytes] of f16; halves and scales of lane_run=4."""

    name_pattern = "plain_halves_{format}_gemm"
    family: ClassVar[str] = "gemm"
    least_sm = 80
    m: int = field(kw_only=True)
    parts: int = field(default=2, kw_only=True)

    @property
    def activation_f16_split(self) -> HalfForm:
        return HalfForm(self.parts, 4)

    @property
    def batch(self) -> tuple[int, ...]:
        return (self.m,)

    @property
    def chain(self) -> int:
        """Each product, that with the scale, the sum of the parts and the additions."""
        return self.k + 2

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(-(-self.n // 32), self.m), block=32)

    def emit(self, k: KernelBuilder) -> None:
        row, n = k.ctaid.y, k.ctaid.x * 32 + k.tid.x
        total = k.f32(0.0)
        with k.when(n < self.n):
            for i in k.strided(0, self.k):
                window, place = i // WINDOW, i % WINDOW
                step, t, u, c = place // STEPS, place // 4 % 4, place // 2 % 2, place % 2
                weight = k.f32(k.load(k.arg.w[n, i * 2], F16))
                x = k.f32(0.0)
                for part in range(self.parts):
                    x = x + k.f32(k.load(k.arg.halves[row // TILE, window, step, part, c, row % TILE, t * 2 + u]))
                total @= k.fma(weight, x * k.load(k.arg.scales[row, window]), total)
            k.store(k.arg.y[row, n], total)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        inputs = super().inputs(rng)
        return inputs | pack(inputs.pop("x"), self.activation_f16_split)._asdict()

    def accuracy(self, rng: np.random.Generator) -> Mapping[str, float]:
        return {"any": 2.0 ** (-11 * self.parts)}

    def _in_float64(self, arguments: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        x = values(arguments["halves"], arguments["scales"], self.activation_f16_split, self.k)
        return self.format.dequantize(arguments["w"]).astype("f8"), x

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[PlainHalvesGemm]:
        yield cls(m=3, k=320, n=5, **fixed)
