"""How a block brings tiles of the paged cache to shared memory, as f16 parts for tensor cores (query_tile.py).

Where a value takes as much room in the cache as in shared memory (f16 as one part, f32 as two), it is copied there while the
block computes (cp.async): neighbouring threads copy neighbouring pieces of a row, so that each sector is asked for once. f32
values are then taken apart in their place, a chunk by one of the threads that share its row. Others go through registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import SharedPart
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.paged_cache import PagedKernel
from ptxgen.kernels.attention.query_tile import CHUNK, StagedArray, StagedRows
from ptxgen.target import FULL_WARP
from ptxgen.types import F16, F32, U32

COPIED = 16  # bytes of a copy


class CacheRow(NamedTuple):
    """The row of the cache that a thread has to bring: its page, which must be below `pages`, and its place there."""

    page: Value
    place: Value


@dataclass(frozen=True)
class Staging:
    """`threads` of a block, a multiple of the rows of a tile, bring keys or values of key/value head %ctaid.x of `kernel` to
    where `rows` says for `k` and `v`. So many threads of a warp share a row, and take its chunks of 8 values by turns."""

    kernel: PagedKernel
    rows: Mapping[str, StagedRows]
    threads: int

    @property
    def copies(self) -> bool:
        """Whether the values are copied as they are."""
        parts = self.kernel.kv.parts
        return len(parts) == 1 and parts[0].dtype.bytes == self.rows["k"].parts * F16.bytes

    @property
    def sharers(self) -> int:
        """Threads that share a row."""
        return self.threads // self.rows["k"].rows

    def row(self, k: KernelBuilder, page: Value, start: Value, first: Value | int, last: Value) -> CacheRow:
        """The thread's row of the tile that starts at position `start` and lies in `page`. A position past the last is the last
        again, one before the first that, unless that is 0: it must be memory that somebody wrote."""
        position = k.min(start + k.tid.x // self.sharers, last)
        if not isinstance(first, int):
            position = k.max(position, first)
        return CacheRow(page, position % self.kernel.page_len)

    def begin(self, k: KernelBuilder, tensor: str, array: StagedArray, row: CacheRow) -> None:
        """Start to bring the thread's chunks of a tile of `tensor` (`k` or `v`)."""
        if self.copies:
            self._copy(k, tensor, array, row)
            return
        source = self.kernel.cached(k, tensor, row.page, k.ctaid.x, row.place, k.tid.x % self.sharers * CHUNK)
        for at, target in zip(self._chunks(tensor), self._targets(k, tensor, array), strict=True):
            with self._inside(k, tensor, at, CHUNK):
                self.rows[tensor].store(k, target, self.kernel.kv.load(k, source, at, CHUNK))

    def _copy(self, k: KernelBuilder, tensor: str, array: StagedArray, row: CacheRow) -> None:
        """Start to copy the thread's pieces of its row: value v of it goes to half v * parts."""
        (part,), rows = self.kernel.kv.parts, self.rows[tensor]
        piece = COPIED // part.dtype.bytes
        first = k.tid.x % self.sharers * piece
        (source,) = self.kernel.cached(k, tensor, row.page, k.ctaid.x, row.place, first)
        target = rows.chunk(k, array, k.tid.x // self.sharers, k.u32(0)).at(first * rows.parts)
        for at in range(0, rows.head_dim, self.sharers * piece):
            with self._inside(k, tensor, at, piece):
                k.cp_async(target[at * rows.parts].address, source[at].address, COPIED, cache="cg")

    def _inside(self, k: KernelBuilder, tensor: str, at: int, piece: int) -> AbstractContextManager[Any]:
        """The threads whose piece of a row, `at` values after their first, is inside the cache's row."""
        rest = self.kernel.width(tensor) - at
        return nullcontext() if rest >= self.sharers * piece else k.when(k.tid.x % self.sharers * piece < max(rest, 0))

    def clear(self, k: KernelBuilder, *arrays: StagedArray) -> None:
        """Zeros where rows of keys and of values are longer than those of the cache. All threads must come here."""
        longer = False
        for (tensor, rows), array in zip(self.rows.items(), arrays, strict=True):
            width = self.kernel.width(tensor)
            if chunks := (rows.head_dim - width) // CHUNK * rows.parts:
                longer = True
                for number in k.strided(k.tid.x, rows.rows * chunks, step=self.threads):
                    first = rows.chunk(k, array, number // chunks, k.u32(width // CHUNK))
                    k.store(replace(first.at(number % chunks * CHUNK), dtype=U32)[0], [k.u32(0)] * 4)
        if longer:
            k.barrier()

    def finish(self, k: KernelBuilder, tensor: str, array: StagedArray) -> None:
        """Wait for what the thread has begun, and take it apart. After the next barrier the tile is whole."""
        if not self.copies:
            return
        k.cp_async_wait_all()
        if self.rows[tensor].parts == 2:
            k.bar_warp_sync(FULL_WARP)  # what the others of the row have copied is there, too
            for target in self._targets(k, tensor, array):
                raw = replace(target, dtype=F32)
                self.rows[tensor].store(k, target, [v for i in range(0, CHUNK, 4) for v in k.load_vector(raw[i], 4)])

    def _chunks(self, tensor: str) -> Sequence[int]:
        """Where the thread's chunks start, from its first on."""
        return range(0, self.rows[tensor].head_dim, self.sharers * CHUNK)

    def _targets(self, k: KernelBuilder, tensor: str, array: StagedArray) -> list[SharedPart]:
        """Where they go."""
        rows = self.rows[tensor]
        first = rows.chunk(k, array, k.tid.x // self.sharers, k.tid.x % self.sharers)
        return [first.at(at * rows.parts) for at in self._chunks(tensor)]
