"""How a GEMV does several rows of activations: in tiles, by the form of its kernel that reads each weight once for a tile."""

from __future__ import annotations

from executor.base.row_tiles import tiles
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.compose import for_rows
from ptxgen.kernels.registry import entries


def gemv_of_rows(kernel: KernelType, m: int) -> KernelType:
    """The form of a GEMV for m rows of activations, itself for one. ArgumentError if there is none."""
    if m == 1:
        return kernel
    for form in for_rows(kernel, m):
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
