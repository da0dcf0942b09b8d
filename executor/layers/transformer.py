"""The transformer layer of the dense architectures, written once: which kernels run, in which order, on which buffers.

It says nothing about how they run. `launch` is called once for each kernel; what it does with the call (run it, prepare it for
later, record it) is the caller's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from executor.buffers import GpuBuffer
from executor.kv_cache import LayerCache
from executor.model.config import ModelConfig
from executor.ops.gemv import gemv
from executor.profile import GpuProfile
from executor.weights import Weight
from ptxgen.kernels.kernel_type import KernelType
from ptxgen.kernels.registry import find


class Launch(Protocol):
    """Takes a kernel and its arguments by name. `profile` says which kernels are to be used."""

    @property
    def profile(self) -> GpuProfile: ...

    def __call__(self, kernel: KernelType, **arguments: Any) -> None: ...


@dataclass(frozen=True)
class LayerWeights:
    """The tensors of one layer. None stands for what the architecture does not have."""

    attn_norm: GpuBuffer  # f32[hidden]
    q: Weight  # [q_dim, hidden]
    k: Weight  # [kv_dim, hidden]
    v: Weight  # [kv_dim, hidden]
    output: Weight  # [hidden, q_dim]
    ffn_norm: GpuBuffer  # f32[hidden]
    gate: Weight  # [ff, hidden]
    up: Weight  # [ff, hidden]
    down: Weight  # [hidden, ff]
    q_bias: GpuBuffer | None = None  # f32[q_dim]
    k_bias: GpuBuffer | None = None  # f32[kv_dim]
    v_bias: GpuBuffer | None = None  # f32[kv_dim]
    q_norm: GpuBuffer | None = None  # f32[head_dim]
    k_norm: GpuBuffer | None = None  # f32[head_dim]


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
    gate: GpuBuffer  # [ff]
    up: GpuBuffer  # [ff]
    activated: GpuBuffer  # [ff]
    position: GpuBuffer  # where the token stands in its sequence
    length: GpuBuffer  # position + 1: how many keys it attends to
    rope_table: GpuBuffer  # [context, rope_dim / 2, 2]: cosine and sine


def transformer_layer(launch: Launch, c: ModelConfig, w: LayerWeights, cache: LayerCache, a: Activations) -> None:
    """One token through one layer: a.hidden is updated in place, its key and value go into the cache at a.position."""
    _attention(launch, c, w, cache, a)
    launch(find("residual_add").make(n=c.hidden), x=a.hidden, delta=a.projected)
    _feed_forward(launch, c, w, a)
    launch(find("residual_add").make(n=c.hidden), x=a.hidden, delta=a.projected)


def normalise(launch: Launch, c: ModelConfig, a: Activations, gamma: GpuBuffer) -> None:
    """a.normed becomes the RMSNorm of a.hidden, which the kernel sees as one row."""
    row = (1, c.hidden)
    kernel = find("rmsnorm").make(hidden=c.hidden)
    launch(kernel, y=a.normed.view(0, row), x=a.hidden.view(0, row), gamma=gamma, eps=c.rms_eps)


def _attention(launch: Launch, c: ModelConfig, w: LayerWeights, cache: LayerCache, a: Activations) -> None:
    context = cache.max_len
    normalise(launch, c, a, w.attn_norm)
    for weight, bias, out, heads in (
        (w.q, w.q_bias, a.q, c.heads),
        (w.k, w.k_bias, a.k, c.kv_heads),
        (w.v, w.v_bias, a.v, c.kv_heads),
    ):
        flat = out.view(0, (heads * c.head_dim,))
        gemv(launch, weight, x=a.normed, y=flat)
        if bias is not None:
            launch(find("residual_add").make(n=heads * c.head_dim), x=flat, delta=bias)
    rope = "rope_indirect" if c.rope_style == "adjacent" else "rope_neox_indirect"
    for norm, x, heads in ((w.q_norm, a.q, c.heads), (w.k_norm, a.k, c.kv_heads)):
        if norm is not None:
            launch(find("per_head_rmsnorm").make(heads=heads, head_dim=c.head_dim), x=x, gamma=norm, eps=c.rms_eps)
        kernel = find(rope).make(heads=heads, head_dim=c.head_dim, max_len=context, rotary_dim=c.rope_dim)
        launch(kernel, x=x, table=a.rope_table, position=a.position)
    caches = {"k_cache": cache.keys, "v_cache": cache.values}
    shape = {"kv_heads": c.kv_heads, "head_dim": c.head_dim, "max_len": context}
    launch(find("kv_cache_scatter_indirect").make(**shape), **caches, k=a.k, v=a.v, position=a.position)
    attention = find("incremental_attention_indirect").make(heads=c.heads, **shape)
    launch(attention, out=a.attended, q=a.q, **caches, length=a.length)
    gemv(launch, w.output, x=a.attended.view(0, (c.q_dim,)), y=a.projected)


def _feed_forward(launch: Launch, c: ModelConfig, w: LayerWeights, a: Activations) -> None:
    normalise(launch, c, a, w.ffn_norm)
    gemv(launch, w.gate, x=a.normed, y=a.gate)
    gemv(launch, w.up, x=a.normed, y=a.up)
    launch(find("fused_swiglu").make(n=c.ff), y=a.activated, gate=a.gate, up=a.up)
    gemv(launch, w.down, x=a.activated, y=a.projected)
