"""Puts the softmaxes of the chunks together that split_attention leaves: one block a head. It needs no length: chunks without
positions say so themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.dsl.arguments import Signature, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.attention.attention_type import LONGEST, positions
from ptxgen.kernels.attention.split_attention import CHUNK, partials, require_chunk
from ptxgen.kernels.attention.tiles import Tiles
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require, require_head_dim
from ptxgen.target import FULL_WARP, WARP_SIZE
from ptxgen.types import F32

WARPS = 8
TOGETHER = 8  # rows that are added at a time
MOST_VALUES = 64  # of these that a lane has in flight


@register
@dataclass(frozen=True)
class SplitAttentionReduce(KernelType):
    """out[h] = sum over chunks c of e^(peaks[h, c] - largest) sums[h, c], divided by the same sum of totals[h, c].

    out: f32[heads, head_dim]; peaks, totals: f32[heads, chunks]; sums: f32[heads, chunks, head_dim], as split_attention of the
    same max_len and chunk leaves them. The chunks with positions are the first ones; the sums of the others are not read. If no
    chunk has any, nothing is written. The bits do not depend on max_len.
    """

    family: ClassVar[str] = "attention"
    name = "split_attention_reduce"
    heads: int
    head_dim: int
    max_len: int
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        require(self, "heads")
        require_head_dim(self, self.head_dim)
        require(self, "max_len", high=LONGEST)
        require_chunk(self, self.chunk)

    @property
    def chunks(self) -> int:
        """Chunks of the longest sequence."""
        return -(-self.max_len // self.chunk)

    def signature(self) -> Signature:
        read = partials(self.heads, self.head_dim, self.max_len, self.chunk, "in")
        return {"out": write(F32, self.heads, self.head_dim), **read}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.heads, block=WARPS * WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        tiles = Tiles(self.head_dim, WARPS)
        peaks, totals = k.arg.peaks.at(k.ctaid.x, 0), k.arg.totals.at(k.ctaid.x, 0)
        total, weighted = put_together(k, tiles, peaks, totals, lambda first: k.arg.sums.at(k.ctaid.x, 0, first), self.chunks)
        for d, value in tiles.added(k, weighted, total != 0.0):
            k.store(k.arg.out[k.ctaid.x, d], value / total)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        peaks, totals, sums, live = self._exact(arguments)
        return {"out": softmax_of_parts(peaks, totals, sums) if live else arguments["out"]}

    def _exact(self, arguments: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], int]:
        """Peaks, totals and sums of the chunks with positions, in float64, and how many these are."""
        live = int(np.count_nonzero(arguments["totals"][0]))
        peaks, totals, sums = (arguments[name][:, :live].astype(np.float64) for name in ("peaks", "totals", "sums"))
        return peaks, totals, sums, live

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """See `parts_bound`."""
        peaks, totals, sums, live = self._exact(arguments)
        return {"out": parts_bound(peaks, totals, sums) if live else 0.0}

    def work(self, length: int | None = None) -> Work:
        """As AttentionType.work: the chunks past the length are read as far as to see that they have no positions."""
        live = -(-positions(self, self.max_len, length) // self.chunk)
        values = self.heads * (live * self.head_dim + 2 * self.chunks)
        return Work(flops=2 * values, bytes=F32.bytes * (values + self.heads * self.head_dim))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(heads=9, head_dim=64, max_len=1000)
        yield cls(heads=2, head_dim=128, max_len=10000, chunk=32)
        yield cls(heads=2, head_dim=256, max_len=900, chunk=64)
        yield cls(heads=1, head_dim=96, max_len=1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """What a sequence of random length leaves, with NaN where split_attention writes nothing."""
        live = int(rng.integers(1, self.chunks + 1))
        peaks = rng.normal(0.0, 3.0, (self.heads, self.chunks)).astype(np.float32)
        totals = rng.uniform(1.0, self.chunk, (self.heads, self.chunks)).astype(np.float32)
        sums = (totals[..., None] * rng.normal(size=(self.heads, self.chunks, self.head_dim))).astype(np.float32)
        peaks[:, live:], totals[:, live:], sums[:, live:] = -np.inf, 0.0, np.nan
        return {"out": np.zeros((self.heads, self.head_dim), np.float32), "peaks": peaks, "totals": totals, "sums": sums}


Sums = Callable[[Value], GlobalArray]
"""Where a value of the sums of a head's first part is."""


