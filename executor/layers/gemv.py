"""Matrix times vector, or times each of several rows, for any weight type: the launches of its kernel on f32 activations, their
digits or their halves."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from executor.launch.launch import require_apart
from executor.layers.batched import gemv_of_rows, takes_rows, tiles
from executor.layers.calls import LaunchQueue
from executor.layers.packed import Form, form_of
from executor.layers.projection import Projection
from executor.layers.rows import enqueue_rows, shaped
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.activation.elementwise import ResidualAdd


def project(launch: LaunchQueue, operation: str, projection: Projection, *, x: GpuBuffer, y: GpuBuffer) -> None:
    """y = x W^T; x: f32[k] and y: f32[n], or f32[m, k] and f32[m, n], in memory of its own. Several rows go in tiles of 8, each
    of which reads the weights once, unless the kernel takes all m at once. Digits and halves are shared by all kernels
    that read them of the same x. Raises ArgumentError for several rows and a kernel that has no form for them."""
    kernel = projection.kernel
    require_apart(f"{operation} by {kernel}", {"input": x}, {"output": y})  # also where the kernel does not read x itself
    of_rows = {"y": y, **_activations(launch, operation, kernel, x)}
    m = rows(x)
    if m == 1 or takes_rows(kernel, m):
        own = _scratch(launch, operation, kernel)
        launch(operation, kernel, w=projection.weight.buffer, **shaped(kernel, **of_rows), **own)
        return
    for tile, starts in tiles(m):
        form = gemv_of_rows(kernel, tile)
        for start in starts:
            parts = {name: _tile(buffer, m, start, tile) for name, buffer in of_rows.items()}
            launch(operation, form, w=projection.weight.buffer, **shaped(form, **parts))


def project_onto(
    launch: LaunchQueue, operation: str, projection: Projection, *, x: GpuBuffer, stream: GpuBuffer, product: GpuBuffer
) -> None:
    """stream += x W^T, all f32; `product`, as large as the stream, is where x W^T goes if the two steps are two launches,
    `OPERATION` and `OPERATION_residual`."""
    kernel, m = projection.kernel, rows(x)
    fused = kernel.with_residual() if launch.fused and (m == 1 or takes_rows(kernel, m)) else None
    if fused is not None:
        read = shaped(fused, y=stream, **_activations(launch, operation, kernel, x))
        launch(operation, fused, w=projection.weight.buffer, **read, **_scratch(launch, operation, fused))
        return
    project(launch, operation, projection, x=x, y=product)
    enqueue_rows(launch, f"{operation}_residual", ResidualAdd(n=projection.weight.n), m, x=stream, delta=product)


def rows(x: GpuBuffer) -> int:
    """How many vectors a buffer has, f32[k] or f32[m, k]."""
    return prod(x.shape[:-1])


def _tile(buffer: GpuBuffer, m: int, start: int, tile: int) -> GpuBuffer:
    """Some rows of a buffer of m."""
    return buffer.view(start * buffer.nbytes // m, (tile, *buffer.shape[1:]))


def _scratch(launch: LaunchQueue, operation: str, kernel: KernelType) -> Mapping[str, GpuBuffer]:
    """Of this operation alone, since launches of others may run at the same time."""
    return launch.packed.workspace.arrays(kernel, f"{operation} of its own", kernel.scratch)


def _activations(launch: LaunchQueue, operation: str, kernel: KernelType, x: GpuBuffer) -> Mapping[str, GpuBuffer]:
    form = form_of(kernel)
    return {"x": x} if form is None else launch.packed.of(launch, operation, x, form)


def form_read(*readers: Projection) -> Form | None:
    """What the first of these projections that does not read f32 reads of their common input: whoever computes that may write
    it, too. None if all read f32."""
    forms = (form_of(one.kernel) for one in readers)
    return next((form for form in forms if form is not None), None)
