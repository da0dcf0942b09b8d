"""The feed-forward networks, each written once: which kernels run, in which order. How they run is up to `launch`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, Self

from executor.layers.calls import LaunchQueue
from executor.layers.gather import gather, own_shape
from executor.layers.gemv import (
    Product,
    digits_gathered,
    form_read,
    project,
    project_all,
    project_gated,
    receive_parts,
    rows,
)
from executor.layers.packed import Form
from executor.layers.projection import Projection
from executor.layers.rows import enqueue_rows, for_rows, lines, shaped
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from ptxgen.dsl.kernel_type import HalfForm
from ptxgen.kernels.activation.elementwise import Gelu
from ptxgen.kernels.activation.swiglu import FusedSwiglu

UNREAD_DIGITS: Final = 1
"""Of a rank's part of what is gathered: the launch that gates writes some, and what is read are those of the whole."""


@dataclass(frozen=True)
class FfnBuffers:
    """What a feed-forward network computes in, f32[ff] each, or f32[rows, ff]. Of one that ranks share: f32[ff / ranks] or
    f32[rows, ff / ranks], and `gathered` is what all have activated, f32[ff] or f32[rows, ff]."""

    gate: GpuBuffer
    up: GpuBuffer
    activated: GpuBuffer
    gathered: GpuBuffer | None = None

    @classmethod
    def of(cls, workspace: Workspace, ff: int, rows: int = 1, ranks: int = 1) -> Self:
        """In this workspace."""
        names = "ffn gate", "ffn up", "ffn activated"
        gate, up, activated = (workspace.buffer(name, own_shape(rows, ff, ranks)) for name in names)
        return cls(gate, up, activated, workspace.buffer("ffn activated by all", lines(rows, ff)) if ranks > 1 else None)

    @property
    def result(self) -> GpuBuffer:
        """What `down` multiplies."""
        return self.activated if self.gathered is None else self.gathered


def swiglu_ffn(
    launch: LaunchQueue, gate: Projection, up: Projection, down: Projection, b: FfnBuffers, *, x: GpuBuffer, y: GpuBuffer
) -> None:
    """y = down(silu(gate(x)) * up(x)); x, y: f32[hidden]."""
    swiglu(launch, gate, up, down, b, x=x)
    project(launch, "ffn_down", down, x=b.result, y=y)


def swiglu(launch: LaunchQueue, gate: Projection, up: Projection, down: Projection, b: FfnBuffers, *, x: GpuBuffer) -> None:
    """b.result = silu(gate(x)) * up(x), ready for `down`; x: f32[hidden] or f32[rows, hidden]. If `down` reads halves, they
    are all that is written: nobody asks for the f32 values, which would be a quarter of the traffic. What ranks gather
    is the digits (digits_gathered), or f32: then each makes digits or halves of all."""
    whole = b.gathered is None
    form = form_read(down) if whole else None
    sent = None if whole else digits_gathered(launch, down, b.activated)
    received = sent is not None and receive_parts(launch, down)
    if sent is not None and received and project_gated(launch, gate, up, sent, x=x, y=b.activated, whole=b.gathered):
        return
    digits = form if whole else UNREAD_DIGITS
    if not (isinstance(digits, int) and project_gated(launch, gate, up, digits, x=x, y=b.activated)):
        _swiglu_by_itself(launch, gate, up, b, form, x=x)
    if b.gathered is not None:
        gather(launch, "ffn_swiglu", b.activated, b.gathered, sent, sent=received)


def _swiglu_by_itself(
    launch: LaunchQueue, gate: Projection, up: Projection, b: FfnBuffers, form: Form | None, *, x: GpuBuffer
) -> None:
    """b.activated = silu(gate(x)) * up(x), and that in this form, by a launch behind the products."""
    n, m = up.weight.n, rows(x)
    project_all(launch, Product("ffn_gate", gate, b.gate), Product("ffn_up", up, b.up), x=x)
    read = {"gate": b.gate, "up": b.up}
    arguments = {"y": b.activated, **read}
    if not launch.fused or form is None:
        enqueue_rows(launch, "ffn_swiglu", FusedSwiglu(n=n), m, **arguments)
    elif isinstance(form, HalfForm):
        halves = FusedSwiglu(n=n, m=m, **asdict(form))
        launch.packed.write(launch, "ffn_swiglu", halves, b.activated, form, **shaped(halves, **read))
    else:
        digits = for_rows(FusedSwiglu(n=n, digits=form), m, **arguments)
        launch.packed.write(launch, "ffn_swiglu", digits, b.activated, form, **shaped(digits, **arguments))


def gelu_ffn(launch: LaunchQueue, up: Projection, down: Projection, b: FfnBuffers, *, x: GpuBuffer, y: GpuBuffer) -> None:
    """y = down(gelu(up(x))); x, y: f32[hidden]."""
    project(launch, "ffn_up", up, x=x, y=b.up)
    launch("ffn_gelu", Gelu(n=up.weight.n), y=b.activated, x=b.up)
    project(launch, "ffn_down", down, x=b.activated, y=y)
