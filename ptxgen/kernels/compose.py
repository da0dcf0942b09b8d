"""What a kernel is with more work, or beside others: for several rows, with an epilogue, with another source. Each function
gives the composition, or None where there is none. Rules of a step (executor/layers) ask; kernels say what can be composed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.gemm.suited import OF_ALL
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.gemv.mwv import MwvGemv, rows_by_mwv

FOR_ROWS: Final[dict[type, Callable[[Any, int], tuple[KernelType, ...]]]] = {MwvGemv: rows_by_mwv, GemvType: rows_by_mwv}
"""The forms for m rows of types whose form is not the kernel with another `m`; of those that inherit from them, without a field
`m`, too."""


def for_rows(kernel: KernelType, m: int) -> tuple[KernelType, ...]:
    """The kernels that do for m rows what this one does for one, in priority order: which one it is may depend on what the rows
    share. A kernel with a field `m` that is None has the form with that m, unless FOR_ROWS names its type; one whose `m` is a
    number has none. ArgumentError for an m that is too large."""
    if forms := kernel.batched(m):
        return forms
    if getattr(kernel, "m", None) is not None:
        return ()
    if hasattr(kernel, "m") and type(kernel) not in FOR_ROWS:
        return (replace(kernel, m=m),)  # type: ignore[call-arg]
    own = next((FOR_ROWS[base] for base in type(kernel).__mro__ if base in FOR_ROWS), None)
    return own(kernel, m) if own is not None else ()


def add_residual(kernel: KernelType) -> KernelType | None:
    """With the epilogue that adds the product to `y` in place: the bits of this kernel and residual_add. A kernel with a field
    `residual` has it if that is set."""
    residual = getattr(kernel, "residual", None)
    return kernel.with_residual() if residual is None else None if residual else replace(kernel, residual=True)  # type: ignore[call-arg]


def complete_norm(kernel: KernelType) -> KernelType | None:
    """With the source that completes a deferred RMSNorm: the bits of rmsnorm_digits and this kernel."""
    return kernel.with_norm()


def receive_parts(kernel: KernelType, parts: int) -> KernelType | None:
    """With the source that takes a row's int8 planes from so many ranks, each of which has made a part: the same bits."""
    return kernel.in_parts(parts)


def send_part(kernel: KernelType, ranks: int) -> KernelType | None:
    """With the epilogue that sends the int8 planes of its part of a row to the other ranks."""
    return kernel.sent(ranks)


def defer_norm(kernel: KernelType, digits: int) -> KernelType | None:
    """With the epilogues that add the product to `y` in place and leave what an RMSNorm of y needs: int8 planes of gamma * y
    and the squares, for kernels that `complete_norm`. The bits are those of `add_residual` and rmsnorm_digits."""
    return kernel.with_residual_norm(digits)


def fuse_swiglu(kernel: KernelType, up: KernelType, digits: int) -> KernelType | None:
    """The kernel that multiplies by its matrix and by that of `up`, and writes silu of the one times the other and the int8
    planes of that. The bits are those of both kernels and fused_swiglu_digits."""
    return kernel.gated(up, digits)


def fuse_horizontally(kernel: KernelType, others: Sequence[KernelType]) -> KernelType | None:
    """The kernel that multiplies the same activations by the matrices of these kernels, too, in one launch that takes no
    longer: their `w` and `y` are its w2 and y2, w3 and y3. It may add in another order than they do."""
    of_all = OF_ALL.get(type(kernel))
    return kernel.joined(others) if of_all is None else of_all(kernel, others)


def pipeline_weights(kernel: KernelType) -> KernelType | None:
    """With the multistage pipeline that copies weights into shared memory, from before the wait for the launch before it, where
    that is faster on a large GPU. A block may take RING_SHARED bytes. Same bits."""
    return kernel.with_weight_ring()


def between(kernel: KernelType, before: KernelType | None, after: KernelType | None) -> KernelType:
    """As it is fastest between these launches, with the same bits; None: one that is not known."""
    return kernel.between(before, after)


def borrowed(kernel: KernelType) -> Mapping[str, str]:
    """The arguments that are constant ones of the launch after it, by the names that they have there, as `between` sets."""
    return kernel.borrowed


def start_early(kernel: KernelType) -> KernelType:
    """The form that works before it waits for the launch before it (LaunchConfig.early), with the same bits; the kernel itself
    where it has none: then it waits first."""
    return replace(kernel, **kernel.dependent_form) if kernel.dependent_form else kernel
