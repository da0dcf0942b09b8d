"""How a GEMV does several rows of activations: in tiles, by the form of its kernel that reads each weight once for a tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels import compose
from ptxgen.kernels.registry import entries

TILE: Final = 8
"""Rows of one launch: the most that a kernel holds sums for while it reads a weight."""


def tiles(m: int) -> Iterator[tuple[int, range]]:
    """How m rows are multiplied by a matrix: launches of so many rows each, and the rows that they start at."""
    whole = m // TILE * TILE
    if whole:
        yield TILE, range(0, whole, TILE)
    if whole < m:
        yield m - whole, range(whole, m, TILE)


def gemv_of_rows(kernel: KernelType, m: int) -> KernelType:
    """The form of a GEMV for m rows of activations, itself for one. ArgumentError if there is none."""
    if m == 1:
        return kernel
    for form in compose.for_rows(kernel, m):
        if takes_rows(form, m):
            return form
    raise ArgumentError(f"{kernel} has no form for {m} rows; there are {batched_gemvs()}")


def launched(kernel: KernelType, m: int) -> list[tuple[KernelType, int]]:
    """The kernels that multiply m rows of activations where this one is chosen, and how often each is launched. Errors as
    gemv_of_rows."""
    if m == 1 or takes_rows(kernel, m):
        return [(kernel, 1)]
    return [(gemv_of_rows(kernel, tile), len(starts)) for tile, starts in tiles(m)]


def takes_rows(kernel: KernelType, m: int) -> bool:
    """Whether a GEMV is one that takes m rows of activations at once, as a matrix."""
    y = kernel.signature().get("y")
    return isinstance(y, Array) and y.shape[0] == m and len(y.shape) == 2


def batched_gemvs() -> str:
    """The registered GEMVs of several rows of activations, for messages."""
    return ", ".join(name for name, entry in entries().items() if entry.type.family == "gemv" and "m" in entry.parameters)
