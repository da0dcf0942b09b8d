"""The keys and values of many sequences, in pages, and the tables that say which pages a sequence has. Which page is whose is
page_pool.py's business; the layout is that of ptxgen/kernels/attention/paged_cache.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from executor.base.arguments import whole
from executor.base.errors import DeviceError
from executor.device.protocol import DeviceMemory
from executor.memory.buffers import GpuBuffer, free_on_error
from executor.memory.kv_cache import KvCache, LayerCache
from ptxgen.dsl.arguments import Array, Signature
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.types import U32


@dataclass(frozen=True)
class PagedShape:
    """What kernels must know of a paged cache, by the names of their fields. kv_heads: of a layer; max_len: positions
    that a sequence may have; slots: sequences that have a table at one time; kv_type: how values are held, `f32`, `f16` or
    `q8_0`."""

    kv_heads: int
    head_dim: int
    page_len: int
    pages: int
    slots: int
    max_len: int
    kv_type: str = "f32"

    def of(self, kv_heads: int) -> PagedShape:
        """That of a layer with so many."""
        return replace(self, kv_heads=kv_heads)

    def caches(self) -> Signature:
        """The arrays of one layer by name. ArgumentError for a shape that attention kernels do not take."""
        return PagedAttention(rows=1, heads=self.kv_heads, **asdict(self)).caches("inout")


@dataclass(frozen=True)
class LayerPages:
    """What kernels see of the paged cache of a layer. arrays: by name; tables: u32[slots, max_len / page_len, rounded up]."""

    shape: PagedShape
    arrays: Mapping[str, GpuBuffer]
    tables: GpuBuffer


def as_pages(cache: KvCache, table: GpuBuffer) -> tuple[LayerPages, ...]:
    """The cache of one sequence as one page a layer, as long as the sequence may be, or as the ring that the layer has: then
    all pages of the sequence are this one. table: u32[1, cache.pages] of zeros. ArgumentError if kernels take no page of this
    length."""

    def paged(layer: LayerCache) -> LayerPages:
        kv_heads, rows, head_dim = layer.keys.shape
        shape = PagedShape(kv_heads, head_dim, page_len=rows, pages=1, slots=1, max_len=layer.max_len)
        held = {"k_cache": layer.keys, "v_cache": layer.values}
        arrays = {name: held[name].view(0, array.shape) for name, array in shape.caches().items() if isinstance(array, Array)}
        return LayerPages(shape, arrays, table.view(0, (1, -(-layer.max_len // rows))))

    return tuple(map(paged, cache.layers))


class PagedKvCache:
    """Pages for the keys and values of `layers` layers, and a page table for each slot. Which pages hold what is not known
    here. A page that no table names keeps what is in it."""

    def __init__(self, device: DeviceMemory, layers: int, shape: PagedShape, heads: Sequence[int] | None = None) -> None:
        """Allocate; contents are undefined until written, and no slot has pages. heads: the key-value heads of each layer,
        where they are not those of the shape. Raises ArgumentError for a shape that no attention kernel takes, DeviceError when
        memory is full: nothing stays allocated then."""
        self.device = device
        self.shape = shape
        own = [shape] * whole("layers", layers, 1) if heads is None else [shape.of(count) for count in heads]
        arrays = [one.caches() for one in own]
        self._tables = np.full((shape.slots, shape.max_len // shape.page_len), NO_PAGE, np.uint32)

        def allocated(layer: int) -> dict[str, GpuBuffer]:
            return {
                name: GpuBuffer.empty(device, array.dtype, array.shape, f"{name} of layer {layer}")
                for name, array in arrays[layer].items()
                if isinstance(array, Array)
            }

        with free_on_error(device):
            caches = tuple(map(allocated, range(len(own))))
            self.tables = GpuBuffer.from_numpy(device, self._tables, U32, "page tables")
        self.layers = tuple(LayerPages(one, arrays, self.tables) for one, arrays in zip(own, caches, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and tables, without what alignment adds."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def set_table(self, slot: int, pages: Sequence[int]) -> None:
        """The pages of a slot's sequence, in the order of its positions: page i holds those from i * page_len on. What is there
        already is not copied again. ArgumentError for a slot or a page that there is not, and for more pages than a
        sequence may have: then nothing has changed."""
        slot = whole("the slot", slot, 0, self.shape.slots - 1)
        if len(pages) > self._tables.shape[1]:
            raise ArgumentError(f"slot {slot} is given {len(pages)} pages; a sequence has at most {self._tables.shape[1]}")
        table = np.full(self._tables.shape[1], NO_PAGE, np.uint32)
        table[: len(pages)] = [whole("a page", page, 0, self.shape.pages - 1) for page in pages]
        if not np.array_equal(table, self._tables[slot]):
            self._need_life()
            self.tables.view(slot * table.nbytes, table.shape).upload(table)
            self._tables[slot] = table

    def page_of(self, slot: int, position: int) -> int | None:
        """The page that holds a position of a slot's sequence, None if it has none for it."""
        page = int(self._tables[slot, position // self.shape.page_len])
        return None if page == NO_PAGE else page

    def free(self) -> None:
        """Give the memory back. A second time does nothing."""
        for buffer in self._buffers:
            if buffer.alive:
                buffer.free()

    @property
    def _buffers(self) -> list[GpuBuffer]:
        return [self.tables, *(buffer for layer in self.layers for buffer in layer.arrays.values())]

    def _need_life(self) -> None:
        if not self.tables.alive:
            raise DeviceError("the paged KV cache was freed; make a new one")


NO_PAGE = 2**32 - 1
"""In a table: no page, which kernels do not follow."""
