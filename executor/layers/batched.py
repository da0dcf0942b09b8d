"""A projection of several rows: a GEMV of several rows of activations reads its weights once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from executor.layers.calls import LaunchQueue
from executor.layers.gemv import project
from executor.layers.projection import Projection
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import Array, KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import entries

TILE: Final = 8
"""Rows of one launch: the most that a kernel holds sums for while it reads a weight."""


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
    for form in kernel.batched(m):
        y = form.signature().get("y")
        if isinstance(y, Array) and y.shape[0] == m and len(y.shape) == 2:
            return form
    raise ArgumentError(f"{kernel} has no form for {m} rows; there are {batched_gemvs()}")


def batched_gemvs() -> str:
    """The registered GEMVs of several rows of activations, for messages."""
    return ", ".join(name for name, entry in entries().items() if entry.type.family == "gemv" and "m" in entry.parameters)
