"""Which launches of a token a batched kernel can do for several sequences at once. The kernels are ptxgen's, found by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from executor.bundle.describe import Description
from executor.bundle.formula import TracedInt
from executor.layers.batched import batched_gemvs, tiles
from executor.layers.calls import KernelCall
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import Array, KernelType
from ptxgen.errors import ArgumentError


@dataclass(frozen=True)
class BatchPlan:
    """m sequences. kernels: by id; launches: by id, the numbers of the token's launches that this kernel does for as many
    sequences as it has rows; firsts: by id, the sequences that it is launched from. A launch that no kernel names runs once a
    sequence."""

    m: int
    kernels: dict[str, KernelType]
    launches: dict[str, list[int]]
    firsts: dict[str, range]


@dataclass(frozen=True)
class _BatchedTile:
    """A batched kernel and the sequences that it is launched from."""

    kernel: KernelType
    firsts: range


def batch(model: Description, m: int) -> BatchPlan:
    """The batched kernels of a model for m sequences; matrices are multiplied in tiles, as the executor does.

    Raises ArgumentError for an m below 2, for one that a kernel cannot do, and where a matrix has no batched GEMV: without
    one a batch saves nothing."""
    if m < 2:
        raise ArgumentError(f"a batch of {m} has no batched kernels; use 1 for single launches, or 2 and more")
    made = BatchPlan(m, {}, {}, {})
    forms: dict[tuple[str, tuple[str, ...]], list[_BatchedTile]] = {}
    for number, call in enumerate(model.calls):
        arguments = model.launches[number]["arguments"]
        tensors = tuple(name for name, argument in arguments.items() if "tensor" in argument)
        key = (str(call.kernel), tensors)
        if key not in forms:
            forms[key] = list(_tiled(call, tensors, m))
        for tile in forms[key]:
            id = str(tile.kernel)
            made.kernels[id], made.firsts[id] = tile.kernel, tile.firsts
            made.launches.setdefault(id, []).append(number)
        if call.kernel.family == "gemv" and not forms[key]:
            raise ArgumentError(
                f"a batch of {m} is not possible: {arguments['w'].get('tensor')} is multiplied by {call.kernel.name}, "
                f"which has no form for several rows; batched GEMVs: {batched_gemvs()}"
            )
    return made


def _tiled(call: KernelCall, tensors: Collection[str], m: int) -> Iterator[_BatchedTile]:
    """The kernels that together do the call for all m sequences; none if there is no batched form."""
    for rows, firsts in tiles(m) if call.kernel.family == "gemv" else [(m, range(1))]:
        kernel = _batched(call, tensors, TracedInt(rows, "m"))
        if kernel is not None:
            yield _BatchedTile(kernel, firsts)


def _batched(call: KernelCall, tensors: Iterable[str], m: int) -> KernelType | None:
    for kernel in call.kernel.batched(m):
        shapes = [(a.dtype, a.shape) for a in kernel.signature().values() if isinstance(a, Array) and a.direction == "in"]
        if all((buffer.dtype, buffer.shape) in shapes for buffer in _buffers(call, tensors)):
            return kernel
    return None


def _buffers(call: KernelCall, names: Iterable[str]) -> Iterator[GpuBuffer]:
    for name in names:
        yield call.arguments[name]
