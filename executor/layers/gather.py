"""How the ranks of a split layer get what the others have computed: the only launches that reach more than one device."""

from __future__ import annotations

from typing import Final

import numpy as np

from executor.device.protocol import ReadOwn, copying
from executor.layers.calls import LaunchQueue
from executor.layers.rows import lines
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from ptxgen.kernels.collective.all_gather import AllGather
from ptxgen.kernels.collective.gather_digits import GatherDigits
from ptxgen.types import U32, U64

GATHERED: Final = "_gather"
"""What the operation is called that gathers the output of another one: `attention_gather`."""

COMPUTED_IN_PARTS: Final = ("attention", "ffn_swiglu")
"""Of the operations whose output a matrix multiplies, those that are gathered."""


def gather(launch: LaunchQueue, operation: str, own: GpuBuffer, whole: GpuBuffer, digits: int | None = None) -> None:
    """whole, f32[n] or f32[rows, n], becomes on every rank what the ranks have in `own`, f32[n / ranks] or f32[rows, n / ranks]
    each, side by side in their order. `operation` is the one that made it. digits: so many of one row are gathered instead of
    its values: `whole` is not written, but counts as packed.

    A rank that is ahead may store into `whole` of the others as soon as they have told that they have come to the gather before
    (AllGather). So no buffer may be gathered into twice in a row. In a layer they are, in this order: attended, hidden,
    activated, hidden, and behind the last one logits; so between two gathers into one buffer there always is one into another,
    be they of one layer, of two, or of two steps. What reads a buffer comes before that gather, since what that gathers is made
    of it. Digits that are gathered in between count as well: a rank sends them behind all that it has read before, and they do
    not come into anybody's `whole` themselves (GatherDigits)."""
    workspace = launch.packed.workspace
    if digits is not None:
        numbered = GatherDigits(n=whole.size, ranks=workspace.device.ranks, digits=digits)
        made = launch.packed.of(launch, f"{operation}{GATHERED}", own, digits)
        mine = {f"own_{name}": buffer for name, buffer in made.items()}
        launch.packed.write(
            launch, f"{operation}{GATHERED}", numbered, whole, digits, **mine, **_inboxes(workspace, numbered), rank=0
        )
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


def gather_norm(launch: LaunchQueue, operation: str, whole: GpuBuffer, digits: int) -> None:
    """The norm of a row whose parts the ranks have just left (PackedActivations.leave_norm), as so many digits, becomes that of
    `whole`, f32[n], which is not written itself."""
    workspace = launch.packed.workspace
    kernel = GatherDigits(n=whole.size, ranks=workspace.device.ranks, digits=digits, squares=True)
    launch.packed.gather_norm(
        launch, f"{operation}{GATHERED}", kernel, x=whole, **_inboxes(workspace, kernel), rank=0
    )  # fmt: skip


def own_part(workspace: Workspace, vector: GpuBuffer) -> GpuBuffer:
    """f32[n / ranks]: of a vector f32[n] that all ranks have, the rank's part: a copy, as it is now."""
    device, values = workspace.device, vector.to_numpy().reshape(workspace.device.ranks, -1)
    own = workspace.buffer(f"own part of {vector.name}", values.shape[1:])
    device.upload_from(own.pointer, own.nbytes, ReadOwn(lambda rank: copying(values[rank])))
    return own


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


def _inboxes(workspace: Workspace, kernel: GatherDigits) -> dict[str, GpuBuffer]:
    """By which the ranks send each other what is gathered; gathers of one kernel share them."""
    numbers = workspace.buffer(f"numbers of {kernel}", (kernel.blocks,), U32, zeros=True)
    inbox = workspace.buffer(f"inbox of {kernel}", (2, kernel.ranks, kernel.words), U64, zeros=True)
    return {"numbers": numbers, "inbox": inbox, "inboxes": _addresses(workspace, inbox)}


def _addresses(workspace: Workspace, buffer: GpuBuffer) -> GpuBuffer:
    """u64[ranks]: where each rank has the buffer."""
    table = workspace.buffer(f"addresses of {buffer.name}", (workspace.device.ranks,), U64)
    table.upload(np.array(workspace.device.peers(buffer.pointer), np.uint64))
    return table
