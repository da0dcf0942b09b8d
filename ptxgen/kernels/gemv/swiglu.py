"""The epilogue that makes SwiGLU of the products of a gate and an up projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.value import Value
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.epilogue import Epilogue, Exact, Float64

STEEPEST: Final = 1.1
"""No slope of silu is more than that: 1.0999."""


@dataclass(frozen=True)
class SwiGlu(Epilogue):
    """silu of the first product times the second, with the bits of fused_swiglu."""

    summary: ClassVar[str] = "SwiGLU of gate and up: silu(W x) * (W2 x)"
    paced: ClassVar[bool] = True

    def result(self, k: KernelBuilder, values: Sequence[Value], loaded: Value | None) -> Value:
        gate, up = values
        return _swiglu(1).compute(k, gate, up)

    def reference(self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64]) -> Exact:
        gate, up = values
        return Exact(_swiglu(blocks.n).exact(gate, up), {})

    def tolerance(
        self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64], bounds: Sequence[Float64]
    ) -> Exact:
        """What gate and up are off by is carried on by the slope of silu. Then SwiGLU is off as in fused_swiglu, relative to
        what is carried on, too."""
        (gate, up), (gate_off, up_off), swiglu = values, bounds, _swiglu(blocks.n)
        most_up = np.abs(up) + up_off
        carried = STEEPEST * gate_off * most_up + np.abs(swiglu.exact(gate, up_off))
        return Exact(carried * (1 + 2.0**-20) + swiglu.bound(gate, most_up) + np.finfo(np.float32).tiny, {})

    def work(self, blocks: Blocks) -> Work:
        return Work(_swiglu(blocks.n).work().flops, 0)


def _swiglu(n: int) -> FusedSwiglu:
    """The kernel that makes n values of the products."""
    return FusedSwiglu(n=n)
