"""How the ranks of a split layer get what the others have computed: the only launches that reach more than one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from executor.base.errors import LaunchError
from executor.device.protocol import ReadOwn, copying
from executor.launch.nccl_all_gather import NcclAllGather
from executor.layers.graph.binding import OWN_PLANES, Binding
from executor.layers.graph.messages import addresses, messages
from executor.layers.graph.operations import Operation
from executor.layers.graph.values import ActivationSource, StepValue, lines
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from ptxgen.kernels.collective.all_gather import AllGather
from ptxgen.kernels.collective.gather_planes import GatherPlanes
from ptxgen.kernels.token.gather_rows import GatherRows
from ptxgen.types import U32

GATHERED: Final = "_gather"
"""What the operation is called that gathers the output of another one: `attention_gather`."""

COMPUTED_IN_PARTS: Final = ("attention", "ffn_swiglu")
"""Of the operations whose output a matrix multiplies, those that are gathered."""


@dataclass(frozen=True)
class DeferredNorm:
    """The norm of what is gathered, which its readers complete. by_many: as Norm's."""

    normed: StepValue
    gamma: GpuBuffer
    eps: float
    by_many: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class GatherParts(Operation):
    """whole becomes on every rank what the ranks have in `own`, f32[width / ranks] of each token, side by side in their order.
    name: of the operation that made it. planes: so many int8 planes of one token are gathered instead of its values: `whole` is
    not written, but is there in that form; norm: they are of its norm. sends: each rank sends its part to the readers, which
    wait for it.

    A rank that is ahead may store into `whole` of the others as soon as they have told that they have come to the gather before
    (AllGather). So no buffer may be gathered into twice in a row. In a layer they are, in this order: attended, hidden,
    activated, hidden, and after the last layer logits; so between two gathers into one buffer there always is one into another,
    be they of one layer, of two, or of two steps. What reads a buffer comes before that gather, since what that gathers is made
    of it. Planes that are gathered in between count as well: a rank sends them after all that it has read, and into no `whole`
    (GatherPlanes); so do planes that are sent, which products wait for that are launched before the next gather. So does what
    NCCL gathers (device.gathers says what that is): it has the bits of a rank when that has come so far."""

    own: StepValue
    whole: StepValue
    planes: int | None = None
    sends: bool = False
    norm: DeferredNorm | None = None

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.own,)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.whole,) if self.norm is None else (self.norm.normed,)

    def bind(self, b: Binding) -> None:
        name, device = f"{self.name}{GATHERED}", b.workspace.device
        by_nccl = device.gathers.by_nccl(self.whole.buffer.nbytes)
        if self.planes is not None:
            if by_nccl:
                raise LaunchError(f"{self.name}: NCCL gathers values, not planes, here {self.planes} of {self.whole.buffer}")
            self._bind_planes(b, name, self.planes)
        elif by_nccl:
            _gather_by_nccl(b, name, self.own.buffer, self.whole.flat)
        else:
            n, m = self.whole.width, self.whole.tokens
            kernel = AllGather(n=n, ranks=device.ranks, m=m)
            flags = b.workspace.buffer(f"flags of {kernel}", (kernel.blocks, device.ranks), U32, zeros=True)
            b(
                name,
                kernel,
                y=self.whole.buffer.view(0, (m, n)),
                x=self.own.buffer.view(0, (m, kernel.columns)),
                flags=flags,
                ys=addresses(b.workspace, self.whole.buffer),
                peers=addresses(b.workspace, flags),
                rank=0,
            )

    def _bind_planes(self, b: Binding, name: str, planes: int) -> None:
        ranks, norm = b.workspace.device.ranks, self.norm
        shape = {"n": self.whole.width, "ranks": ranks, "digits": planes}
        kernel = GatherPlanes(**shape, normed=norm is not None, only_sends=self.sends)
        given, received = messages(b.workspace, kernel)
        given["x"] = self.own.buffer.view(0, (kernel.columns,))
        sent: dict[str, Any] = received if self.sends else {}
        parts = ranks if self.sends else 1
        if norm is None:
            b.write(name, kernel, self.whole, planes, sent, parts, **given)
            return
        written = (*OWN_PLANES.values(), "squares")
        made = b.workspace.arrays(kernel, f"norm of {self.whole.width} in {planes} digits", written)
        b(name, kernel, **given, gamma=norm.gamma, **made)
        b.defer(norm.normed, ActivationSource(planes, {**made, "eps": norm.eps, **sent}, deferred=True, parts=parts))


@dataclass(frozen=True, kw_only=True, eq=False)
class TakePart(Operation):
    """Before the first of the layers that ranks share: part is the rank's own part of `whole`. pieces: as own_lines."""

    whole: StepValue
    part: StepValue
    pieces: GpuBuffer

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.whole,)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.part,)

    def bind(self, b: Binding) -> None:
        own, m = self.part.width, self.part.tokens
        rows = self.whole.buffer.size // own
        x, y = self.whole.buffer.view(0, (rows, own)), self.part.buffer.view(0, (m, own))
        b(self.name, GatherRows(n=own, m=m, rows=rows), y=y, x=x, index=self.pieces)


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


def _gather_by_nccl(b: Binding, name: str, own: GpuBuffer, whole: GpuBuffer) -> None:
    """NCCL has the slices one after another, which of one token is `whole`; those of several are put side by side."""
    workspace, n = b.workspace, whole.shape[-1]
    ranks, m = workspace.device.ranks, whole.size // n
    kernel = NcclAllGather(count=own.size, ranks=ranks)
    slices = whole if m == 1 else workspace.buffer(f"slices of {kernel}", (whole.size,))
    b(name if m == 1 else f"{name} slices", kernel, y=slices.view(0, (ranks, own.size)), x=own.view(0, (own.size,)))
    if m == 1:
        return
    pieces, columns = m * ranks, n // ranks
    index = workspace.buffer(f"order of {pieces} slices of {ranks}", (pieces,), U32)
    index.upload(np.arange(pieces, dtype=np.uint32).reshape(ranks, m).T.reshape(-1))
    side_by_side = GatherRows(n=columns, m=pieces, rows=pieces)
    b(name, side_by_side, y=whole.view(0, (pieces, columns)), x=slices.view(0, (pieces, columns)), index=index)
