"""What a token does from the attention of one layer to that of the next, in one launch (kernels/persistent), where the kernels
that would do it one by one are such that it has their bits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from executor.choice.persistent import PersistentGrid
from executor.layers.activations import Activations
from executor.layers.calls import LaunchQueue
from executor.layers.indexed import ValidatedLayerWeights
from executor.layers.projection import Projection
from executor.layers.shape import LayerShape
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.norm.rmsnorm import LARGEST_ROW
from ptxgen.kernels.persistent.persistent_layer import PersistentLayer
from ptxgen.kernels.quantize.activation_digits import BLOCK


def takes(kernel: KernelType) -> bool:
    """Whether a matrix that has this kernel can be multiplied by a persistent one with the same bits."""
    return isinstance(kernel, HwDp4aGemv) and kernel.is_plain  # others compute something else


def persistent_layer(
    s: LayerShape, w: ValidatedLayerWeights, following: ValidatedLayerWeights | None, grid: PersistentGrid
) -> PersistentLayer | None:
    """The kernel for a layer after its attention, and for what comes before that of the one that follows, if one does. None
    where the matrices have other kernels than hw_dp4a, gate and up are not alike, or q, k and v not as many digits."""
    inside = (w.attn_output, w.ffn_gate, w.ffn_up, w.ffn_down)
    after = (following.attn_q, following.attn_k, following.attn_v) if following is not None else ()
    if not all(takes(one.kernel) for one in (*inside, *after)) or s.hidden % BLOCK or s.hidden > LARGEST_ROW:
        return None
    if not _alike((w.ffn_gate, w.ffn_up), formats=True) or not _alike(after):
        return None
    make = partial(
        PersistentLayer, s.hidden, s.q_dim, s.ff, w.attn_output.type, w.ffn_gate.type, w.ffn_down.type,
        attended_digits=_digits(w.attn_output), gate_digits=_digits(w.ffn_gate), down_digits=_digits(w.ffn_down),
    )  # fmt: skip
    if after:
        q, k, v = after
        make = partial(
            make, attn_q=q.type, attn_k=k.type, attn_v=v.type, queries=s.q_dim, keys=s.kv_dim, next_digits=_digits(q)
        )
    return grid.fitted(make)


def enqueue_persistent(
    launch: LaunchQueue,
    s: LayerShape,
    w: ValidatedLayerWeights,
    following: ValidatedLayerWeights | None,
    a: Activations,
    kernel: PersistentLayer,
) -> None:
    """a.hidden becomes what the layer makes of it and of a.attended; a.q, a.k and a.v what comes before the attention of the
    next, of a row that stands alone."""
    roles = ["attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    arguments = {
        "x": a.hidden, "ffn_gamma": w.ffn_norm, "eps": s.rms_eps, "wo": w.attn_output.weight.buffer,
        "wg": w.ffn_gate.weight.buffer, "wu": w.ffn_up.weight.buffer, "wd": w.ffn_down.weight.buffer,
    }  # fmt: skip
    if following is not None:
        roles += ["attn_q", "attn_k", "attn_v"]
        arguments["next_gamma"] = following.attn_norm
        for role, y in (("q", a.q), ("k", a.k), ("v", a.v)):
            projection: Projection = getattr(following, f"attn_{role}")
            arguments |= {f"w{role}": projection.weight.buffer, f"y{role}": y.view(0, (projection.weight.n,))}
    operation = "+".join(roles)
    digits = launch.packed.of(launch, operation, a.attended.view(0, (s.q_dim,)), kernel.attended_digits)
    own = launch.packed.workspace.arrays(kernel, kernel.name, kernel.scratch)
    launch(operation, kernel, **arguments, **digits, **own)


def _alike(projections: Sequence[Projection], *, formats: bool = False) -> bool:
    """Whether all multiply as many digits, and are of one format where that is asked."""
    facts = {(one.kernel.activation_digits, one.type if formats else "") for one in projections}
    return len(facts) <= 1


def _digits(projection: Projection) -> int:
    return projection.kernel.activation_digits
