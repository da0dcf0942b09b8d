"""The keys and values of one sequence, per layer. Who writes them is a kernel (kv_cache_scatter); this holds memory and
length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from executor.arguments import whole
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
    """Room for `max_len` positions in `layers` layers. `length` of them are taken. `generation` rises when the memory is
    another: what holds its addresses is valid while it stands."""

    def __init__(self, device: Device, layers: int, kv_heads: int, head_dim: int, max_len: int) -> None:
        """Allocate; contents are undefined until written, and nothing beyond `length` may be read. Raises ArgumentError for a
        size below 1, DeviceError when memory is full."""
        sizes = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "max_len": max_len}
        layers, kv_heads, head_dim, max_len = (whole(f"KV cache: {name}", size, 1) for name, size in sizes.items())
        self.device = device
        self.max_len = max_len
        self.length = 0
        self.generation = 0
        self.layers = self._allocated(layers, (kv_heads, max_len, head_dim))

    @property
    def nbytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)

    def advance(self, count: int = 1) -> int:
        """Take `count` more positions; returns the first of them. Raises ArgumentError when they do not fit, and takes none."""
        count = whole("KV cache: the number of positions to take", count, 1)
        if self.length + count > self.max_len:
            raise ArgumentError(
                f"the context is full: {self.length} of {self.max_len} positions are taken, {count} more do not fit"
            )
        position = self.length
        self.length += count
        return position

    def truncate(self, length: int) -> None:
        """Forget all positions from `length` on."""
        self.length = whole("KV cache: the length to cut to", length, 0, self.length)

    def reset(self) -> None:
        """Start a new sequence."""
        self.length = 0

    def grow(self, max_len: int) -> None:
        """Make room for `max_len` positions; what is in the cache stays. Raises ArgumentError for less room than there is, and
        DeviceError when memory is full: then the cache is as it was."""
        max_len = whole("KV cache: max_len", max_len, self.max_len)
        if max_len == self.max_len:
            return
        new = self._like(max_len)
        try:
            self._copy(self.layers, new, self.length)
        except BaseException:
            _free(new)
            raise
        old, self.layers = self.layers, new
        self.max_len = max_len
        self.generation += 1
        _free(old)

    @contextmanager
    def set_aside(self, count: int) -> Iterator[None]:
        """In the block there is a new sequence, of at most `count` tokens; afterwards the one that there was is back."""
        length = self.length
        rows = min(count, length)
        kept = self._like(rows) if rows else ()
        try:
            self._copy(self.layers, kept, rows)
            self.reset()
            try:
                yield
            finally:
                self.length = length
                if not self.device.closed:
                    self._copy(kept, self.layers, rows)
        finally:
            if not self.device.closed:
                _free(kept)

    def free(self) -> None:
        """Give the memory back."""
        _free(self.layers)
        self.layers = ()
        self.generation += 1

    def _like(self, max_len: int) -> tuple[LayerCache, ...]:
        """Memory for as many layers with another number of positions."""
        kv_heads, _, head_dim = self.layers[0].keys.shape
        return self._allocated(len(self.layers), (kv_heads, max_len, head_dim))

    def _copy(self, source: Iterable[LayerCache], target: Iterable[LayerCache], rows: int) -> None:
        """The first `rows` positions of all layers."""
        if not rows:
            return
        for before, after in zip(source, target, strict=True):
            for here, there in ((before.keys, after.keys), (before.values, after.values)):
                kv_heads, _, head_dim = here.shape
                row = head_dim * F32.bytes
                for head in range(kv_heads):
                    start, end = head * before.max_len * row, head * after.max_len * row
                    self.device.copy(there.pointer + end, here.pointer + start, rows * row)
                there.allocation.writes.count += 1

    def _allocated(self, layers: int, shape: tuple[int, int, int]) -> tuple[LayerCache, ...]:
        """An allocation each, so that the sanitiser sees a kernel that runs from one into the next."""
        made: list[LayerCache] = []
        keys: GpuBuffer | None = None
        try:
            for layer in range(layers):
                keys = GpuBuffer.empty(self.device, F32, shape, f"keys of layer {layer}")
                made.append(LayerCache(keys, GpuBuffer.empty(self.device, F32, shape, f"values of layer {layer}"), shape[1]))
                keys = None
        except BaseException:
            _free(made)
            if keys is not None:
                keys.free()
            raise
        return tuple(made)


def _free(layers: Iterable[LayerCache]) -> None:
    for layer in layers:
        layer.keys.free()
        layer.values.free()
