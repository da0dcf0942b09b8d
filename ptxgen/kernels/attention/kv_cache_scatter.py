"""Writes the key and the value of one token into the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.kernels.attention.ring import require_ring, row_of
from ptxgen.kernels.position import position_argument, position_value
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import F32

THREADS = 256


@register(indirect=(False, True))
@dataclass(frozen=True)
class KvCacheScatter(KernelType):
    """k_cache[h, position] = k[h] and v_cache[h, position] = v[h] for every key/value head h.

    k_cache, v_cache: f32[kv_heads, max_len, head_dim]; k, v: f32[kv_heads, head_dim]; position: u32 scalar below max_len, or
    with `indirect` a buffer u32[1] that holds it; a position of max_len or more writes nothing. ring: the caches have so many
    rows, and [h, position % ring] is written (ring.py).
    """

    family: ClassVar[str] = "attention"
    indirect: bool = field(metadata=HIDDEN)
    kv_heads: int
    head_dim: int
    max_len: int
    ring: int | None = None

    def __post_init__(self) -> None:
        require(self, "kv_heads", "head_dim", "max_len")
        require_ring(self, self.ring)

    @property
    def name(self) -> str:
        return f"kv_cache_scatter{'_indirect' if self.indirect else ''}"

    def signature(self) -> Signature:
        rows = self.ring or self.max_len
        return {
            "k_cache": update(F32, self.kv_heads, rows, self.head_dim, partial=True),
            "v_cache": update(F32, self.kv_heads, rows, self.head_dim, partial=True),
            "k": read(F32, self.kv_heads, self.head_dim),
            "v": read(F32, self.kv_heads, self.head_dim),
            "position": position_argument(self.indirect, 0, self.max_len - 1),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.kv_heads * self.head_dim // THREADS), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        position = position_value(k, "position", self.indirect)
        with k.when((i < self.kv_heads * self.head_dim) & (position < self.max_len)):
            head, place, row = i // self.head_dim, i % self.head_dim, row_of(position, self.ring)
            k.store(k.arg.k_cache[head, row, place], k.load(k.arg.k[head, place]))
            k.store(k.arg.v_cache[head, row, place], k.load(k.arg.v[head, place]))

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
        return Work(flops=0, bytes=4 * F32.bytes * self.kv_heads * self.head_dim)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, kv_heads=3, head_dim=64, max_len=100)
        yield cls(**fixed, kv_heads=8, head_dim=128, max_len=17)
        yield cls(**fixed, kv_heads=1, head_dim=96, max_len=1)
        yield cls(**fixed, kv_heads=2, head_dim=40, max_len=100, ring=64)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        position = rng.integers(self.max_len, size=1, dtype=np.uint32)
        cache, token = (self.kv_heads, self.ring or self.max_len, self.head_dim), (self.kv_heads, self.head_dim)
        return {
            "k_cache": rng.normal(size=cache).astype(np.float32),
            "v_cache": rng.normal(size=cache).astype(np.float32),
            "k": rng.normal(size=token).astype(np.float32),
            "v": rng.normal(size=token).astype(np.float32),
            "position": position if self.indirect else position[0],
        }
