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
    `q8_0`; value_dim: of a row of values, if it is not that of keys."""

    kv_heads: int
    head_dim: int
    page_len: int
    pages: int
    slots: int
    max_len: int
    kv_type: str = "f32"
    value_dim: int | None = None

    def of(self, kv_heads: int) -> PagedShape:
        """That of a layer with so many."""
        return replace(self, kv_heads=kv_heads)

    @property
    def entries(self) -> int:
        """Pages of the longest sequence."""
        return -(-self.max_len // self.page_len)

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
        shape = PagedShape(
            kv_heads, head_dim, page_len=rows, pages=1, slots=1, max_len=layer.max_len, value_dim=layer.value_dim
        )
        held = {"k_cache": layer.keys, "v_cache": layer.values}
        arrays = {name: held[name].view(0, array.shape) for name, array in shape.caches().items() if isinstance(array, Array)}
        return LayerPages(shape, arrays, table.view(0, (1, -(-layer.max_len // rows))))

    return tuple(map(paged, cache.layers))


class PagedKvCache:
    """Pages for the keys and values of `layers` layers, and a page table for each slot; layers that see a window may have pages
    and tables of their own. Which pages hold what is not known here. A page that no table names keeps what is in it."""

    def __init__(
        self,
        device: DeviceMemory,
        layers: int,
        shape: PagedShape,
        heads: Sequence[int] | None = None,
        *,
        windows: Sequence[int | None] = (),
        window_pages: int | None = None,
    ) -> None:
        """Allocate; contents are undefined until written, and no slot has pages. heads: the key-value heads of each layer,
        where they are not those of the shape; windows: of each layer, None where it sees all; window_pages: how many pages
        those that see less have of their own; None: all layers have the same ones. Raises ArgumentError for a shape that no
        attention kernel takes, DeviceError when memory is full: nothing stays allocated then."""
        self.device = device
        self.shape = shape
        self.window = None if window_pages is None else max((one for one in windows if one is not None), default=None)
        own = [shape] * whole("layers", layers, 1) if heads is None else [shape.of(count) for count in heads]
        apart = [self.window is not None and window is not None for window in windows or [None] * len(own)]
        own = [replace(one, pages=window_pages) if few and window_pages else one for one, few in zip(own, apart, strict=True)]
        arrays = [one.caches() for one in own]
        self._tables = np.full((1 if self.window is None else 2, shape.slots, shape.entries), NO_PAGE, np.uint32)

        def allocated(layer: int) -> dict[str, GpuBuffer]:
            return {
                name: GpuBuffer.empty(device, array.dtype, array.shape, f"{name} of layer {layer}")
                for name, array in arrays[layer].items()
                if isinstance(array, Array)
            }

        with free_on_error(device):
            caches = tuple(map(allocated, range(len(own))))
            self.tables = tuple(GpuBuffer.from_numpy(device, table, U32, "page tables") for table in self._tables)
        tables = (self.tables[few] for few in apart)
        self.layers = tuple(map(LayerPages, own, caches, tables))

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and tables, without what alignment adds."""
        return sum(buffer.nbytes for buffer in self._buffers)

    @property
    def window_pages(self) -> int:
        """How many pages layers with a window have of their own."""
        return next((layer.shape.pages for layer in self.layers if layer.tables is not self.tables[0]), 0)

    def set_table(self, slot: int, pages: Sequence[int], window: Sequence[int | None] | None = None) -> None:
        """The pages of a slot's sequence, in the order of its positions: page i holds those from i * page_len on. What is there
        already is not copied again. window: those of layers that have pages of their own, None for what lies before the
        window; without it the same. ArgumentError for a slot or a page that there is not, and for more pages than a sequence
        may have: then nothing has changed."""
        slot = whole("the slot", slot, 0, self.shape.slots - 1)
        given: list[tuple[Sequence[int | None], int]] = [(pages, self.shape.pages)]
        if self.window is not None:
            given.append((pages if window is None else window, self.window_pages))
        tables = np.full((len(given), self.shape.entries), NO_PAGE, np.uint32)
        for table, (numbers, most) in zip(tables, given, strict=True):
            if len(numbers) > self.shape.entries:
                raise ArgumentError(f"slot {slot} is given {len(numbers)} pages; a sequence has at most {self.shape.entries}")
            table[: len(numbers)] = [NO_PAGE if page is None else whole("a page", page, 0, most - 1) for page in numbers]
        for table, before, buffer in zip(tables, self._tables[:, slot], self.tables, strict=True):
            if not np.array_equal(table, before):
                self._need_life()
                buffer.view(slot * table.nbytes, table.shape).upload(table)
                before[:] = table

    def has_pages(self, slot: int, position: int) -> bool:
        """Whether the slot's sequence has a page for a position, in all layers."""
        return not (self._tables[:, slot, position // self.shape.page_len] == NO_PAGE).any()

    def has_window(self, slot: int, position: int) -> bool:
        """Whether it has those that the position sees of layers that keep a window."""
        if self.window is None:
            return True
        first = max(0, position + 1 - self.window) // self.shape.page_len
        return not (self._tables[1, slot, first : position // self.shape.page_len] == NO_PAGE).any()

    def free(self) -> None:
        """Give the memory back. A second time does nothing."""
        for buffer in self._buffers:
            if buffer.alive:
                buffer.free()

    @property
    def _buffers(self) -> list[GpuBuffer]:
        return [*self.tables, *(buffer for layer in self.layers for buffer in layer.arrays.values())]

    def _need_life(self) -> None:
        if not self.tables[0].alive:
            raise DeviceError("the paged KV cache was freed; make a new one")


NO_PAGE = 2**32 - 1
"""In a table: no page, which kernels do not follow."""
