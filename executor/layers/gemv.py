"""Matrix times vector for any weight type: the launch of its kernel on f32 activations or on their digits."""

from __future__ import annotations

from executor.launch.launch import require_apart
from executor.layers.calls import LaunchQueue
from executor.layers.projection import Projection
from executor.memory.buffers import GpuBuffer
from ptxgen.kernels.gemv.digit_gemv_type import DigitGemvType
from ptxgen.kernels.registry import find, known


def project(launch: LaunchQueue, operation: str, projection: Projection, *, x: GpuBuffer, y: GpuBuffer) -> None:
    """y = W x; x: f32[k], y: f32[n], in memory of its own. A kernel on digits shares them with all that read the same x."""
    kernel = projection.kernel
    require_apart(f"{operation} by {kernel}", {"input": x}, {"output": y})  # also where the kernel reads digits instead of x
    activations = launch.digits.of(launch, operation, x, kernel.digits) if isinstance(kernel, DigitGemvType) else {"x": x}
    launch(operation, kernel, y=y, w=projection.weight.buffer, **activations)


def project_onto(
    launch: LaunchQueue, operation: str, projection: Projection, *, x: GpuBuffer, stream: GpuBuffer, product: GpuBuffer
) -> None:
    """stream += W x, all f32; `product`, f32[n], is where W x goes if the two steps are two launches, `OPERATION` and
    `OPERATION_residual`."""
    kernel = projection.kernel
    entry = known(f"{kernel.name}_residual") if launch.fused else None
    if entry is not None and isinstance(kernel, DigitGemvType):
        activations = launch.digits.of(launch, operation, x, kernel.digits)
        launch(operation, entry.make(**kernel.parameters()), y=stream, w=projection.weight.buffer, **activations)
        return
    project(launch, operation, projection, x=x, y=product)
    launch(f"{operation}_residual", find("residual_add").make(n=projection.weight.n), x=stream, delta=product)


def digits_read(*readers: Projection) -> int:
    """How many digits of their common input these projections read; 0 if none reads digits, or not all of those that do read
    as many."""
    counts = {one.kernel.digits for one in readers if isinstance(one.kernel, DigitGemvType)}
    return counts.pop() if len(counts) == 1 else 0
