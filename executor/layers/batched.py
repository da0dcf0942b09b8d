"""Kernels that do for several rows what a kernel does for one, found by name: a GEMV of several rows reads its weights once for
all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, replace
from typing import Any, Final

from executor.choice.strategies import bit_free
from executor.layers.calls import LaunchQueue
from executor.layers.gemv import project
from executor.layers.projection import Projection
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import Array, KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.registry import entries, find

PREFIX: Final = "batched_"
BIAS: Final = "batched_bias_broadcast_add"
"""What residual_add becomes when it adds a tensor, which all sequences share."""
TILE: Final = 8
"""Rows of one launch: the most that a kernel holds sums for while it reads a weight."""


def batched_forms(kernel: KernelType, m: int) -> Iterator[KernelType]:
    """The kernels that may do for m rows what `kernel` does for one, the likeliest first."""
    # What was measured to be fast for one row may spill for eight, and so may what the single kernel leaves at its default:
    # there the batched kernel's own default counts. All that decides bits is as for one row.
    defaults, free = find(kernel.name).parameters, bit_free(kernel.name)
    shape: dict[str, Any] = {name: value for name, value in kernel.parameters().items() if name not in free}
    names = [PREFIX + kernel.name, PREFIX + kernel.name.removesuffix("_indirect")]
    if kernel.name == "residual_add":
        names.append(BIAS)
    if isinstance(kernel, GemvType):  # a strategy without a batched form of its own
        names.append(f"{PREFIX}{kernel.format.id}_gemv")
    for name in dict.fromkeys(names):
        entry = entries().get(name)
        if entry is not None:
            known = entry.parameters
            given = {field: value for field, value in shape.items() if field in known}
            yield entry.make(m=m, **{f: v for f, v in given.items() if v != defaults[f] or known[f] is MISSING})


def project_rows(launch: LaunchQueue, operation: str, projection: Projection, *, x: GpuBuffer, y: GpuBuffer) -> None:
    """y = x W^T in tiles of 8 rows, each of which reads the weights once; x: f32[m, k], y: f32[m, n], any m. Raises
    ArgumentError if the projection's kernel has no form for several rows."""
    m = x.shape[0]
    for rows, starts in tiles(m):
        kernel = _for_rows(projection.kernel, rows)
        for start in starts:
            tile = {name: b.view(start * b.nbytes // m, (rows, b.shape[1])) for name, b in (("x", x), ("y", y))}
            project(launch, operation, replace(projection, kernel=kernel), **tile)


def tiles(m: int) -> Iterator[tuple[int, range]]:
    """How m rows are multiplied by a matrix: launches of so many rows each, and the rows that they start at."""
    whole = m // TILE * TILE
    if whole:
        yield TILE, range(0, whole, TILE)
    if whole < m:
        yield m - whole, range(whole, m, TILE)


def _for_rows(kernel: KernelType, m: int) -> KernelType:
    for form in batched_forms(kernel, m):
        y = form.signature().get("y")
        if isinstance(y, Array) and y.shape[0] == m and len(y.shape) == 2:
            return form
    known = ", ".join(name for name in entries() if name.startswith(PREFIX) and name.endswith("_gemv"))
    raise ArgumentError(f"{kernel} has no form for {m} rows; there are {known}")
