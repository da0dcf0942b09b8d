"""The keys and values of one sequence, per layer. Who writes them is a kernel (kv_cache_scatter); this holds memory and
length."""

from __future__ import annotations

from dataclasses import dataclass

from executor.buffers import GpuBuffer
from executor.device.protocol import Device
from ptxgen.errors import ArgumentError
from ptxgen.types import F32


@dataclass(frozen=True)
class LayerCache:
    """keys, values: f32[kv_heads, max_len, head_dim] of one layer."""

    keys: GpuBuffer
    values: GpuBuffer
    max_len: int


class KvCache:
    """Room for `max_len` positions in `layers` layers. `length` of them are taken."""

    def __init__(self, device: Device, layers: int, kv_heads: int, head_dim: int, max_len: int) -> None:
        """Allocate; contents are undefined until written, and nothing beyond `length` may be read. Raises ArgumentError for a
        size below 1, DeviceError when memory is full."""
        sizes = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "max_len": max_len}
        for name, size in sizes.items():
            if size < 1:
                raise ArgumentError(f"KV cache: {name} is {size}; must be at least 1")
        self.max_len = max_len
        self.length = 0
        shape = (kv_heads, max_len, head_dim)
        # An allocation each, so that the sanitiser sees a kernel that runs from one layer's cache into the next.
        self.layers = tuple(
            LayerCache(
                GpuBuffer.empty(device, F32, shape, f"keys of layer {layer}"),
                GpuBuffer.empty(device, F32, shape, f"values of layer {layer}"),
                max_len,
            )
            for layer in range(layers)
        )

    @property
    def nbytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)

    def advance(self, count: int = 1) -> int:
        """Take `count` more positions; returns the first of them. Raises ArgumentError when they do not fit, and takes none."""
        if count < 1:
            raise ArgumentError(f"KV cache: cannot advance by {count}; must be at least 1")
        if self.length + count > self.max_len:
            raise ArgumentError(
                f"the context is full: {self.length} of {self.max_len} positions are taken, {count} more do not fit"
            )
        position = self.length
        self.length += count
        return position

    def truncate(self, length: int) -> None:
        """Forget all positions from `length` on."""
        if not 0 <= length <= self.length:
            raise ArgumentError(f"KV cache: cannot cut to {length}; must be from 0 to {self.length}")
        self.length = length

    def reset(self) -> None:
        """Start a new sequence."""
        self.length = 0

    def free(self) -> None:
        for layer in self.layers:
            layer.keys.free()
            layer.values.free()
