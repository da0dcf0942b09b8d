"""Kernels of one token as kernels of many: the form of a kernel that a step of several rows launches. Which kernels a layer has
is transformer.py's business."""

from __future__ import annotations

from math import prod
from typing import Any

from executor.layers.calls import LaunchQueue, scratch_of
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels import compose


def enqueue_rows(launch: LaunchQueue, operation: str, kernel: KernelType, m: int, /, **arguments: Any) -> None:
    """Launch what does for m rows what `kernel` does for one. Buffers may have any shape of the right size: f32[n] for one row,
    f32[m, n] for more; what the kernel has as scratch is the launch queue's. Errors as for_rows."""
    form = for_rows(kernel, m, **arguments)
    launch(operation, form, **shaped(form, **arguments), **scratch_of(launch, operation, form))


def for_rows(kernel: KernelType, m: int, /, **arguments: Any) -> KernelType:
    """The kernel that does for m rows what `kernel` does for one: which one it is follows from the sizes of the arguments, as
    what the rows share. Raises ArgumentError if there is none."""
    if m == 1:
        return kernel
    for form in compose.for_rows(kernel, m):
        if _fits(form, **arguments):
            return form
    raise ArgumentError(f"{kernel} has no form for {m} rows of these arguments: {', '.join(map(str, arguments.values()))}")


def lines(rows: int, n: int) -> tuple[int, ...]:
    """The shape of `rows` vectors of n values: one stands alone."""
    return (n,) if rows == 1 else (rows, n)


def shaped(kernel: KernelType, /, **arguments: Any) -> dict[str, Any]:
    """The arguments in the shapes of the kernel's signature, where they have as many elements."""
    signature = kernel.signature()
    return {name: _shaped(signature.get(name), value) for name, value in arguments.items()}


def _shaped(argument: object, value: Any) -> Any:
    if not isinstance(argument, Array) or not isinstance(value, GpuBuffer) or value.shape == argument.shape:
        return value
    return value.view(0, argument.shape) if (prod(value.shape), value.dtype) == (argument.size, argument.dtype) else value


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
