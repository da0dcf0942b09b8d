"""One token's attention over the cache: which kernels run, on which buffers. Where the token stands is in device buffers, so
that the same launches serve every position."""

from __future__ import annotations

from executor.layers.calls import LaunchQueue
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import LayerCache
from ptxgen.kernels.attention.attention_digits import IncrementalAttentionDigits
from ptxgen.kernels.attention.incremental_attention import IncrementalAttention
from ptxgen.kernels.attention.kv_cache_scatter import KvCacheScatter


def append(launch: LaunchQueue, cache: LayerCache, *, k: GpuBuffer, v: GpuBuffer, position: GpuBuffer) -> None:
    """k and v go into the cache at `position`. k, v: f32[kv_heads, head_dim], k rotated already; position: u32[1]."""
    kv_heads, head_dim = k.shape
    kernel = KvCacheScatter(indirect=True, kv_heads=kv_heads, head_dim=head_dim, max_len=cache.max_len)
    launch("kv_scatter", kernel, k_cache=cache.keys, v_cache=cache.values, k=k, v=v, position=position)


def attend(launch: LaunchQueue, cache: LayerCache, *, q: GpuBuffer, out: GpuBuffer, length: GpuBuffer, digits: int = 0) -> None:
    """`out` is what q attends to among the first `length` positions of the cache, and its digits, if `digits` says how many.

    q, out: f32[heads, head_dim], q rotated already; length: u32[1].
    """
    heads, head_dim = q.shape
    kv_heads, _, _ = cache.keys.shape
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "max_len": cache.max_len}
    arguments = {"out": out, "q": q, "k_cache": cache.keys, "v_cache": cache.values, "length": length}
    if digits:
        kernel = IncrementalAttentionDigits(True, **shape, digits=digits)
        launch.digits.write(launch, "attention", kernel, out.view(0, (heads * head_dim,)), digits, **arguments)
    else:
        launch("attention", IncrementalAttention(True, **shape), **arguments)
