"""Kernels of one token as kernels of several."""

from __future__ import annotations

from math import prod
from typing import Any

from executor.layers.graph.binding import Binding, shaped
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels import compose


def enqueue_rows(b: Binding, operation: str, kernel: KernelType, m: int, /, **arguments: Any) -> None:
    """Launch what does for m tokens what `kernel` does for one. Buffers may have any shape of the right size: f32[n] for one
    token, f32[m, n] for more; the scratch is the binding's. Errors as for_rows."""
    form = for_rows(kernel, m, **arguments)
    b(operation, form, **shaped(form, **arguments), **b.scratch(operation, form))


def for_rows(kernel: KernelType, m: int, /, **arguments: Any) -> KernelType:
    """The kernel that does for m rows what `kernel` does for one: which one it is follows from the sizes of the arguments, as
    what the rows share. Raises ArgumentError if there is none."""
    if m == 1:
        return kernel
    for form in compose.for_rows(kernel, m):
        if _fits(form, **arguments):
            return form
    raise ArgumentError(f"{kernel} has no form for {m} rows of these arguments: {', '.join(map(str, arguments.values()))}")


def _fits(kernel: KernelType, /, **arguments: Any) -> bool:
    """Whether the arrays have the sizes that the kernel takes, as far as they are given."""
    signature = kernel.signature()
    for name, value in arguments.items():
        argument = signature.get(name)
        if argument is None:
            return False
        if isinstance(argument, Array) and (prod(value.shape), value.dtype) != (argument.size, argument.dtype):
            return False
    return True
