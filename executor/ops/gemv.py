"""Matrix times vector for any weight type: which GEMV kernel a weight gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.buffers import GpuBuffer
from executor.profile import GpuProfile
from executor.weights import Weight
from ptxgen.errors import ArgumentError
from ptxgen.kernels.kernel_type import Argument, Array, KernelType
from ptxgen.kernels.registry import find

if TYPE_CHECKING:
    from executor.layers.transformer import Launch


def gemv_kernel(weight: Weight, profile: GpuProfile) -> KernelType:
    """The kernel that multiplies this weight by a vector: the profile's, or the basic one, which every format has. Raises
    ArgumentError if the profile names a kernel that does not take what the basic one takes."""
    basic = f"{weight.format.id}_gemv"
    name = profile.gemv_name(weight.format.id)
    kernel = find(name).make(k=weight.k, n=weight.n)
    if name != basic:
        _require_same(kernel, find(basic).make(k=weight.k, n=weight.n), weight)
    return kernel


def gemv(launch: Launch, weight: Weight, *, x: GpuBuffer, y: GpuBuffer) -> None:
    """y = weight @ x; x: f32[k], y: f32[n]."""
    launch(gemv_kernel(weight, launch.profile), y=y, w=weight.buffer, x=x)


def _require_same(kernel: KernelType, basic: KernelType, weight: Weight) -> None:
    """Sizes do not tell formats apart (a row of Q4_0 and of Q4_K often has as many bytes), so a kernel that says its format
    must say this one."""
    format = getattr(kernel, "format", weight.format)
    if format != weight.format:
        raise ArgumentError(f"{kernel} is for {format}; the profile names it for {weight.format}, the format of {weight.name}")
    given, needed = (_facts(one) for one in (kernel, basic))
    if given != needed:
        raise ArgumentError(f"{kernel} cannot multiply {weight.name}: it takes {given}, the executor gives {needed}")


def _facts(kernel: KernelType) -> str:
    return ", ".join(_fact(name, argument) for name, argument in sorted(kernel.signature().items()))


def _fact(name: str, argument: Argument) -> str:
    return f"{name}: {argument}" + (f" ({argument.direction})" if isinstance(argument, Array) else "")
