"""The rules that rewrite the operations of a step, in the order in which they are tried. Each is a function from a graph to a
graph, and keeps the bits. A matrix carries the names of the profile's rules that its product may take part in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, combinations
from typing import Final, NamedTuple

from executor.layers.graph.binding import Binding
from executor.layers.graph.gathers import GatherParts
from executor.layers.graph.graph import Setting, StepGraph
from executor.layers.graph.operations import Activate, Add, Attend, Norm, Operation, Swiglu
from executor.layers.graph.products import DeferNorm, GateSwiglu, OntoStream, Project
from executor.layers.graph.rank_rules import gather_planes, send_parts
from executor.layers.graph.resident import stay_resident
from executor.layers.graph.values import Form, planes_of_all
from ptxgen.dsl.kernel_type import HalfForm, KernelType
from ptxgen.kernels import compose

UNREAD_PLANES: Final = 1
"""Of a rank's part of what is gathered: the launch that gates writes some, and what is read are those of the whole."""

Changes = dict[Operation, Operation | None]


class RewriteRule(NamedTuple):
    """name: of the profile's rule, or of one that is always on; what: in one line."""

    name: str
    what: str
    apply: Callable[[StepGraph, Setting], StepGraph]


def leave_forms(g: StepGraph, s: Setting) -> StepGraph:
    """The operation that makes activations writes the form that their first reader wants. The planes of a norm are not those of
    its f32 values (RmsNorm), so the norm writes them even where nothing is fused, and keeps them for all its readers."""
    changes: Changes = {}
    attends = dict(zip(g.operations, accumulate(isinstance(one, Attend) for one in g.operations), strict=True))
    for norm in g.each(Norm):
        readers = g.readers(norm.y)
        form = _first_form(readers)
        if norm.leaves_forms and (s.fused or not isinstance(form, HalfForm)):
            changes[norm] = replace(norm, leaves=form, apart=bool(readers) and attends[readers[-1]] > attends[norm])
    for swiglu in g.each(Swiglu):
        changes[swiglu] = replace(swiglu, leaves=_first_form(g.readers(swiglu.y)) if s.fused else None)
    for activate in g.each(Activate):
        changes[activate] = replace(activate, leaves=_first_form(g.readers(activate.y)) if s.fused else None)
    for attend in g.each(Attend):
        changes[attend] = replace(attend, leaves=_first_form(g.readers(attend.out)) if s.fused else None)
    return g.replaced(changes)


def defer_norms(g: StepGraph, s: Setting) -> StepGraph:
    """A product onto the residual stream leaves the norm after it to the readers of that norm."""
    changes: Changes = {}
    for norm in g.each(Norm):
        add = g.writer(norm.x)
        product = g.writer(add.delta) if isinstance(add, Add) and add.scale == 1.0 else None
        planes = planes_of_all([one.projection.kernel for one in g.readers(norm.y) if isinstance(one, Project)])
        if (
            not isinstance(add, Add)
            or not isinstance(product, Project)
            or product in changes
            or planes is None
            or norm.by_many
            or norm.gamma is None
            or not norm.completable
        ):
            continue
        kernel = product.at_once
        if not (s.fused and product.plain and kernel is not None and product.projection.allows("deferred_norms")):
            continue
        kernel = compose.defer_norm(kernel, planes)
        if kernel is not None and product.projection.weight.ranks == 1:
            epilogue = DeferNorm(add.x, norm.y, norm.gamma, norm.eps, planes)
            changes |= {product: _onto(product, add, kernel, epilogue), add: None, norm: None}
    return g.replaced(changes)


def fuse_swiglu(g: StepGraph, s: Setting) -> StepGraph:
    """The products of one token with gate and up are one launch with silu of the one times the other."""
    changes: Changes = {}
    for swiglu in g.each(Swiglu):
        gate, up = g.writer(swiglu.gate), g.writer(swiglu.up)
        if not (isinstance(gate, Project) and isinstance(up, Project) and gate.plain and up.plain):
            continue
        if not (s.fused and gate.projection.allows("swiglu_fusion") and swiglu.activation == "silu"):
            continue
        gather = g.only_reader(swiglu.y, GatherParts)
        made = _with_swiglu(gate, up, swiglu, gather, s)
        if made is not None:
            changes |= {gate: made, up: None, swiglu: None}
            if isinstance(made.epilogue, GateSwiglu) and made.epilogue.whole is not None and gather is not None:
                changes[gather] = None
    return g.replaced(changes)


