"""Gated activations (SwiGLU, GeGLU, ReGLU, GLU), as f32 and in the forms that a down projection reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ptxgen.dsl.kernel_type import HIDDEN, KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.activation.activated import MANY_ROWS, Activated
from ptxgen.kernels.activation.functions import GATES, Activation, Gate
from ptxgen.kernels.registry import GIVEN, register


@register(activation=GATES, digits=[None], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(activation=["silu", "gelu", "sigmoid"], digits=[GIVEN], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(activation=["silu", "gelu", "sigmoid"], digits=[None], m=[GIVEN], parts=[GIVEN], lane_run=[GIVEN])
@dataclass(frozen=True)
class FusedSwiglu(Activated):
    """y = activation(gate) * up; or y and its int8 planes; or the f16 split of y alone.

    y, gate, up: f32[n] or f32[m, n]; the forms are those of Activated.

    activation: "silu" (SwiGLU), "gelu" (GeGLU, with the form of gelu that has a tanh), "relu" (ReGLU) or "sigmoid"
    (GLU)."""

    sources = ("gate", "up")
    activation: str = field(default="silu", kw_only=True, metadata=HIDDEN)

    def __post_init__(self) -> None:
        if self.activation not in GATES:
            raise ArgumentError(f"a gated product activates by {', '.join(GATES)}, got {self.activation!r}")
        super().__post_init__()

    @property
    def gate(self) -> Gate:
        """How it activates the gate."""
        return GATES[self.activation]

    @property
    def operation(self) -> str:
        return f"fused_{self.gate.unit}"

    @property
    def function(self) -> Activation:
        return self.gate.function

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        activation = fixed.get("activation", "silu")
        if activation != "silu":
            yield cls(255, activation=activation)
            yield cls(37, m=7, activation=activation)
            yield from cls.form_cases(activation=activation)
            return
        yield from super().cases()
        for n, digits in ((1536, 2), (4096, 1), (576, 3), (32, 2)):
            yield cls(n, digits=digits)
        for n, digits, m in ((576, 2, 3), (160, 3, 7)):
            yield cls(n, digits=digits, m=m)
        for n, m, parts, lane_run in ((576, 3, 2, 64), (4, 1, 1, 4), (260, MANY_ROWS + 1, 2, 64)):
            yield cls(n, m=m, parts=parts, lane_run=lane_run)
