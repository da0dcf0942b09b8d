"""The feed-forward networks, each written once: which kernels run, in which order. How they run is up to `launch`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

from executor.layers.calls import LaunchQueue
from executor.layers.gather import gather, own_shape
from executor.layers.gemv import Product, digits_gathered, form_read, project, project_all, project_gated, rows
from executor.layers.packed import Form
from executor.layers.projection import Projection
from executor.layers.rows import enqueue_rows, for_rows, lines, shaped
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from ptxgen.dsl.kernel_type import HalfForm
from ptxgen.kernels.activation.elementwise import FusedSwiglu, Gelu
from ptxgen.kernels.activation.swiglu_digits import FusedSwigluDigits
from ptxgen.kernels.activation.swiglu_halves import BatchedFusedSwigluHalves


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
    are all that is written: nobody asks for the f32 values, which would be a quarter of the traffic. What is gathered is digits
    (digits_gathered) or f32, whose digits or halves are made by each rank."""
    if b.gathered is None:
        _activate(launch, gate, up, form_read(down), b, x=x)
        return
    digits = digits_gathered(launch, down, b.activated)
    _activate(launch, gate, up, digits, b, x=x)
    gather(launch, "ffn_swiglu", b.activated, b.gathered, digits)


def _activate(
    launch: LaunchQueue, gate: Projection, up: Projection, form: Form | None, b: FfnBuffers, *, x: GpuBuffer
) -> None:  # fmt: skip
    """b.activated = silu(gate(x)) * up(x), ready for who reads this form."""
    n, m = up.weight.n, rows(x)
    if isinstance(form, int) and project_gated(launch, gate, up, form, x=x, y=b.activated):
        return
    project_all(launch, Product("ffn_gate", gate, b.gate), Product("ffn_up", up, b.up), x=x)
    read = {"gate": b.gate, "up": b.up}
    arguments = {"y": b.activated, **read}
    if not launch.fused or form is None:
        enqueue_rows(launch, "ffn_swiglu", FusedSwiglu(n=n), m, **arguments)
    elif isinstance(form, HalfForm):
        halves = BatchedFusedSwigluHalves(n=n, m=m, **asdict(form))
        launch.packed.write(launch, "ffn_swiglu", halves, b.activated, form, **shaped(halves, **read))
    else:
        digits = for_rows(FusedSwigluDigits(n=n, digits=form), m, **arguments)
        launch.packed.write(launch, "ffn_swiglu", digits, b.activated, form, **shaped(digits, **arguments))


def gelu_ffn(launch: LaunchQueue, up: Projection, down: Projection, b: FfnBuffers, *, x: GpuBuffer, y: GpuBuffer) -> None:
    """y = down(gelu(up(x))); x, y: f32[hidden]."""
    project(launch, "ffn_up", up, x=x, y=b.up)
    launch("ffn_gelu", Gelu(n=up.weight.n), y=b.activated, x=b.up)
    project(launch, "ffn_down", down, x=b.activated, y=y)
