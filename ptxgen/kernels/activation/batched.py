"""The element-wise kernels on m rows of n in one launch: the kernels of elementwise.py, which give a row the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.activation.elementwise import Elementwise, ElementwiseMul, FusedSwiglu, Gelu, ResidualAdd, Silu
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require


@dataclass(frozen=True)
class Batched(Elementwise):
    """Makes every array f32[m, n]. A subclass names an element-wise kernel as its second base."""

    m: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.m, self.n

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n, m in ((1536, 3), (1, 1), (255, 2), (37, 7)):
            yield cls(n=n, m=m)


@register
@dataclass(frozen=True)
class BatchedResidualAdd(Batched, ResidualAdd):
    """x += delta for m rows. x, delta: f32[m, n]."""

    name = "batched_residual_add"


@register
@dataclass(frozen=True)
class BatchedElementwiseMul(Batched, ElementwiseMul):
    """y = a * b for m rows. y, a, b: f32[m, n]."""

    name = "batched_elementwise_mul"


@register
@dataclass(frozen=True)
class BatchedSilu(Batched, Silu):
    """y = x * sigmoid(x) for m rows. y, x: f32[m, n]."""

    name = "batched_silu"


@register
@dataclass(frozen=True)
class BatchedGelu(Batched, Gelu):
    """y = gelu(x) for m rows, as the kernel gelu defines it. y, x: f32[m, n]."""

    name = "batched_gelu"


@register
@dataclass(frozen=True)
class BatchedFusedSwiglu(Batched, FusedSwiglu):
    """y = gate * sigmoid(gate) * up for m rows. y, gate, up: f32[m, n]."""

    name = "batched_fused_swiglu"
