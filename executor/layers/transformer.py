"""The transformer layer of the dense architectures, written once: which kernels run, in which order, on which buffers.

It says nothing about how they run. `launch` is called once for each kernel; what it does with the call (run it, record it for a
graph) is the caller's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from executor.layers.attention import append, attend
from executor.layers.calls import LaunchQueue
from executor.layers.ffn import FfnBuffers, swiglu
from executor.layers.gemv import digits_read, project, project_onto
from executor.layers.indexed import ValidatedLayerWeights
from executor.layers.position import TokenPosition
from executor.layers.projection import Projection
from executor.layers.shape import LayerShape
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import LayerCache
from executor.memory.workspace import Workspace
from ptxgen.kernels.activation.elementwise import ResidualAdd
from ptxgen.kernels.attention.rope_scatter import RopeScatter
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.norm.rmsnorm_digits import RmsNormDigits
from ptxgen.kernels.rope.rope import Rope


@dataclass(frozen=True)
class Activations:
    """The buffers that one token passes through, f32, shared by all layers; `position` and `length` are u32[1]."""

    hidden: GpuBuffer  # [hidden]: the residual stream
    normed: GpuBuffer  # [hidden]
    q: GpuBuffer  # [heads, head_dim]
    k: GpuBuffer  # [kv_heads, head_dim]
    v: GpuBuffer  # [kv_heads, head_dim]
    attended: GpuBuffer  # [heads, head_dim]
    projected: GpuBuffer  # [hidden]: what attention or the feed-forward adds to the stream
    ffn: FfnBuffers
    position: GpuBuffer  # where the token stands in its sequence
    length: GpuBuffer  # position + 1: how many keys it attends to
    rope_table: GpuBuffer  # [context, rope_dim / 2, 2]: cosine and sine

    @classmethod
    def of(cls, workspace: Workspace, s: LayerShape, rope_table: GpuBuffer, hidden: GpuBuffer | None = None) -> Self:
        """In this workspace; `hidden`: a residual stream that lies elsewhere."""
        token = TokenPosition(workspace)
        return cls(
            hidden=hidden or workspace.buffer("hidden", (s.hidden,)),
            normed=workspace.buffer("normed", (s.hidden,)),
            q=workspace.buffer("q", (s.heads, s.head_dim)),
            k=workspace.buffer("k", (s.kv_heads, s.head_dim)),
            v=workspace.buffer("v", (s.kv_heads, s.head_dim)),
            attended=workspace.buffer("attended", (s.heads, s.head_dim)),
            projected=workspace.buffer("projected", (s.hidden,)),
            ffn=FfnBuffers.of(workspace, s.ff),
            position=token.position,
            length=token.length,
            rope_table=rope_table,
        )


def transformer_layer(launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, cache: LayerCache, a: Activations) -> None:
    """One token through one layer: a.hidden is updated in place, its key and value go into the cache at a.position.

    Where `launch.fused`, neighbouring steps are one launch if there is a kernel for them; the bits are the same."""
    normalise(launch, "attn_norm", s, a, w.attn_norm, (w.attn_q, w.attn_k, w.attn_v))
    for role, projection, out in (("attn_q", w.attn_q, a.q), ("attn_k", w.attn_k, a.k), ("attn_v", w.attn_v, a.v)):
        project(launch, role, projection, x=a.normed, y=_flat(out))
    _rotate_and_append(launch, s, w, cache, a)
    attend(launch, cache, q=a.q, out=a.attended, length=a.length, digits=digits_read(w.attn_output) if launch.fused else 0)
    project_onto(launch, "attn_output", w.attn_output, x=_flat(a.attended), stream=a.hidden, product=a.projected)
    normalise(launch, "ffn_norm", s, a, w.ffn_norm, (w.ffn_gate, w.ffn_up))
    swiglu(launch, w.ffn_gate, w.ffn_up, w.ffn_down, a.ffn, x=a.normed)
    project_onto(launch, "ffn_down", w.ffn_down, x=a.ffn.activated, stream=a.hidden, product=a.projected)


def normalise(
    launch: LaunchQueue, operation: str, s: LayerShape, a: Activations, gamma: GpuBuffer, readers: Sequence[Projection]
) -> None:
    """a.normed becomes the RMSNorm of a.hidden, which the kernel sees as one row, ready for its readers."""
    row, digits = (1, s.hidden), digits_read(*readers)
    arguments = {"y": a.normed.view(0, row), "x": a.hidden.view(0, row), "gamma": gamma, "eps": s.rms_eps}
    if launch.fused and digits:
        kernel = RmsNormDigits(hidden=s.hidden, digits=digits)
        launch.digits.write(launch, operation, kernel, a.normed, digits, **arguments)
    else:
        launch(operation, RmsNorm(hidden=s.hidden), **arguments)


def _rotate_and_append(launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, cache: LayerCache, a: Activations) -> None:
    """Biases are added, queries and keys normalised where the architecture does, and rotated; keys and values go into the
    cache."""
    biases = {"q_bias": w.attn_q_bias, "k_bias": w.attn_k_bias, "v_bias": w.attn_v_bias}
    norms = (w.attn_q_norm, w.attn_k_norm)
    neox = s.rope_style == "neox"
    places = {"table": a.rope_table, "position": a.position}
    all_or_none = len({bias is None for bias in biases.values()}) == 1
    if launch.fused and all_or_none and (norms == (None, None) or w.attn_q_bias is None):
        _normalise_heads(launch, s, w, a)
        added = {name: bias for name, bias in biases.items() if bias is not None}
        kernel = RopeScatter(neox, bool(added), s.heads, s.kv_heads, s.head_dim, cache.max_len, s.rope_dim)
        caches = {"k_cache": cache.keys, "v_cache": cache.values}
        launch("rope_scatter", kernel, q=a.q, k=a.k, v=a.v, **added, **caches, **places)
        return
    for role, bias, x in zip("qkv", biases.values(), (a.q, a.k, a.v), strict=True):
        if bias is not None:
            launch(f"attn_{role}_bias", ResidualAdd(n=bias.shape[0]), x=_flat(x), delta=bias)
    _normalise_heads(launch, s, w, a)
    for role, x in (("q", a.q), ("k", a.k)):
        launch(f"rope_{role}", Rope(neox, True, x.shape[0], s.head_dim, cache.max_len, s.rope_dim), x=x, **places)
    append(launch, cache, k=a.k, v=a.v, position=a.position)


def _normalise_heads(launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, a: Activations) -> None:
    for role, norm, x in (("q", w.attn_q_norm, a.q), ("k", w.attn_k_norm, a.k)):
        if norm is not None:
            kernel = PerHeadRmsNorm(heads=x.shape[0], head_dim=s.head_dim)
            launch(f"attn_{role}_norm", kernel, x=x, gamma=norm, eps=s.rms_eps)


def _flat(x: GpuBuffer) -> GpuBuffer:
    heads, head_dim = x.shape
    return x.view(0, (heads * head_dim,))
