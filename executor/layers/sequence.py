"""One sequence that layers run on one by one: the geometry of their attention, their keys and values, and where each of them
stands. Whole models have their own (executor/model/decoder.py)."""

from __future__ import annotations

from numpy.typing import ArrayLike

from executor.base.arguments import number, numbers, one_of, whole
from executor.choice.attention import attention_of_one
from executor.device.protocol import DeviceMemory
from executor.layers.attention import PositionSplit
from executor.layers.position import TokenPosition
from executor.layers.rope_table import RopeTable
from executor.layers.shape import ROPE_STYLES, LayerShape, RopeStyle
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from executor.memory.workspace import Workspace
from ptxgen.errors import ArgumentError
from ptxgen.kernels.rope.table import rope_table


class LayerSequence:
    """Keys, values and rotations of `layers` layers for one sequence of at most max_len tokens.

    Memory and lengths are the cache's: to reset, cut or grow it does that to the sequence. Position and length of the
    current token lie in the workspace, where kernels read them. rope_freqs: divisors of the rotary frequencies, rope_dim / 2
    of them."""

    def __init__(
        self,
        device: DeviceMemory,
        workspace: Workspace,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        max_len: int,
        *,
        rope_base: float = 10000.0,
        rope_style: RopeStyle = "adjacent",
        rope_dim: int | None = None,
        rope_freqs: ArrayLike | None = None,
    ) -> None:
        self.heads, self.kv_heads = whole("heads", heads, 1), whole("kv_heads", kv_heads, 1)
        if self.heads % self.kv_heads:
            raise ArgumentError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
        self.head_dim = whole("head_dim", head_dim, 1)
        self.rope_style = one_of("rope_style", rope_style, ROPE_STYLES)
        rotated = self.rope_dim = self.head_dim if rope_dim is None else whole("rope_dim", rope_dim, 2, self.head_dim)
        self.token = TokenPosition(workspace)
        """The position of the current token."""
        base, divisors = number("rope_base", rope_base), None if rope_freqs is None else numbers("rope_freqs", rope_freqs)
        self.cache = KvCache(device, layers, kv_heads, head_dim, max_len)
        try:
            # Not `self`: a dropped sequence would keep its cache until the garbage collector comes.
            one = attention_of_one(heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim)
            self.split = PositionSplit(one, workspace)
            """How the positions that a token attends to are dealt out."""
            self._table = RopeTable(self.cache, lambda room: rope_table(room, rotated, base, divisors))
        except BaseException:
            self.cache.free()
            raise

    def shape(self, hidden: int, ff: int, rms_eps: float) -> LayerShape:
        """The dimensions of a layer with this attention. ArgumentError for a size below 1 or a negative rms_eps."""
        return LayerShape(
            whole("hidden_dim", hidden, 1),
            whole("intermediate_dim", ff, 1),
            self.heads,
            self.kv_heads,
            self.head_dim,
            number("epsilon", rms_eps, 0),
            rope_style=self.rope_style,
            rope_dim=self.rope_dim,
        )

    @property
    def lengths(self) -> list[int]:
        """How many positions each layer has: where its next token goes."""
        return self.cache.lengths

    @property
    def position(self) -> GpuBuffer:
        """u32[1]: that of the current token, which `replay(position)` of a graph sets before its launches read it."""
        return self.token.position

    @property
    def rope_table(self) -> GpuBuffer:
        """f32[max_len, rope_dim / 2, 2]: cosine and sine of every position that the cache has room for."""
        return self._table.buffer

    def require_layer(self, layer: int) -> int:
        """The number of a layer. Errors as KvCache.layer."""
        self.cache.layer(layer)
        return whole("the layer", layer)

    def begin(self, position: int, *layers: int) -> None:
        """The current token is at `position`, and these layers are about to run it: they forget what they had from there on.
        Raises ArgumentError for a position beyond the cache or one that would leave a gap; nothing has changed then."""
        position = whole("position", position)
        for layer in layers:
            self.require_layer(layer)
            if not 0 <= position <= self.lengths[layer]:
                raise ArgumentError(
                    f"position {position} of layer {layer} must be from 0 to {self.lengths[layer]}, the next one"
                )
        if position >= self.cache.max_len:
            raise ArgumentError(f"the context is full: position {position} does not fit {self.cache.max_len} positions")
        self.token.move_to(position)
        self.commit(position - 1, *layers)

    def commit(self, position: int, *layers: int) -> None:
        """These layers have the keys and the values up to `position` now."""
        for layer in layers:
            self.lengths[layer] = position + 1

    def grow(self, max_len: int) -> None:
        """Make room for `max_len` positions; what is there stays. Errors as KvCache.grow."""
        self._table.grow(max_len)

    def reset(self) -> None:
        """Start a new sequence."""
        self.cache.reset()

    def free(self) -> None:
        """Give the memory back."""
        self.cache.free()
        self._table.free()
