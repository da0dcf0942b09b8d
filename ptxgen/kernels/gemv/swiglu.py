"""The epilogues that make a gated activation (SwiGLU, GeGLU, ReGLU) of the products of a gate and an up projection."""

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


@dataclass(frozen=True)
class SwiGlu(Epilogue):
    """silu of the first product times the second, with the bits of fused_swiglu."""

    summary: ClassVar[str] = "SwiGLU of gate and up: silu(W x) * (W2 x)"
    paced: ClassVar[bool] = True
    activation: ClassVar[str] = "silu"

    def result(self, k: KernelBuilder, values: Sequence[Value], loaded: Value | None) -> Value:
        gate, up = values
        (y,) = self._alone(1).computed(k, [gate], [up])
        return y

    def reference(self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64]) -> Exact:
        gate, up = values
        return Exact(self._alone(blocks.n).exact(gate, up), {})

    def tolerance(
        self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64], bounds: Sequence[Float64]
    ) -> Exact:
        """What gate and up are off by is carried on by the slope of the activation. Then the unit is off as where it is alone,
        relative to what is carried on, too: no bound of GATES rises by more than 2^-20 of that where the gate is off."""
        (gate, up), (gate_off, up_off), alone = values, bounds, self._alone(blocks.n)
        most_up = np.abs(up) + up_off
        carried = alone.gate.steepest * gate_off * most_up + np.abs(alone.exact(gate, up_off))
        return Exact(carried * (1 + 2.0**-20) + alone.bound(gate, most_up) + np.finfo(np.float32).tiny, {})

    def work(self, blocks: Blocks) -> Work:
        return Work(self._alone(blocks.n).work().flops, 0)

    def _alone(self, n: int) -> FusedSwiglu:
        """The kernel that makes n values of the products."""
        return FusedSwiglu(n=n, activation=self.activation)


@dataclass(frozen=True)
class GeGlu(SwiGlu):
    """gelu of the first product times the second, with the bits of fused_geglu."""

    suffix: ClassVar[str] = "_geglu"
    summary: ClassVar[str] = "GeGLU of gate and up: gelu(W x) * (W2 x)"
    activation: ClassVar[str] = "gelu"


@dataclass(frozen=True)
class ReGlu(SwiGlu):
    """relu of the first product times the second, with the bits of fused_reglu."""

    suffix: ClassVar[str] = "_reglu"
    summary: ClassVar[str] = "ReGLU of gate and up: relu(W x) * (W2 x)"
    activation: ClassVar[str] = "relu"


GATED: Final[Mapping[str, type[SwiGlu]]] = {one.activation: one for one in (SwiGlu, GeGlu, ReGlu)}
"""By the name of the activation."""
