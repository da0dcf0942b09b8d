"""Matrix times vector for any weight type: the launch of its kernel on f32 activations or on their digits."""

from __future__ import annotations

from collections.abc import Mapping

from executor.launch.launch import require_apart
from executor.layers.calls import LaunchQueue
from executor.layers.projection import Projection
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.activation.elementwise import ResidualAdd


def project(launch: LaunchQueue, operation: str, projection: Projection, *, x: GpuBuffer, y: GpuBuffer) -> None:
    """y = W x; x: f32[k], y: f32[n], in memory of its own. A kernel on digits shares them with all that read the same x."""
    kernel = projection.kernel
    require_apart(f"{operation} by {kernel}", {"input": x}, {"output": y})  # also where the kernel reads digits instead of x
    launch(operation, kernel, y=y, w=projection.weight.buffer, **_activations(launch, operation, kernel, x))


def project_onto(
    launch: LaunchQueue, operation: str, projection: Projection, *, x: GpuBuffer, stream: GpuBuffer, product: GpuBuffer
) -> None:
    """stream += W x, all f32; `product`, f32[n], is where W x goes if the two steps are two launches, `OPERATION` and
    `OPERATION_residual`."""
    kernel = projection.kernel
    fused = kernel.with_residual() if launch.fused else None
    if fused is not None:
        launch(operation, fused, y=stream, w=projection.weight.buffer, **_activations(launch, operation, kernel, x))
        return
    project(launch, operation, projection, x=x, y=product)
    launch(f"{operation}_residual", ResidualAdd(n=projection.weight.n), x=stream, delta=product)


def _activations(launch: LaunchQueue, operation: str, kernel: KernelType, x: GpuBuffer) -> Mapping[str, GpuBuffer]:
    digits = kernel.activation_digits
    return launch.digits.of(launch, operation, x, digits) if digits else {"x": x}


def digits_read(*readers: Projection) -> int:
    """How many digits of their common input these projections read; 0 if none reads digits, or not all of those that do read
    as many."""
    counts = {one.kernel.activation_digits for one in readers} - {0}
    return counts.pop() if len(counts) == 1 else 0
