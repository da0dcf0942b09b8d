"""Which launches of a token a batched kernel can do for several sequences at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from executor.base.row_tiles import tiles
from executor.bundle.describe import Description
from executor.bundle.formula import TracedInt
from executor.layers.batched import batched_gemvs
from executor.layers.calls import KernelCall
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.compose import for_rows


@dataclass(frozen=True)
class BatchedLaunches:
    """A kernel that does the token's launches of these `numbers` for as many sequences as it has rows, from each sequence of
    `starts`."""

    kernel: KernelType
    starts: range
    numbers: list[int] = field(default_factory=list)


def batch(model: Description, m: int) -> dict[str, BatchedLaunches]:
    """The batched kernels of a model for m sequences, by id; matrices are multiplied in tiles, as the executor does. A launch
    that none of them does runs once a sequence.

    Raises ArgumentError for an m below 2, for one that a kernel cannot do, and where a matrix has no batched GEMV: without
    one a batch saves nothing."""
    if m < 2:
        raise ArgumentError(f"a batch of {m} has no batched kernels; use 1 for single launches, or 2 and more")
    plan: dict[str, BatchedLaunches] = {}
    forms: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for number, call in enumerate(model.calls):
        arguments = model.launches[number]["arguments"]
        tensors = tuple(name for name, argument in arguments.items() if "tensor" in argument)
        key = (str(call.kernel), tensors)
        if key not in forms:
            tiled = {str(kernel): BatchedLaunches(kernel, starts) for kernel, starts in _tiled(call, tensors, m)}
            forms[key] = list(tiled)
            plan |= {id: launches for id, launches in tiled.items() if id not in plan}
        for id in forms[key]:
            plan[id].numbers.append(number)
        if call.kernel.family == "gemv" and not forms[key]:
            raise ArgumentError(
                f"a batch of {m} is not possible: {arguments['w'].get('tensor')} is multiplied by {call.kernel.name}, "
                f"which has no form for several rows; batched GEMVs: {batched_gemvs()}"
            )
    return plan


def _tiled(call: KernelCall, tensors: Collection[str], m: int) -> Iterator[tuple[KernelType, range]]:
    """The kernels that together do the call for all m sequences, and where each starts; none if there is no batched form."""
    for rows, starts in tiles(m) if call.kernel.family == "gemv" else [(m, range(1))]:
        kernel = _batched(call, tensors, TracedInt(rows, "m"))
        if kernel is not None:
            yield kernel, starts


def _batched(call: KernelCall, tensors: Iterable[str], m: int) -> KernelType | None:
    """The batched form of a call's kernel that reads the tensors as they are."""
    weights: list[GpuBuffer] = [call.arguments[name] for name in tensors]
    for kernel in for_rows(call.kernel, m):
        shapes = [(a.dtype, a.shape) for a in kernel.signature().values() if isinstance(a, Array) and a.direction == "in"]
        if all((weight.dtype, weight.shape) in shapes for weight in weights):
            return kernel
    return None
