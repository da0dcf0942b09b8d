"""What operations of a step read and write: values, and the forms that kernels read instead of f32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import HalfForm, KernelType
from ptxgen.kernels import compose

Form = int | HalfForm
"""What activations become for the kernels that read them: so many int8 planes, or an f16 split."""


def form_of(kernel: KernelType) -> Form | None:
    """What a kernel multiplies a matrix by instead of f32 activations; None if it takes these."""
    return kernel.activation_f16_split or kernel.activation_planes or None


def form_name(form: Form) -> str:
    """For names of buffers."""
    return f"{form.parts} by {form.lane_run} halves" if isinstance(form, HalfForm) else f"{form} digits"


@dataclass(frozen=True, eq=False)
class StepValue:
    """A vector for each token, f32[width] or f32[tokens, width], written by one operation. Equal to itself alone: another value
    may lie in the same memory later."""

    buffer: GpuBuffer
    tokens: int
    width: int

    @classmethod
    def of(cls, buffer: GpuBuffer, tokens: int | None = None) -> StepValue:
        """The value in a buffer: of f32[width], f32[tokens, width], or of heads for so many tokens."""
        count = prod(buffer.shape[:-1]) if tokens is None else tokens
        return cls(buffer, count, buffer.size // count)

    @property
    def flat(self) -> GpuBuffer:
        """f32[width] of one token, f32[tokens, width] of several."""
        return self.buffer.view(0, lines(self.tokens, self.width))


@dataclass(frozen=True)
class ActivationSource:
    """What stands for a value among the arguments of the kernel that reads it. deferred: the reader completes the norm. parts:
    so many ranks have made a part of the row each, and send it to the reader."""

    form: Form | None
    arguments: Mapping[str, Any] = field(hash=False)
    deferred: bool = False
    parts: int = 1


def lines(tokens: int, n: int) -> tuple[int, ...]:
    """The shape of `tokens` vectors of n values: one stands alone."""
    return (n,) if tokens == 1 else (tokens, n)


def planes_of_all(kernels: Sequence[KernelType]) -> int | None:
    """How many int8 planes of a deferred norm these kernels read, all of which can complete it; None if one of them cannot."""
    forms = {form_of(kernel) for kernel in kernels}
    if len(forms) != 1 or any(compose.complete_norm(kernel) is None for kernel in kernels):
        return None
    (form,) = forms
    return form if isinstance(form, int) else None