def _with_swiglu(gate: Project, up: Project, swiglu: Swiglu, gather: GatherParts | None, s: Setting) -> Project | None:
    """The launch for all of them; it also sends to the other ranks where `gather` would send and there is a kernel for it."""

    def made(planes: int) -> KernelType | None:
        one, other = gate.at_once, up.at_once
        if one is None or other is None:
            return None
        return compose.fuse_swiglu(gate.projection.own(one), up.projection.own(other), planes)

    epilogue: GateSwiglu | None = None
    kernel: KernelType | None = None
    if gather is None:
        if isinstance(swiglu.leaves, int):
            kernel, epilogue = made(swiglu.leaves), GateSwiglu(swiglu.y, swiglu.leaves)
    else:
        if gather.sends and gather.planes is not None:
            kernel, epilogue = made(gather.planes), GateSwiglu(swiglu.y, gather.planes, gather.whole)
            if kernel is not None and compose.send_part(kernel, s.device.ranks) is None:
                kernel = None
        if kernel is None:
            kernel, epilogue = made(UNREAD_PLANES), GateSwiglu(swiglu.y, UNREAD_PLANES)
    if kernel is None:
        return None
    name = "+".join((gate.name, up.name, swiglu.name))
    return replace(gate, name=name, segments=(*gate.segments, *up.segments), epilogue=epilogue, kernel=kernel)


def add_residuals(g: StepGraph, s: Setting) -> StepGraph:
    """A product, or the norm of one, is added to the residual stream where it is made."""
    changes: Changes = {}
    for add in g.each(Add):
        product = g.writer(add.delta)
        if isinstance(product, Norm) and s.fused and product.completable and add.scale == 1.0:
            changes |= {product: replace(product, y=add.y, onto=add.x), add: None}
            continue
        if not (s.fused and isinstance(product, Project) and product.plain and product.at_once is not None):
            continue
        kernel = compose.add_residual(product.at_once) if add.scale == 1.0 else None
        if kernel is not None:
            own = product.projection.own(kernel)
            changes |= {product: _onto(product, add, own, OntoStream(add.x)), add: None}
    return g.replaced(changes)


def _onto(product: Project, add: Add, kernel: KernelType, epilogue: OntoStream | DeferNorm) -> Project:
    return replace(product, segments=(replace(product.segments[0], y=add.y),), kernel=kernel, epilogue=epilogue)


def fuse_horizontally(g: StepGraph, s: Setting) -> StepGraph:
    """Products of the same activations are one launch where their kernels can be."""
    changes: Changes = {}
    for first in g.each(Project):
        if first in changes or not (s.fused and first.plain and first.allows("horizontal_fusion")):
            continue
        readers = g.readers(first.x)
        later = readers[readers.index(first) + 1 :]
        left = [one for one in later if isinstance(one, Project) and one.plain and one not in changes]
        kernel, others = _fused_horizontally(first, left)
        if kernel is not None:
            name = "+".join(one.name for one in (first, *others))
            segments = tuple(segment for one in (first, *others) for segment in one.segments)
            changes[first] = replace(first, name=name, segments=segments, kernel=kernel)
            changes |= dict.fromkeys(others)
    return g.replaced(changes)


def _fused_horizontally(first: Project, left: Sequence[Project]) -> tuple[KernelType | None, Sequence[Project]]:
    """The kernel for this product and as many others as can go with it, and these: two may be worth it where one is not."""
    for count in range(len(left), 0, -1):
        for others in combinations(left, count):
            kernels = [one.at_once for one in (first, *others)]
            known = [kernel for kernel in kernels if kernel is not None]
            made = compose.fuse_horizontally(known[0], known[1:]) if len(known) == len(kernels) else None
            if made is not None:
                return first.projection.own(made), others
    return None, ()


def _first_form(readers: Sequence[Operation]) -> Form | None:
    return next((form for one in readers if (form := one.reads_as) is not None), None)


RULES: Final = (
    RewriteRule("persistent_layers", "a token goes from one attention to the next in one launch", stay_resident),
    RewriteRule("forms", "what makes activations writes the form that their reader wants", leave_forms),
    RewriteRule("plane_gathers", "ranks gather int8 planes of one token instead of its values", gather_planes),
    RewriteRule("sent_parts", "ranks send planes to the products that read them", send_parts),
    RewriteRule("deferred_norms", "a product leaves the norm after it to the readers of that norm", defer_norms),
    RewriteRule("swiglu_fusion", "gate, up and SwiGLU are one launch", fuse_swiglu),
    RewriteRule("residuals", "a product, or its norm, is added to the residual stream where it is made", add_residuals),
    RewriteRule("horizontal_fusion", "products of the same activations are one launch", fuse_horizontally),
)


def rewritten(operations: Sequence[Operation], s: Setting) -> list[Operation]:
    """The operations after all rules."""
    g = StepGraph(operations)
    for rule in RULES:
        g = rule.apply(g, s)
    return g.operations


def perform(b: Binding, operations: Sequence[Operation], s: Setting | None = None) -> list[Operation]:
    """Launch the operations, by the rules; gives them as they were launched."""
    setting = Setting(b.workspace.device, b.fused) if s is None else s
    done = rewritten(operations, setting)
    for operation in done:
        b.layer = operation.layer
        operation.bind(b)
    return done