def put_together(
    k: KernelBuilder, tiles: Tiles, peaks: GlobalArray, totals: GlobalArray, sums: Sums, count: Value | int
) -> tuple[Value, list[Value]]:
    """The total of the softmax whose parts a block is given, and the warp's share of the weighted sum. The arrays start at a
    head's first part; `count` is how many parts the head has, of which those with positions are the first. The total is 0 if
    none has any. All threads must come here."""
    largest = k.f32(float("-inf"))
    for number in k.strided(k.tid.x, count, step=WARPS * WARP_SIZE):
        largest @= k.max(largest, k.load(peaks[number]))
    largest = k.block_max(largest)

    total = k.f32(0.0)
    weighted = [k.f32(0.0) for _ in range(tiles.values)]
    for start in k.strided(k.warp * WARP_SIZE, count, step=WARPS * WARP_SIZE):
        number = start + k.lane
        place = k.min(number, count - 1)
        share = k.load(totals[place])
        live = (number < count) & (share != 0.0)  # a part with positions has a total of 1 or more, or NaN
        factor = k.select(live, mathlib.exp(k, k.load(peaks[place]) - largest), 0.0)
        total @= k.fma(factor, k.select(live, share, 0.0), total)
        _add_rows(k, tiles, sums, start, k.popc(k.vote(live, FULL_WARP, mode="ballot")), factor, weighted)
    return k.block_sum(total), weighted


def _add_rows(
    k: KernelBuilder, tiles: Tiles, sums: Sums, start: Value, count: Value, factor: Value, weighted: list[Value]
) -> None:
    """Add the sums of `count` parts from `start` on, each times the factor of its lane. A row past the last is the last one
    again: its factor is zero."""
    array = sums(tiles.first(k))
    last = start + count - 1
    for i in k.strided(0, count, step=TOGETHER):
        begin = start + i
        flight = min(TOGETHER, MOST_VALUES // tiles.values)
        for at in range(0, TOGETHER, flight):
            numbers = range(at, at + flight)
            rows = [tiles.row(k, array.at(k.min(begin + j, last) * tiles.head_dim)) for j in numbers]
            for j, row in zip(numbers, rows, strict=True):
                share = k.shuffle(factor, i + j)
                for value, each in zip(row, weighted, strict=True):
                    each @= k.fma(share, value, each)


def softmax_of_parts(peaks: NDArray[Any], totals: NDArray[Any], sums: NDArray[Any]) -> NDArray[np.float64]:
    """f64[heads, head_dim] of parts that all have positions: peaks, totals: f64[heads, parts]; sums: f64[heads, parts,
    head_dim]."""
    factors = np.exp(peaks - peaks.max(axis=1, keepdims=True))
    whole = np.sum(factors * totals, axis=1, keepdims=True)
    out: NDArray[np.float64] = np.einsum("hc,hcd->hd", factors, sums) / whole
    return out


def parts_bound(peaks: NDArray[Any], totals: NDArray[Any], sums: NDArray[Any]) -> NDArray[np.float64]:
    """How far `put_together` and a division may be from that. In units of 2^-24: a factor is off by 3 of its exponential and by
    its argument, which is rounded once; the weighted sum adds one for each part of a warp and for each warp, the total one for
    each tile of parts and 8 for its trees; one for the division. A tenth more covers the second order."""
    distance = peaks.max(axis=1, keepdims=True) - peaks
    factors, tiles = np.exp(-distance), -(-peaks.shape[1] // (WARPS * WARP_SIZE))
    whole = np.sum(factors * totals, axis=1, keepdims=True)
    above = np.einsum("hc,hcd->hd", factors * (3 + distance + WARP_SIZE * tiles + WARPS), np.abs(sums)) / whole
    below = np.sum(factors * totals * (4 + distance + tiles + 8), axis=1, keepdims=True) / whole
    bound: NDArray[np.float64] = 1.1 * UNIT * (above + below * np.abs(softmax_of_parts(peaks, totals, sums))) + 2.0**-140
    return bound
