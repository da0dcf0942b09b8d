"""The rules for what ranks gather: int8 planes instead of values, sent to the products that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from executor.choice.thresholds import MOST_SENDING
from executor.layers.graph.gathers import DeferredNorm, GatherParts
from executor.layers.graph.graph import Setting, StepGraph
from executor.layers.graph.operations import Add, Norm, Operation
from executor.layers.graph.products import Project
from executor.layers.graph.values import StepValue, planes_of_all
from executor.layers.projection import Projection
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels import compose
from ptxgen.kernels.quantize.int8_planes import BLOCK


def gather_planes(g: StepGraph, s: Setting) -> StepGraph:
    """Ranks gather the int8 planes of one token where its reader wants these; of the residual stream those of its norm, which
    the readers complete."""
    changes: dict[Operation, Operation | None] = {}
    for gather in g.each(GatherParts):
        add = g.writer(gather.own)
        if isinstance(add, Add):
            product, norm = g.writer(add.delta), g.only_reader(gather.whole, Norm)
            if norm is None or norm.gamma is None or not norm.completable or not isinstance(product, Project):
                continue
            if not product.projection.allows("deferred_norms"):
                continue
            planes = planes_of_all([one.projection.kernel for one in g.readers(norm.y) if isinstance(one, Project)])
            if planes is not None and _by_planes(product.projection, gather.own, s):
                deferred = DeferredNorm(norm.y, norm.gamma, norm.eps, norm.by_many)
                changes |= {gather: replace(gather, planes=planes, norm=deferred), norm: None}
            continue
        reader = g.only_reader(gather.whole, Project)
        if reader is not None and isinstance(form := reader.reads_as, int) and _by_planes(reader.projection, gather.own, s):
            changes[gather] = replace(gather, planes=form)
    return g.replaced(changes)


def send_parts(g: StepGraph, s: Setting) -> StepGraph:
    """A rank sends its part of the planes to the products that read them, where all of these can receive it."""
    changes: dict[Operation, Operation | None] = {}
    for gather in g.each(GatherParts):
        if gather.planes is None or (gather.norm is not None and gather.norm.by_many):
            continue
        read = gather.whole if gather.norm is None else gather.norm.normed
        readers = [one.projection for one in g.readers(read) if isinstance(one, Project)]
        if _receive(readers, s.device.ranks):
            changes[gather] = replace(gather, sends=True)
    return g.replaced(changes)


def _by_planes(projection: Projection, own: StepValue, s: Setting) -> bool:
    """Whether ranks may gather planes of what this matrix reads or has made, of which each has `own`: those of one token, whose
    blocks are of one rank each. NCCL gathers values: it makes nothing of them on the way."""
    if s.device.gathers.by_nccl(own.buffer.nbytes * s.device.ranks):
        return False
    return s.fused and projection.allows("plane_gathers") and own.tokens == 1 and own.width % BLOCK == 0


def _receive(readers: Sequence[Projection], ranks: int) -> bool:
    """Whether all readers of a row can receive its parts, by whatever kernels they are launched, and so few ranks send. It was
    measured to be faster on two, with pipelines."""
    first, *others = readers
    kernels = [reader.own(reader.kernel) for reader in readers]
    fused = compose.fuse_horizontally(first.kernel, [other.kernel for other in others]) if others else None
    made = [
        None if fused is None else first.own(fused),
        compose.fuse_swiglu(kernels[0], kernels[1], 1) if len(kernels) == 2 else None,
        None if others else compose.add_residual(kernels[0]),
    ]
    kernels += [kernel for kernel in made if kernel is not None]
    return ranks <= MOST_SENDING and all(one.allows("sent_parts") for one in readers) and _take_parts(tuple(kernels), ranks)


@lru_cache(maxsize=256)
def _take_parts(kernels: tuple[KernelType, ...], ranks: int) -> bool:
    """Found once, since layers have the same kernels."""
    return all(compose.receive_parts(kernel, ranks) is not None for kernel in kernels)
