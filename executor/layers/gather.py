"""How the ranks of a split layer get what the others have computed: the only launches that reach more than one device."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from executor.base.errors import LaunchError
from executor.device.protocol import ReadOwn, copying
from executor.launch.nccl_all_gather import NcclAllGather
from executor.layers.calls import LaunchQueue
from executor.layers.rows import lines
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.collective.all_gather import AllGather
from ptxgen.kernels.collective.gather_planes import GatherPlanes
from ptxgen.kernels.token.gather_rows import GatherRows
from ptxgen.types import U32, U64

GATHERED: Final = "_gather"
"""What the operation is called that gathers the output of another one: `attention_gather`."""

COMPUTED_IN_PARTS: Final = ("attention", "ffn_swiglu")
"""Of the operations whose output a matrix multiplies, those that are gathered."""


def gather(
    launch: LaunchQueue, operation: str, own: GpuBuffer, whole: GpuBuffer, digits: int | None = None, *, sent: bool = False
) -> None:  # fmt: skip
    """whole, f32[n] or f32[rows, n], becomes on every rank what the ranks have in `own`, f32[n / ranks] or f32[rows, n / ranks]
    each, side by side in their order. `operation` is the one that made it. digits: so many of a single row are gathered instead
    of its values: `whole` is not written, but counts as packed. sent: digits are sent to who reads them, who waits for them.

    A rank that is ahead may store into `whole` of the others as soon as they have told that they have come to the gather before
    (AllGather). So no buffer may be gathered into twice in a row. In a layer they are, in this order: attended, hidden,
    activated, hidden, and behind the last one logits; so between two gathers into one buffer there always is one into another,
    be they of one layer, of two, or of two steps. What reads a buffer comes before that gather, since what that gathers is made
    of it. Digits that are gathered in between count as well: a rank sends them behind all that it has read, and into no
    `whole` (GatherPlanes); so do digits that are sent, which products wait for that are launched before the next gather. So
    does what NCCL gathers (device.gathers says what that is): it has the bits of a rank when that has come so far."""
    workspace = launch.packed.workspace
    if digits is None and workspace.device.gathers.by_nccl(whole.nbytes):
        _gather_by_nccl(launch, operation, own, whole)
        return
    if digits is not None:
        _require_kernels(workspace, operation, whole, digits)
        made = GatherPlanes(n=whole.size, ranks=workspace.device.ranks, digits=digits, only_sends=sent)
        given, received = messages(workspace, made)
        given["x"] = own.view(0, (made.columns,))
        launch.packed.write(launch, f"{operation}{GATHERED}", made, whole, digits, received if sent else {}, **given)
        return
    ranks, n = workspace.device.ranks, whole.shape[-1]
    kernel = AllGather(n=n, ranks=ranks, m=whole.size // n)
    flags = workspace.buffer(f"flags of {kernel}", (kernel.blocks, ranks), U32, zeros=True)
    launch(
        f"{operation}{GATHERED}",
        kernel,
        y=whole.view(0, (kernel.m, n)),
        x=own.view(0, (kernel.m, kernel.columns)),
        flags=flags,
        ys=_addresses(workspace, whole),
        peers=_addresses(workspace, flags),
        rank=0,
    )


def gather_norm(
    launch: LaunchQueue, operation: str, own: GpuBuffer, whole: GpuBuffer, digits: int, *, normed: GpuBuffer, gamma: GpuBuffer,
    eps: float, sent: bool = False,
) -> None:  # fmt: skip
    """As `gather` of a single row's digits, but of its norm, which readers complete: `normed` counts as that."""
    workspace = launch.packed.workspace
    _require_kernels(workspace, operation, whole, digits)
    ranks = workspace.device.ranks
    kernel = GatherPlanes(n=whole.size, ranks=ranks, digits=digits, normed=True, only_sends=sent)
    given, received = messages(workspace, kernel)
    given |= {"x": own.view(0, (kernel.columns,)), "gamma": gamma, "eps": eps, "received": received if sent else {}}
    launch.packed.gather_norm(launch, f"{operation}{GATHERED}", kernel, whole=whole, normed=normed, **given)


def _require_kernels(workspace: Workspace, operation: str, whole: GpuBuffer, digits: int) -> None:
    """LaunchError where NCCL would have to gather digits."""
    if workspace.device.gathers.by_nccl(whole.nbytes):
        raise LaunchError(f"{operation}: NCCL gathers values, not digits, here {digits} of {whole}; gathers_digits says which")


def own_lines(workspace: Workspace, rows: int) -> GpuBuffer:
    """u32[rows]: of `rows` vectors in as many pieces as there are ranks, the numbers of the rank's own, one in each."""
    device = workspace.device
    numbers = workspace.buffer("own pieces", (rows,), U32)
    pieces = np.arange(rows, dtype=np.uint32) * device.ranks
    read = ReadOwn(lambda rank: copying(pieces + np.uint32(rank)))
    device.upload_from(numbers.pointer, numbers.nbytes, read)
    return numbers


def own_shape(rows: int, n: int, ranks: int) -> tuple[int, ...]:
    """Of a rank's part of `rows` vectors of n values."""
    return lines(rows, n // ranks)


def _gather_by_nccl(launch: LaunchQueue, operation: str, own: GpuBuffer, whole: GpuBuffer) -> None:
    """NCCL has the slices one after another, which of one row is `whole`; those of several are put side by side."""
    workspace, n = launch.packed.workspace, whole.shape[-1]
    ranks, m = workspace.device.ranks, whole.size // n
    kernel = NcclAllGather(count=own.size, ranks=ranks)
    slices = whole if m == 1 else workspace.buffer(f"slices of {kernel}", (whole.size,))
    name = f"{operation}{GATHERED}"
    launch(name if m == 1 else f"{name} slices", kernel, y=slices.view(0, (ranks, own.size)), x=own.view(0, (own.size,)))
    if m == 1:
        return
    pieces, columns = m * ranks, n // ranks
    index = workspace.buffer(f"order of {pieces} slices of {ranks}", (pieces,), U32)
    index.upload(np.arange(pieces, dtype=np.uint32).reshape(ranks, m).T.reshape(-1))
    side_by_side = GatherRows(n=columns, m=pieces, rows=pieces)
    launch(name, side_by_side, y=whole.view(0, (pieces, columns)), x=slices.view(0, (pieces, columns)), index=index)


def messages(workspace: Workspace, kernel: KernelType, prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """By which the ranks send each other what a kernel makes, by the names of its arguments behind a prefix; and what those
    take who receive it (KernelType.in_parts). Launches of one kernel share them."""
    buffers = {}
    for name in ("numbers", "inbox"):
        array = kernel.signature()[prefix + name]
        assert isinstance(array, Array)
        buffers[name] = workspace.buffer(f"{name} of {kernel}", array.shape, array.dtype, zeros=True)
    numbers, inbox = buffers["numbers"], buffers["inbox"]
    sending = {**buffers, "inboxes": _addresses(workspace, inbox)}
    received = {"inbox": inbox.view(0, inbox.shape[-2:]), "number": numbers.view(0, (1,)), "rank": 0}
    return {**{prefix + name: buffer for name, buffer in sending.items()}, "rank": 0}, received


def _addresses(workspace: Workspace, buffer: GpuBuffer) -> GpuBuffer:
    """u64[ranks]: where each rank has the buffer."""
    table = workspace.buffer(f"addresses of {buffer.name}", (workspace.device.ranks,), U64)
    table.upload(np.array(workspace.device.peers(buffer.pointer), np.uint64))
    return table
