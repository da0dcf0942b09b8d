"""Attention of one new token over the cache: online softmax over tiles of 32 positions, one block a head.

A warp takes every WARPS-th tile. The lanes lie along head_dim for the reads of K and V, which are then contiguous; in between a
lane stands for a position: `transposed_sum` turns the partial sums that the lanes hold into a score a lane, with about one
shuffle for each position, and no exponential is computed twice. The warps' results are merged at the end, in the order of the
warps, so that the bits depend on nothing but the inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen import mathlib
from ptxgen.builder import KernelBuilder
from ptxgen.cooperation import WARP
from ptxgen.errors import ArgumentError
from ptxgen.kernels.kernel_type import HIDDEN, KernelType, Launch, Signature, Work, read, write
from ptxgen.kernels.position import position_argument, position_value
from ptxgen.kernels.registry import register_variants
from ptxgen.kernels.shape import require
from ptxgen.types import F32
from ptxgen.value import Value

WARPS = 8
UNIT = 2.0**-24
LONGEST = 131072  # positions


@register_variants("indirect", {"incremental_attention": False, "incremental_attention_indirect": True})
@dataclass(frozen=True)
class IncrementalAttention(KernelType):
    """out[h] = softmax(q[h] K^T / sqrt(head_dim)) V over the first `length` positions, K and V of key/value head h // group.

    out, q: f32[heads, head_dim]; k_cache, v_cache: f32[kv_heads, max_len, head_dim]; group = heads / kv_heads. length: u32
    scalar 1..max_len, or with `indirect` a buffer u32[1] that holds it; any other length writes nothing. Nothing past `length`
    is read. head_dim is a multiple of 32 up to 256, max_len at most 131072.
    """

    family: ClassVar[str] = "attention"
    indirect: bool = field(metadata=HIDDEN)
    heads: int
    kv_heads: int
    head_dim: int
    max_len: int

    def __post_init__(self) -> None:
        require(self, "heads", "kv_heads")
        require(self, "head_dim", high=256, multiple=WARP)
        require(self, "max_len", high=LONGEST)
        if self.heads % self.kv_heads:
            raise ArgumentError(f"{self.name}: heads must be a multiple of kv_heads ({self.kv_heads}), got {self.heads}")

    @property
    def name(self) -> str:
        return f"incremental_attention{'_indirect' if self.indirect else ''}"

    @property
    def scale(self) -> float:
        """1 / sqrt(head_dim) as the f32 that the text holds."""
        return float(np.float32(self.head_dim**-0.5))

    @property
    def width(self) -> int:
        """Values of one load of a lane; a lane makes head_dim / 32 / width of them for a row."""
        return gcd(self.head_dim // WARP, 4)

    @property
    def rows(self) -> int:
        """Rows of a tile that are read together: a power of two, so that a lane has at most 64 values in flight."""
        return 16 if self.head_dim <= 128 else 8

    @property
    def rounds(self) -> int:
        """How often a tile takes that many rows. Lane l stands for the row l // rounds of the round l % rounds."""
        return WARP // self.rows

    def signature(self) -> Signature:
        return {
            "out": write(F32, self.heads, self.head_dim),
            "q": read(F32, self.heads, self.head_dim),
            "k_cache": read(F32, self.kv_heads, self.max_len, self.head_dim),
            "v_cache": read(F32, self.kv_heads, self.max_len, self.head_dim),
            "length": position_argument(self.indirect, 1, self.max_len),
        }

    def launch(self) -> Launch:
        return Launch(grid=self.heads, block=WARPS * WARP)

    def emit(self, k: KernelBuilder) -> None:
        head, kv_head = k.ctaid.x, k.ctaid.x // (self.heads // self.kv_heads)
        first = k.lane * self.width  # the lane's place in the first load of a row
        keys, values = k.arg.k_cache.at(kv_head, 0, first), k.arg.v_cache.at(kv_head, 0, first)
        query = self._row(k, k.arg.q.at(head, first))
        given = position_value(k, "length", self.indirect)
        allowed = (given > 0) & (given <= self.max_len)
        length = k.select(allowed, given, 0)
        last = (length - 1) * self.head_dim
        round_of_lane = k.lane % self.rounds
        place = round_of_lane * self.rows + k.lane // self.rounds

        # The running softmax of the warp: largest score, sum of exponentials (a share in each lane), weighted sum of V.
        largest, total = k.f32(float("-inf")), k.f32(0.0)
        weighted = [k.f32(0.0) for _ in query]
        for start in k.strided(k.warp * WARP, length, step=WARPS * WARP):
            score = k.f32(float("-inf"))
            for turn in k.strided(0, self.rounds):
                dots = [self._dot(k, query, row) for row in self._rows(k, keys, start, turn, last)]
                score @= k.select(round_of_lane == turn, transposed_sum(k, dots) * self.scale, score)
            score = k.select(start + place < length, score, float("-inf"))
            now_largest = k.max(largest, k.warp_max(score))
            shrink = mathlib.exp(k, largest - now_largest)
            weight = mathlib.exp(k, score - now_largest)
            largest @= now_largest
            total @= k.fma(total, shrink, weight)
            for each in weighted:
                each @= each * shrink
            for turn in k.strided(0, self.rounds):
                shares = k.shuffle(weight, k.lane - round_of_lane + turn)
                for i, row in enumerate(self._rows(k, values, start, turn, last)):
                    share = k.shuffle(shares, i * self.rounds)
                    for v, each in zip(row, weighted, strict=True):
                        each @= k.fma(share, v, each)
        self._merge(k, allowed, largest, total, weighted)

    def _rows(self, k: KernelBuilder, cache: Any, start: Value, turn: Value, last: Value) -> list[list[Value]]:
        """The lane's values of the rows of a round. A position past the end reads the last one again: it must be memory that
        somebody wrote, and its weight will be zero."""
        begin = (start + turn * self.rows) * self.head_dim
        return [self._row(k, cache.at(k.min(begin + i * self.head_dim, last))) for i in range(self.rows)]

    def _row(self, k: KernelBuilder, array: Any) -> list[Value]:
        """The lane's head_dim / 32 values of the row of head_dim at `array`."""
        values: list[Value] = []
        for place in range(0, self.head_dim, WARP * self.width):
            values += k.load_vector(array[place], self.width) if self.width > 1 else [k.load(array[place])]
        return values

    def _dot(self, k: KernelBuilder, query: list[Value], row: list[Value]) -> Value:
        """The lane's part of the product of the query with a row."""
        dot = query[0] * row[0]
        for q, v in zip(query[1:], row[1:], strict=True):
            dot = k.fma(q, v, dot)
        return dot

    def _merge(self, k: KernelBuilder, allowed: Value, largest: Value, total: Value, weighted: list[Value]) -> None:
        """Put the warps' softmaxes together and write the head."""
        peaks, totals = k.shared(F32, WARPS), k.shared(F32, WARPS)
        sums = k.shared(F32, WARPS, self.head_dim)
        total = k.warp_sum(total)
        with k.when(k.lane == 0):
            k.store(peaks[k.warp], largest)
            k.store(totals[k.warp], total)
        k.barrier()
        other = k.lane % WARPS
        peak = k.load(peaks[other])
        highest = k.warp_max(peak, width=WARPS)
        shrink = mathlib.exp(k, peak - highest)
        whole = k.warp_sum(k.load(totals[other]) * shrink, width=WARPS)
        own = k.shuffle(shrink, k.warp)
        for i, each in enumerate(weighted):
            load, place = divmod(i, self.width)
            k.store(sums[k.warp, k.lane * self.width + (load * WARP * self.width + place)], each * own)
        k.barrier()
        with k.when((k.tid.x < self.head_dim) & allowed):
            merged = k.load(sums[0, k.tid.x])
            for warp in range(1, WARPS):
                merged = merged + k.load(sums[warp, k.tid.x])
            k.store(k.arg.out[k.ctaid.x, k.tid.x], merged / whole)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        length = self._length(arguments)
        if not length:
            return {"out": arguments["out"]}
        scores, values = self._exact(arguments, length)
        return {"out": np.einsum("hl,hld->hd", _softmax(scores), values)}

    def _length(self, arguments: Mapping[str, Any]) -> int:
        """The length, 0 if it is out of range."""
        length = int(np.asarray(arguments["length"]).reshape(()))
        return length if length <= self.max_len else 0

    def _exact(
        self, arguments: Mapping[str, Any], length: int, *, magnitude: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
        """Scores [heads, length] and values [heads, length, head_dim], in float64; with `magnitude` of the absolute numbers."""
        group = self.heads // self.kv_heads
        q, keys, values = (
            arguments["q"].astype(np.float64),
            arguments["k_cache"][:, :length].astype(np.float64).repeat(group, axis=0),
            arguments["v_cache"][:, :length].astype(np.float64).repeat(group, axis=0),
        )
        if magnitude:
            q, keys, values = np.abs(q), np.abs(keys), np.abs(values)
        scores: NDArray[np.float64] = np.einsum("hd,hld->hl", q, keys) / np.sqrt(self.head_dim)
        return scores, values

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """Rounding bound, in units of 2^-24.

        A score is off by head_dim / 32 fused additions, 5 of the tree and two of the scale, each at most the score of the
        absolute numbers. The weight of a position is a product of exponentials, one for itself, one for each tile after it and
        one for the merge: 2 units each and one for the product, and the roundings of their arguments, which add up to the
        distance of the score from the largest. (That largest score may be off: it cancels.) The weighted sum adds a unit for
        each position of a warp and for each warp, the sum of the weights one for each tile, the trees and the division. A
        tenth more covers the second order.
        """
        length = self._length(arguments)
        if not length:
            return {"out": 0.0}
        scores, values = self._exact(arguments, length)
        sizes, magnitudes = self._exact(arguments, length, magnitude=True)
        weights, tiles = _softmax(scores), -(-length // (WARPS * WARP))
        units = (self.head_dim // WARP + 7) * sizes + 3 * (tiles + 2) + scores.max(axis=1, keepdims=True) - scores
        above = np.einsum("hl,hld->hd", weights * (units + WARP * tiles + WARPS), magnitudes)
        below = np.sum(weights * (units + tiles + 10), axis=1, keepdims=True) * np.abs(np.einsum("hl,hld->hd", weights, values))
        return {"out": 1.1 * UNIT * (above + below) + 2.0**-140}

    def work(self) -> Work:
        """At full length."""
        rows = self.max_len * self.head_dim
        flops = self.heads * (4 * rows + 4 * self.max_len)
        return Work(flops=flops, bytes=F32.bytes * (2 * self.kv_heads * rows + 2 * self.heads * self.head_dim))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=9, kv_heads=3, head_dim=64, max_len=100)
        yield cls(**fixed, heads=8, kv_heads=2, head_dim=128, max_len=33)
        yield cls(**fixed, heads=4, kv_heads=1, head_dim=256, max_len=40)
        yield cls(**fixed, heads=2, kv_heads=2, head_dim=96, max_len=300)
        yield cls(**fixed, heads=3, kv_heads=1, head_dim=32, max_len=1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """A cache whose positions past the length hold NaN, which no result may show."""
        length = rng.integers(1, self.max_len + 1, size=1, dtype=np.uint32)
        shape = (self.kv_heads, self.max_len, self.head_dim)
        caches = {name: rng.normal(size=shape).astype(np.float32) for name in ("k_cache", "v_cache")}
        for cache in caches.values():
            cache[:, int(length[0]) :] = np.nan
        return {
            "out": np.zeros((self.heads, self.head_dim), np.float32),
            "q": rng.normal(0.0, 2.0, (self.heads, self.head_dim)).astype(np.float32),
            **caches,
            "length": length if self.indirect else length[0],
        }


def transposed_sum(k: KernelBuilder, values: list[Value]) -> Value:
    """The sum of values[i] over the warp, in the lanes from i * 32 / len(values) on to the next i; the number of values is a
    power of two up to 32. For 16 of them it takes 16 shuffles where as many sums would take 80.

    At each step a lane keeps the half of the values whose number has the lane's bit and sends the other half to its partner.
    Each sum is the tree that `warp_sum` makes, with the same bits."""
    offset = WARP // 2
    while offset:
        half = len(values) // 2
        if half:
            upper = (k.lane & offset) != 0
            values = [
                k.select(upper, b, a) + k.shuffle_xor(k.select(upper, a, b), offset)
                for a, b in zip(values[:half], values[half:], strict=True)
            ]
        else:
            values = [values[0] + k.shuffle_xor(values[0], offset)]
        offset //= 2
    return values[0]


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    normalised: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normalised
