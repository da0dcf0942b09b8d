"""Attention of one new token over the cache in one launch, one block a head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.attention.attention_type import AttentionType, positions
from ptxgen.kernels.attention.tiles import Softmax, Tiles
from ptxgen.kernels.registry import register
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32

WARPS = 8
WARP_COUNTS = (1, 2, 4, 8)  # sixteen would leave a thread too few registers


@register(indirect=(False, True))
@dataclass(frozen=True)
class IncrementalAttention(AttentionType):
    """out[h] = softmax(q[h] K^T / sqrt(head_dim)) V over the first `length` positions, K and V of key/value head h // group.

    out, q: f32[heads, head_dim]; k_cache, v_cache: f32[kv_heads, max_len, head_dim]; group = heads / kv_heads. length: u32
    scalar 1..max_len, or with `indirect` a buffer u32[1] that holds it; any other length writes nothing. Nothing past `length`
    is read. head_dim is a multiple of 32 up to 256, max_len at most 131072.
    """

    @property
    def name(self) -> str:
        return f"incremental_attention{'_indirect' if self.indirect else ''}"

    @property
    def warps(self) -> int:
        """Warps that share a head."""
        return WARPS

    def signature(self) -> Signature:
        return {"out": write(F32, self.heads, self.head_dim), **super().signature()}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.heads, block=self.warps * WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        q, keys, values = self.places(k, self.tiles.first(k))
        query = self.tiles.row(k, q)
        allowed, length = self.length(k)
        self.write(k, self.attended(k, query, keys, values, length), allowed)

    @property
    def tiles(self) -> Tiles:
        """How the warps go over the positions."""
        return Tiles(self.head_dim, self.warps)

    def attended(
        self, k: KernelBuilder, query: list[Value], keys: GlobalArray, values: GlobalArray, length: Value
    ) -> Softmax:  # fmt: skip
        """The softmax of the block's head (%ctaid.x)."""
        return self.tiles.merge(k, self.tiles.softmax(k, query, keys, values, 0, length, self.scale))

    def write(self, k: KernelBuilder, whole: Softmax, allowed: Value) -> None:
        """Write what the block's head attends to, where `allowed` holds. All threads must come here."""
        for d, value in self.tiles.added(k, whole.weighted, allowed):
            k.store(k.arg.out[k.ctaid.x, d], value / whole.total)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        length = self.given_length(arguments)
        if not length:
            return {"out": arguments["out"]}
        scores, values = self.exact(arguments, length)
        return {"out": np.einsum("hl,hld->hd", _softmax(scores), values)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """Rounding bound, in units of 2^-24.

        The weight of a position is a product of exponentials, one for itself, one for each tile after it and one for the merge:
        2 units each and one for the product, and the roundings of their arguments, which add up to the distance of the score
        from the largest. (That largest score may be off: it cancels.) The weighted sum adds a unit for each position of a warp
        and for each warp, the sum of the weights one for each tile, the trees and the division. A tenth more covers the second
        order.
        """
        length = self.given_length(arguments)
        return {"out": self.bound(arguments, length) if length else 0.0}

    def bound(self, arguments: Mapping[str, Any], length: int) -> NDArray[np.float64]:
        """The tolerance of `out` where the length is in range."""
        scores, values = self.exact(arguments, length)
        magnitudes = np.abs(values)
        weights, tiles = _softmax(scores), -(-length // (self.warps * WARP_SIZE))
        units = self.score_units(arguments, length) + 3 * (tiles + 2) + scores.max(axis=1, keepdims=True) - scores
        above = np.einsum("hl,hld->hd", weights * (units + WARP_SIZE * tiles + self.warps), magnitudes)
        below = np.sum(weights * (units + tiles + 10), axis=1, keepdims=True) * np.abs(np.einsum("hl,hld->hd", weights, values))
        bound: NDArray[np.float64] = 1.1 * UNIT * (above + below) + 2.0**-140
        return bound

    def work(self, length: int | None = None) -> Work:
        length = positions(self, self.max_len, length)
        rows = length * self.head_dim
        flops = self.heads * (4 * rows + 4 * length)
        return Work(flops=flops, bytes=F32.bytes * (2 * self.kv_heads * rows + 2 * self.heads * self.head_dim))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=9, kv_heads=3, head_dim=64, max_len=100)
        yield cls(**fixed, heads=8, kv_heads=2, head_dim=128, max_len=33)
        yield cls(**fixed, heads=4, kv_heads=1, head_dim=256, max_len=40)
        yield cls(**fixed, heads=2, kv_heads=2, head_dim=96, max_len=300)
        yield cls(**fixed, heads=3, kv_heads=1, head_dim=32, max_len=1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"out": np.zeros((self.heads, self.head_dim), np.float32), **super().inputs(rng)}


@register(indirect=(False, True))
@dataclass(frozen=True)
class MultiWarpAttention(IncrementalAttention):
    """incremental_attention with `num_warps` warps a head (1, 2, 4 or 8): few for short sequences, many for long ones.

    The arguments are the same; with 8 warps so are the bits.
    """

    num_warps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_warps not in WARP_COUNTS:
            raise ArgumentError(f"{self.name}: num_warps must be one of {WARP_COUNTS}, got {self.num_warps!r}")

    @property
    def name(self) -> str:
        return f"multi_warp_attention{'_indirect' if self.indirect else ''}"

    @property
    def warps(self) -> int:
        return self.num_warps

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=9, kv_heads=3, head_dim=64, max_len=200, num_warps=4)
        yield cls(**fixed, heads=4, kv_heads=1, head_dim=256, max_len=40, num_warps=1)
        yield cls(**fixed, heads=4, kv_heads=2, head_dim=128, max_len=67, num_warps=2)
        yield cls(**fixed, heads=2, kv_heads=2, head_dim=256, max_len=331, num_warps=8)


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    normalised: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normalised
