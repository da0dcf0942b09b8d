"""One token's attention over the cache: which kernels run, on which buffers. Where the token stands is in device buffers, so
that the same launches serve every position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.buffers import GpuBuffer
from executor.kv_cache import LayerCache
from ptxgen.kernels.registry import find

if TYPE_CHECKING:
    from executor.layers.calls import Launch


def attend(
    launch: Launch,
    cache: LayerCache,
    *,
    q: GpuBuffer,
    k: GpuBuffer,
    v: GpuBuffer,
    out: GpuBuffer,
    position: GpuBuffer,
    length: GpuBuffer,
) -> None:
    """k and v go into the cache at `position`; `out` is what q attends to among the first `length` positions.

    q, out: f32[heads, head_dim]; k, v: f32[kv_heads, head_dim]; q and k are rotated already; position, length: u32[1].
    """
    caches = {"k_cache": cache.keys, "v_cache": cache.values}
    heads, head_dim = q.shape
    shape = {"kv_heads": k.shape[0], "head_dim": head_dim, "max_len": cache.max_len}
    launch("kv_scatter", find("kv_cache_scatter_indirect").make(**shape), **caches, k=k, v=v, position=position)
    attention = find("incremental_attention_indirect").make(heads=heads, **shape)
    launch("attention", attention, out=out, q=q, **caches, length=length)
