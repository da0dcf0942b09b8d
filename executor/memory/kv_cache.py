"""The keys and values of one sequence, per layer. Who writes them is a kernel (kv_cache_scatter); the memory and the
lengths are kept only here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from executor.base.arguments import whole
from executor.base.errors import DeviceError
from executor.device.protocol import DeviceMemory
from executor.memory.buffers import GpuBuffer, free_on_error
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.paged_cache import TILE
from ptxgen.types import F32


@dataclass(frozen=True)
class LayerCache:
    """keys: f32[kv_heads, rows, head_dim] and values: f32[kv_heads, rows, value_dim] of one layer, rows = ring or max_len:
    position p of max_len stands in row p % rows."""

    keys: GpuBuffer
    values: GpuBuffer
    max_len: int
    ring: int | None = None

    @property
    def value_dim(self) -> int | None:
        """Of a row of values, if it is not that of keys."""
        width = self.values.shape[-1]
        return None if width == self.keys.shape[-1] else width


class KvCache:
    """Room for `max_len` positions in `layers` layers, of which `lengths[layer]` are filled: layers that run one by one may
    differ, in their key-value heads too. `generation` rises when the memory is another: addresses in it are valid while it
    stands. A cache without positions may `rest`, and has no memory until that is needed again.

    A layer that sees a window of positions keeps that and `step` more in a ring, where that is less than max_len. So it can be
    cut only as far as nothing is gone that the next token sees: `kept` says how far."""

    def __init__(
        self,
        device: DeviceMemory,
        layers: int,
        kv_heads: int | Sequence[int],
        head_dim: int,
        max_len: int,
        *,
        windows: Sequence[int | None] = (),
        step: int = 1,
        value_dim: int | None = None,
    ) -> None:
        """Allocate, for as many heads in all layers or for those of each; contents are undefined until written, and nothing
        beyond a layer's length may be read. windows: of each layer, None where it sees all; nothing for layers that all do;
        step: most positions that are written at a time; value_dim: of a row of values, if it is not that of keys. Raises
        ArgumentError for a size below 1 or one that no attention kernel takes, DeviceError when memory is full."""
        sizes = {"layers": layers, "head_dim": head_dim, "max_len": max_len}
        layers, head_dim, max_len = (whole(f"KV cache: {name}", size, 1) for name, size in sizes.items())
        heads = kv_heads if isinstance(kv_heads, Sequence) else (kv_heads,) * layers
        self.device = device
        self.max_len = max_len
        self.lengths = [0] * layers
        self.generation = 0
        self._heads = tuple(whole("KV cache: kv_heads", own, 1) for own in heads)
        self._head_dim, self._value_dim = head_dim, value_dim
        self._windows = [(window, None if window is None else _ring(window, step)) for window in windows or [None] * layers]
        self._reached = 0  # positions that were written since the sequence began, whether they count or not
        self._require_attention(max_len)
        self._freed = False
        self._layers = self._like(max_len)

    @property
    def layers(self) -> tuple[LayerCache, ...]:
        """The memory of each layer, allocated again after a rest, for which there may be no room: DeviceError. Nothing once it
        was freed."""
        if not self._layers and not self._freed:
            self._layers = self._like(self.max_len)
        return self._layers

    @property
    def nbytes(self) -> int:
        """Bytes that all layers have now, without what alignment adds."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self._layers)

    @property
    def writes(self) -> int:
        """How often the memory that it has now was written: unchanged while nothing was written into it."""
        return sum(layer.keys.version + layer.values.version for layer in self._layers)

    @property
    def length(self) -> int:
        """How many positions the longest layer has."""
        return max(self.lengths)

    @property
    def step(self) -> int:
        """The most positions that may be filled at a time, and taken back after that."""
        return min((ring - window for window, ring in self._rings), default=self.max_len)

    @property
    def pages(self) -> int:
        """The most pages as long as a layer's memory that a sequence has."""
        return max((-(-self.max_len // ring) for _, ring in self._rings), default=1)

    def kept(self, length: int) -> int:
        """How many of the first `length` positions a next token can follow: all of them, or 0 where a window layer has not kept
        what that would see. One position more than were filled may have been written, by a step that did not count."""
        gone = (self._reached + 1 - ring > max(0, length + 1 - window) for window, ring in self._rings)
        return 0 if any(gone) else length

    def layer(self, number: int) -> LayerCache:
        """ArgumentError if there is no layer of this number, DeviceError once the memory was given back."""
        number = whole("the layer", number)
        if not 0 <= number < len(self.lengths):
            raise ArgumentError(f"no layer {number}; the KV cache has layers 0 to {len(self.lengths) - 1}")
        self._need_life()
        return self.layers[number]

    def advance(self, count: int = 1) -> int:
        """Fill `count` more positions in all layers; returns the first of them. Raises ArgumentError, and fills none, when they
        do not fit or the layers differ in length."""
        count = whole("KV cache: the number of positions to fill", count, 1)
        layers, position = len(self.lengths), self.lengths[0]
        if self.lengths.count(position) != layers:
            raise ArgumentError(
                f"KV cache: the layers have {self.lengths} positions; only layers of one length advance together"
            )
        self.require_room(count)
        if count > self.step:
            raise ArgumentError(f"KV cache: at most {self.step} positions are filled at a time, got {count}")
        self.lengths = [position + count] * layers
        self._reached = max(self._reached, position + count)
        return position

    def require_room(self, count: int) -> None:
        """ArgumentError unless `count` more positions fit after those of the longest layer."""
        if self.length + count > self.max_len:
            raise ArgumentError(
                f"the context is full: {self.length} of {self.max_len} positions are filled, {count} more do not fit"
            )

    def truncate(self, length: int) -> None:
        """Forget all positions from `length` on. ArgumentError, and nothing changes, where not so many are `kept`."""
        length = whole("KV cache: the length to cut to", length, 0, self.length)
        if self.kept(length) < length:
            raise ArgumentError(
                f"KV cache: of {self._reached} positions, layers with a window have kept the last, and the next one after the "
                f"first {length} sees others; reset, and run these again"
            )
        if not length:
            self.reset()
        self.lengths = [min(own, length) for own in self.lengths]

    def reset(self) -> None:
        """Start a new sequence."""
        self.lengths = [0] * len(self.lengths)
        self._reached = 0

    def grow(self, max_len: int) -> None:
        """Make room for `max_len` positions; what is in the cache stays. Raises ArgumentError for less room than there is or
        more than attention kernels take, and DeviceError when memory is full: then the cache is as it was."""
        max_len = self.checked_room(max_len)
        if max_len == self.max_len:
            return
        old = self._layers
        new: tuple[LayerCache, ...] = ()
        if old:
            with free_on_error(self.device):
                new = self._like(max_len)
                self._copy(old, new, self.length)
        self._layers, self.max_len = new, max_len
        self.generation += 1
        _free(old)

    def checked_room(self, max_len: int) -> int:
        """max_len, if the cache may grow to it; errors as `grow`, but for memory."""
        max_len = whole("KV cache: max_len", max_len, self.max_len)
        self._need_life()
        self._require_attention(max_len)
        return max_len

    @contextmanager
    def set_aside(self, count: int) -> Iterator[None]:
        """In the block there is a new sequence, of at most `count` tokens; afterwards the earlier one is back."""
        self._need_life()
        lengths, reached = self.lengths, self._reached
        rows = min(count, self.length)
        saved = self._like(rows) if rows else ()
        try:
            self._copy(self.layers, saved, rows)
            self.reset()
            try:
                yield
            finally:
                self.lengths, self._reached = lengths, reached
                if not self.device.closed:
                    self._copy(saved, self.layers, rows)
        finally:
            if not self.device.closed:
                _free(saved)

    def rest(self) -> None:
        """Give the memory back until it is needed again, if no layer has a position; else nothing happens."""
        if self._layers and not self.length:
            _free(self._layers)
            self._layers = ()
            self.generation += 1

    def free(self) -> None:
        """Give the memory back."""
        _free(self._layers)
        self._layers, self._freed = (), True
        self.generation += 1

    def _need_life(self) -> None:
        if self._freed:
            raise DeviceError("the KV cache was freed; init_kv_cache creates a new one")

    @property
    def _rings(self) -> Iterator[tuple[int, int]]:
        """The window and the ring of each layer that has one."""
        for window, ring in self._windows:
            if window is not None and ring is not None and ring < self.max_len:
                yield window, ring

    def _like(self, max_len: int) -> tuple[LayerCache, ...]:
        """Memory for as many layers with another number of positions: an allocation each, so that the sanitiser sees a kernel
        that runs from one into the next."""

        def allocated(layer: int) -> LayerCache:
            _, ring = self._windows[layer]
            ring = ring if ring is not None and ring < max_len else None
            rows, value_dim = (self._heads[layer], ring or max_len), self._value_dim
            widths = {"keys": self._head_dim, "values": self._head_dim if value_dim is None else value_dim}
            keys, values = (
                GpuBuffer.empty(self.device, F32, (*rows, width), f"{kind} of layer {layer}") for kind, width in widths.items()
            )
            return LayerCache(keys, values, max_len, ring)

        with free_on_error(self.device):
            return tuple(map(allocated, range(len(self._heads))))

    def _copy(self, source: Iterable[LayerCache], target: Iterable[LayerCache], rows: int) -> None:
        """The first `rows` rows of all layers, or all that one has."""
        if not rows:
            return
        for before, after in zip(source, target, strict=True):
            for old, new in ((before.keys, after.keys), (before.values, after.values)):
                kv_heads, held, head_dim = old.shape
                row, room = head_dim * F32.bytes, new.shape[1]
                for head in range(kv_heads):
                    start, end = head * held * row, head * room * row
                    self.device.copy(new.pointer + end, old.pointer + start, min(rows, held, room) * row)
                new.allocation.writes.count += 1

    def _require_attention(self, max_len: int) -> None:
        """ArgumentError unless there is an attention kernel for so many positions: what it refuses must not be allocated."""
        for heads in set(self._heads):
            ContiguousAttention(True, heads, heads, self._head_dim, max_len, value_dim=self._value_dim)


def _ring(window: int, step: int) -> int:
    """Rows of a ring: so many that a step overwrites nothing that its first row sees, in whole tiles of the kernels."""
    return -(-(window + step) // TILE) * TILE


def _free(layers: Iterable[LayerCache]) -> None:
    for layer in layers:
        layer.keys.free()
        layer.values.free()
