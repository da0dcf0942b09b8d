"""Attention of one new token with the positions dealt out to many blocks, for sequences so long that a block a head would leave
most of the GPU idle: each block leaves the softmax of a chunk of positions. Putting them together is split_attention_reduce."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Direction, Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.attention.attention_type import AttentionType, positions
from ptxgen.kernels.attention.split import HANDED, softmax_part
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import MAX_GRID, WARP_SIZE
from ptxgen.types import F32

CHUNK = 128  # positions
CHUNKS_ALLOWED = (32, 64, 128, 256, 512, 1024)
MOST_WARPS = 8


def partials(heads: int, head_dim: int, max_len: int, chunk: int, direction: Direction) -> Signature:
    """What the two kernels hand over: of each head and chunk of positions the largest score, the sum of the exponentials of
    the scores less the largest, and the sum of V weighted by these. In a chunk without positions the first is -infinity, the
    second 0 and the third is not written."""
    chunks = -(-max_len // chunk)
    return {
        "peaks": Array(F32, (heads, chunks), direction, partial=True),
        "totals": Array(F32, (heads, chunks), direction),
        "sums": Array(F32, (heads, chunks, head_dim), direction, partial=True),
    }


def require_chunk(kernel: KernelType, chunk: int) -> None:
    """Raise ArgumentError unless the chunk is a size that the kernels know."""
    if chunk not in CHUNKS_ALLOWED:
        raise ArgumentError(f"{kernel.name}: chunk must be one of {CHUNKS_ALLOWED}, got {chunk!r}")


@register(indirect=(False, True))
@dataclass(frozen=True)
class SplitAttention(AttentionType):
    """The softmax of each chunk of positions, for split_attention_reduce: a block for each head and chunk.

    peaks, totals: f32[heads, chunks], sums: f32[heads, chunks, value_dim], chunks = max_len / chunk rounded up; what they hold
    is told in `partials`. q, k_cache, v_cache and length as in incremental_attention; a length out of range leaves every chunk
    without positions. The bits of a chunk depend on nothing but its own positions.
    """

    chunk: int = CHUNK

    def __post_init__(self) -> None:
        super().__post_init__()
        require_chunk(self, self.chunk)
        require(self, "max_len", high=self.chunk * MAX_GRID[1])

    @property
    def name(self) -> str:
        return f"split_attention{'_indirect' if self.indirect else ''}"

    @property
    def chunks(self) -> int:
        """Chunks of the longest sequence."""
        return -(-self.max_len // self.chunk)

    @property
    def warps(self) -> int:
        """Warps of a block: one for each tile of 32 positions, up to 8."""
        return min(self.chunk // WARP_SIZE, MOST_WARPS)

    def signature(self) -> Signature:
        return {**partials(self.heads, self.value_width, self.max_len, self.chunk, "out"), **super().signature()}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(self.heads, self.chunks), block=self.warps * WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        tiles = self.tiles(self.warps)
        head, number = k.ctaid.x, k.ctaid.y
        _, length = self.length(k)
        begin = number * self.chunk
        peak, total = k.arg.peaks[head, number], k.arg.totals[head, number]
        with k.when(begin < length):
            q, keys, values = self.places(k, *tiles.firsts(k))
            stop = k.min(begin + self.chunk, length)
            part = tiles.softmax(k, tiles.row(k, q), keys, values, begin, stop, self.scores_of(k, head, 1, length))
            whole = tiles.merge(k, part)
            for d, value in tiles.added(k, whole.weighted):
                k.store(k.arg.sums[head, number, d], value)
            with k.when(k.tid.x == 0):
                k.store(peak, whole.largest)
                k.store(total, whole.total)
        with k.otherwise(), k.when(k.tid.x == 0):
            k.store(peak, float("-inf"))
            k.store(total, 0.0)

    def _slices(self, length: int) -> list[slice]:
        """The positions of each chunk that has any."""
        return [slice(at, min(at + self.chunk, length)) for at in range(0, length, self.chunk)]

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        length = self.given_length(arguments)
        scores, values = self.exact(arguments, length)
        peaks, totals = np.full((self.heads, self.chunks), -np.inf), np.zeros((self.heads, self.chunks))
        sums = arguments["sums"].astype(np.float64)
        for number, at in enumerate(self._slices(length)):
            part = softmax_part(scores[:, at], values[:, at])
            peaks[:, number], totals[:, number], sums[:, number] = (part[name] for name in HANDED)
        return {"peaks": peaks, "totals": totals, "sums": sums}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """Rounding bound, in units of 2^-24: as for incremental_attention, of a chunk. Here the error of the largest score does
        not cancel: it is part of every weight."""
        length = self.given_length(arguments)
        scores, values = self.exact(arguments, length)
        errors = self.score_units(arguments, length)
        bounds = {name: np.zeros(array.shape) for name, array in self.reference(**arguments).items()}
        tiles = self.chunk // WARP_SIZE // self.warps
        for number, at in enumerate(self._slices(length)):
            peak, worst = scores[:, at].max(axis=1, keepdims=True), errors[:, at].max(axis=1, keepdims=True)
            weights = np.exp(scores[:, at] - peak)
            units = errors[:, at] + worst + 3 * (tiles + 2) + peak - scores[:, at]
            bounds["peaks"][:, number] = worst[:, 0]
            bounds["totals"][:, number] = np.sum(weights * (units + tiles + 10), axis=1)
            counted = weights * (units + WARP_SIZE * tiles + self.warps)
            bounds["sums"][:, number] = np.einsum("hl,hld->hd", counted, np.abs(values[:, at]))
        return {name: 1.1 * UNIT * bound + 2.0**-140 for name, bound in bounds.items()}

    def work(self, length: int | None = None) -> Work:
        length = positions(self, self.max_len, length)
        rows = length * (self.head_dim + self.value_width)
        written = self.heads * (len(self._slices(length)) * self.value_width + 2 * self.chunks)
        flops = self.heads * (2 * rows + 4 * length)
        return Work(flops=flops, bytes=F32.bytes * (self.kv_heads * rows + self.heads * self.head_dim + written))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=9, kv_heads=3, head_dim=64, max_len=300)
        yield cls(**fixed, heads=4, kv_heads=1, head_dim=128, max_len=100, chunk=32)
        yield cls(**fixed, heads=2, kv_heads=1, head_dim=256, max_len=97, chunk=64)
        yield cls(**fixed, heads=2, kv_heads=2, head_dim=96, max_len=1100, chunk=512)
        yield cls(**fixed, heads=3, kv_heads=1, head_dim=32, max_len=1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        out = {name: np.full(array.shape, np.nan, np.float32) for name, array in self._arrays()}
        return {**out, **super().inputs(rng)}

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        for name, argument in self.signature().items():
            if isinstance(argument, Array) and argument.direction == "out":
                yield name, argument
