"""The rotations of a cache's positions on the device, made anew when the cache has grown. The numbers are
ptxgen/kernels/rope/table.py's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache


class RopeTable:
    """f32[max_len, rope_dim / 2, 2]: cosine and sine of every position that `cache` has room for, by `rotations` of so many
    positions; or such a table for each of several rotations, one after another."""

    def __init__(self, cache: KvCache, rotations: Callable[[int], NDArray[np.float32]]) -> None:
        self._cache = cache
        self._rotations = rotations
        self._table = self._upload(cache.max_len)

    @property
    def buffer(self) -> GpuBuffer:
        """The table for the cache as it is: a cache that has grown, or whose table was freed, gets another one now."""
        if not self._table.alive or self._table.shape[-3] != self._cache.max_len:
            self._replace(self._upload(self._cache.max_len))
        return self._table

    def grow(self, max_len: int) -> None:
        """Grow the cache and have its table. Errors as KvCache.grow; nothing has changed then."""
        table = self._upload(self._cache.checked_room(max_len))
        try:
            self._cache.grow(max_len)
        except BaseException:
            table.free()
            raise
        self._replace(table)

    def free(self) -> None:
        """Give the memory back. A second time does nothing."""
        if self._table.alive:
            self._table.free()

    def _replace(self, table: GpuBuffer) -> None:
        old, self._table = self._table, table
        if old.alive:
            old.free()

    def _upload(self, max_len: int) -> GpuBuffer:
        return GpuBuffer.from_numpy(self._cache.device, self._rotations(max_len), name="rope table")
