"""What a token does from the attention of one layer to that of the next, in one launch whose blocks stay (kernels/persistent),
where the kernels that would do it one by one are such that it has their bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from executor.choice.persistent import PersistentGrid
from executor.layers.graph.binding import Binding
from executor.layers.graph.graph import Setting, StepGraph
from executor.layers.graph.operations import Add, Attend, Norm, Operation, Swiglu
from executor.layers.graph.products import Project
from executor.layers.graph.values import Form, StepValue
from executor.layers.projection import Projection
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.norm.rmsnorm import LARGEST_ROW
from ptxgen.kernels.persistent.persistent_layer import PersistentLayer
from ptxgen.kernels.quantize.int8_planes import BLOCK


@dataclass(frozen=True, kw_only=True, eq=False)
class StayResident(Operation):
    """All of a layer after its attention, and what comes before that of the next, if there is one. inside: attn_output, gate,
    up and down; after: q, k and v; norms: the one inside, and the one before those."""

    kernel: PersistentLayer
    attended: StepValue
    before: StepValue
    stream: StepValue
    inside: tuple[Project, ...]
    after: tuple[Project, ...]
    norms: tuple[Norm, ...]

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.attended, self.before)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.stream, *(one.segments[0].y for one in self.after))

    @property
    def reads_as(self) -> Form | None:
        return self.kernel.attended_digits

    def bind(self, b: Binding) -> None:
        matrices = zip(("wo", "wg", "wu", "wd", "wq", "wk", "wv"), (*self.inside, *self.after), strict=False)
        arguments: dict[str, Any] = {name: one.projection.weight.buffer for name, one in matrices}
        arguments |= {"x": self.stream.flat, "ffn_gamma": self.norms[0].gamma, "eps": self.norms[0].eps}
        if self.after:
            arguments["next_gamma"] = self.norms[1].gamma
        for role, one in zip("qkv", self.after, strict=False):
            arguments[f"y{role}"] = one.segments[0].y.flat
        planes = b.source(self.name, self.attended, self.kernel.attended_digits).arguments
        own = b.workspace.arrays(self.kernel, self.kernel.name, self.kernel.scratch)
        b(self.name, self.kernel, **arguments, **planes, **own)


def stay_resident(g: StepGraph, s: Setting) -> StepGraph:
    """One token goes from one attention to the next by one launch, wherever there is a kernel for it."""
    changes: dict[Operation, Operation | None] = {}
    for attend in g.each(Attend) if s.grid is not None and s.fused and s.device.ranks == 1 else ():
        span = _span(g, attend)
        kernel = _kernel(span, attend.out.width, s.grid) if span is not None and s.grid is not None else None
        if span is not None and kernel is not None:
            first = span.inside[0]
            made = StayResident(
                name="+".join(one.name for one in (*span.inside, *span.after)),
                layer=first.layer,
                kernel=kernel,
                attended=attend.out,
                before=span.adds[0].x,
                stream=span.adds[1].y,
                inside=span.inside,
                after=span.after,
                norms=span.norms,
            )
            changes |= dict.fromkeys((*span.inside, *span.after, *span.adds, *span.norms, span.swiglu)) | {first: made}
    return g.replaced(changes)


def takes(kernel: KernelType) -> bool:
    """Whether a matrix that has this kernel can be multiplied by a persistent one with the same bits."""
    return type(kernel) is HwDp4aGemv  # a subclass computes something else


@dataclass(frozen=True)
class _Span:
    """The operations from one attention to the next."""

    inside: tuple[Project, ...]
    after: tuple[Project, ...]
    adds: tuple[Add, ...]
    norms: tuple[Norm, ...]
    swiglu: Swiglu


def _span(g: StepGraph, attend: Attend) -> _Span | None:
    """Those that follow this attention, for one token; None if they are others. The norm of the head is not among them."""
    output = g.only_reader(attend.out, Project)
    add = g.only_reader(output.segments[0].y, Add) if output is not None else None
    if output is None or add is None or output.x.tokens > 1:
        return None
    norm = next((one for one in g.readers(add.y) if isinstance(one, Norm)), None)
    pair = [one for one in g.readers(norm.y) if isinstance(one, Project)] if norm is not None else []
    swiglu = g.only_reader(pair[0].segments[0].y, Swiglu) if len(pair) == 2 else None
    down = g.only_reader(swiglu.y, Project) if swiglu is not None else None
    last = g.only_reader(down.segments[0].y, Add) if down is not None else None
    if norm is None or swiglu is None or down is None or last is None:
        return None
    if not norm.completable or swiglu.activation != "silu" or (add.scale, last.scale) != (1.0, 1.0):
        return None
    following = next((one for one in g.readers(last.y) if isinstance(one, Norm)), None)
    after = tuple(one for one in g.readers(following.y) if isinstance(one, Project)) if following is not None else ()
    if following is None or not following.completable or len(after) != 3:
        return _Span((output, *pair, down), (), (add, last), (norm,), swiglu)
    return _Span((output, *pair, down), after, (add, last), (norm, following), swiglu)


def _kernel(span: _Span, attended: int, grid: PersistentGrid) -> PersistentLayer | None:
    """None where the matrices have other kernels than hw_dp4a, gate and up are not alike, or q, k and v not as many planes."""
    output, gate, up, down = (one.projection for one in span.inside)
    after = [one.projection for one in span.after]
    hidden = span.adds[0].y.width
    if not all(takes(one.kernel) for one in (output, gate, up, down, *after)) or hidden % BLOCK or hidden > LARGEST_ROW:
        return None
    if not _alike((gate, up), formats=True) or not _alike(after):
        return None
    make = partial(
        PersistentLayer,
        hidden,
        attended,
        up.weight.n,
        output.type,
        gate.type,
        down.type,
        attended_digits=_planes(output),
        gate_digits=_planes(gate),
        down_digits=_planes(down),
    )
    if after:
        q, k, v = after
        sizes = {"queries": q.weight.n, "keys": k.weight.n, "next_digits": _planes(q)}
        make = partial(make, attn_q=q.type, attn_k=k.type, attn_v=v.type, **sizes)
    return grid.fitted(make)


def _alike(projections: Sequence[Projection], *, formats: bool = False) -> bool:
    """Whether all multiply as many planes, and are of one format where that is asked."""
    facts = {(one.kernel.activation_planes, one.type if formats else "") for one in projections}
    return len(facts) <= 1


def _planes(projection: Projection) -> int:
    return projection.kernel.activation_planes
