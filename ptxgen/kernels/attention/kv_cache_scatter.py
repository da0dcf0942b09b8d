"""Writes the key and the value of one token into the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.kernels.attention.ring import require_ring, row_of
from ptxgen.kernels.position import position_argument, position_value
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import ValueWidth, require
from ptxgen.types import F32

THREADS = 256


@register(indirect=(False, True))
@dataclass(frozen=True)
class KvCacheScatter(ValueWidth, KernelType):
    """k_cache[h, position] = k[h] and v_cache[h, position] = v[h] for every key/value head h.

    k_cache, v_cache: f32[kv_heads, max_len, width]; k, v: f32[kv_heads, width], where the width of K is head_dim and that of V
    is value_dim, head_dim unless it is given; position: u32 scalar below max_len, or with `indirect` a buffer u32[1] that holds
    it; a position of max_len or more writes nothing. ring: the caches have so many rows, and [h, position % ring] is written
    (ring.py).
    """

    family: ClassVar[str] = "attention"
    indirect: bool = field(metadata=HIDDEN)
    kv_heads: int
    head_dim: int
    max_len: int
    ring: int | None = None
    value_dim: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require(self, "kv_heads", "head_dim", "max_len")
        if self.value_dim is not None:
            require(self, "value_dim")
        require_ring(self, self.ring)

    @property
    def name(self) -> str:
        return f"kv_cache_scatter{'_indirect' if self.indirect else ''}"

    def signature(self) -> Signature:
        rows = self.ring or self.max_len
        return {
            "k_cache": update(F32, self.kv_heads, rows, self.head_dim, partial=True),
            "v_cache": update(F32, self.kv_heads, rows, self.value_width, partial=True),
            "k": read(F32, self.kv_heads, self.head_dim),
            "v": read(F32, self.kv_heads, self.value_width),
            "position": position_argument(self.indirect, 0, self.max_len - 1),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.kv_heads * self.widest // THREADS), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        position = position_value(k, "position", self.indirect)
        with k.when((i < self.kv_heads * self.widest) & (position < self.max_len)):
            head, place, row = i // self.widest, i % self.widest, row_of(position, self.ring)
            for name, width in (("k", self.head_dim), ("v", self.value_width)):
                with nullcontext() if width == self.widest else k.when(place < width):
                    cache = getattr(k.arg, f"{name}_cache")[head, row, place]
                    k.store(cache, k.load(getattr(k.arg, name)[head, place]))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        caches = {name: arguments[name].copy() for name in ("k_cache", "v_cache")}
        position = int(np.asarray(arguments["position"]).reshape(()))
        if position < self.max_len:
            row = row_of(position, self.ring)
            caches["k_cache"][:, row], caches["v_cache"][:, row] = arguments["k"], arguments["v"]
        return caches

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {"k_cache": 0.0, "v_cache": 0.0}

    def work(self) -> Work:
        return Work(flops=0, bytes=2 * F32.bytes * self.kv_heads * (self.head_dim + self.value_width))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, kv_heads=3, head_dim=64, max_len=100)
        yield cls(**fixed, kv_heads=8, head_dim=128, max_len=17)
        yield cls(**fixed, kv_heads=1, head_dim=96, max_len=1)
        yield cls(**fixed, kv_heads=2, head_dim=40, max_len=100, ring=64)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        position = rng.integers(self.max_len, size=1, dtype=np.uint32)
        shapes = {name: one.shape for name, one in self.signature().items() if isinstance(one, Array) and one.dtype == F32}
        return {
            **{name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()},
            "position": position if self.indirect else position[0],
        }
