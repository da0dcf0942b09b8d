"""Matrix times vector for any weight type: which GEMV kernel a weight gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.buffers import GpuBuffer
from executor.weights import Weight
from ptxgen.kernels.kernel_type import KernelType
from ptxgen.kernels.registry import find

if TYPE_CHECKING:
    from executor.layers.transformer import Launch


def gemv_kernel(weight: Weight) -> KernelType:
    """The kernel that multiplies this weight by a vector. Every format has one; no weight falls through to another's."""
    return find(f"{weight.format.id}_gemv").make(k=weight.k, n=weight.n)


def gemv(launch: Launch, weight: Weight, *, x: GpuBuffer, y: GpuBuffer) -> None:
    """y = weight @ x; x: f32[k], y: f32[n]."""
    launch(gemv_kernel(weight), y=y, w=weight.buffer, x=x)
