"""The transformer layer of the dense architectures, written once: which kernels run, in which order, on which buffers.

It says nothing about how they run. `launch` is called once for each kernel; what it does with the call (run it, record it for a
graph) is the caller's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from executor.buffers import GpuBuffer
from executor.indexed import ValidatedLayerWeights
from executor.kv_cache import LayerCache
from executor.layers.calls import Launch
from executor.layers.shape import LayerShape
from executor.ops.attention import attend
from executor.ops.ffn import FfnBuffers, swiglu_ffn
from executor.ops.gemv import project
from executor.workspace import Workspace
from ptxgen.kernels.registry import find
from ptxgen.types import U32


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
        return cls(
            hidden=hidden or workspace.buffer("hidden", (s.hidden,)),
            normed=workspace.buffer("normed", (s.hidden,)),
            q=workspace.buffer("q", (s.heads, s.head_dim)),
            k=workspace.buffer("k", (s.kv_heads, s.head_dim)),
            v=workspace.buffer("v", (s.kv_heads, s.head_dim)),
            attended=workspace.buffer("attended", (s.heads, s.head_dim)),
            projected=workspace.buffer("projected", (s.hidden,)),
            ffn=FfnBuffers.of(workspace, s.ff),
            position=workspace.buffer("position", (1,), U32),
            length=workspace.buffer("length", (1,), U32),
            rope_table=rope_table,
        )


def transformer_layer(launch: Launch, s: LayerShape, w: ValidatedLayerWeights, cache: LayerCache, a: Activations) -> None:
    """One token through one layer: a.hidden is updated in place, its key and value go into the cache at a.position."""
    normalise(launch, "attn_norm", s, a, w.attn_norm)
    _queries_keys_values(launch, s, w, a)
    _rotate(launch, s, w, cache, a)
    attend(launch, cache, q=a.q, k=a.k, v=a.v, out=a.attended, position=a.position, length=a.length)
    project(launch, "attn_output", w.attn_output, x=a.attended.view(0, (s.q_dim,)), y=a.projected)
    launch("attn_residual", find("residual_add").make(n=s.hidden), x=a.hidden, delta=a.projected)
    normalise(launch, "ffn_norm", s, a, w.ffn_norm)
    swiglu_ffn(launch, w.ffn_gate, w.ffn_up, w.ffn_down, a.ffn, x=a.normed, y=a.projected)
    launch("ffn_residual", find("residual_add").make(n=s.hidden), x=a.hidden, delta=a.projected)


def normalise(launch: Launch, operation: str, s: LayerShape, a: Activations, gamma: GpuBuffer) -> None:
    """a.normed becomes the RMSNorm of a.hidden, which the kernel sees as one row."""
    row = (1, s.hidden)
    kernel = find("rmsnorm").make(hidden=s.hidden)
    launch(operation, kernel, y=a.normed.view(0, row), x=a.hidden.view(0, row), gamma=gamma, eps=s.rms_eps)


def _queries_keys_values(launch: Launch, s: LayerShape, w: ValidatedLayerWeights, a: Activations) -> None:
    for role, projection, bias, out, heads in (
        ("attn_q", w.attn_q, w.attn_q_bias, a.q, s.heads),
        ("attn_k", w.attn_k, w.attn_k_bias, a.k, s.kv_heads),
        ("attn_v", w.attn_v, w.attn_v_bias, a.v, s.kv_heads),
    ):
        flat = out.view(0, (heads * s.head_dim,))
        project(launch, role, projection, x=a.normed, y=flat)
        if bias is not None:
            launch(f"{role}_bias", find("residual_add").make(n=heads * s.head_dim), x=flat, delta=bias)


def _rotate(launch: Launch, s: LayerShape, w: ValidatedLayerWeights, cache: LayerCache, a: Activations) -> None:
    rope = "rope_indirect" if s.rope_style == "adjacent" else "rope_neox_indirect"
    for role, norm, x, heads in (("q", w.attn_q_norm, a.q, s.heads), ("k", w.attn_k_norm, a.k, s.kv_heads)):
        if norm is not None:
            kernel = find("per_head_rmsnorm").make(heads=heads, head_dim=s.head_dim)
            launch(f"attn_{role}_norm", kernel, x=x, gamma=norm, eps=s.rms_eps)
        kernel = find(rope).make(heads=heads, head_dim=s.head_dim, max_len=cache.max_len, rotary_dim=s.rope_dim)
        launch(f"rope_{role}", kernel, x=x, table=a.rope_table, position=a.position)
