"""Puts the parts of a row's softmax together that paged_attention leaves, one block a head and row; with or without the digits
of the result, for an output projection on int8 digits. For one on f16 halves: paged_attention_reduce_halves.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.attention_type import LONGEST, positions
from ptxgen.kernels.attention.paged_attention import LEAST, SPLITS, Split, partials, require_split
from ptxgen.kernels.attention.paged_cache import TILE, length_of
from ptxgen.kernels.attention.split_attention_reduce import WARPS, parts_bound, put_together, softmax_of_parts
from ptxgen.kernels.attention.tiles import Tiles
from ptxgen.kernels.quantize import activation_digits
from ptxgen.kernels.quantize.digit_bounds import digit_bounds
from ptxgen.kernels.quantize.quantize import Quantize, write_digits
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32


@register
@dataclass(frozen=True)
class PagedAttentionReduce(KernelType):
    """out[r, h] = sum over parts p of e^(peaks[r, h, p] - largest) weighted[r, h, p], over the same sum of totals[r, h, p].

    out: f32[rows, heads, head_dim]; peaks, totals: f32[rows, heads, splits], weighted: f32[rows, heads, splits, head_dim], as
    paged_attention of the same max_len, splits and least leaves them; position: u32[rows], from which it follows how many parts
    there are: the others are not read. A row whose position is max_len or more, or of which a part has a total of 0, is idle:
    its out is zeros.
    """

    family: ClassVar[str] = "attention"
    name = "paged_attention_reduce"
    rows: int
    heads: int
    head_dim: int
    max_len: int
    splits: int = SPLITS
    least: int = LEAST

    def __post_init__(self) -> None:
        require(self, "rows", high=MOST_ROWS)
        require(self, "heads")
        require(self, "head_dim", low=WARP_SIZE, high=256, multiple=WARP_SIZE)
        require(self, "max_len", low=TILE, high=LONGEST, multiple=TILE)
        require_split(self, self.split)

    @property
    def split(self) -> Split:
        """How the positions of a row are dealt out."""
        return Split(self.splits, self.least)

    def signature(self) -> Signature:
        return {
            "out": write(F32, self.rows, self.heads, self.head_dim),
            **partials(self.rows, self.heads, self.splits, self.head_dim, "in"),
            "position": read(U32, self.rows, align=4),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(self.heads, self.rows), block=WARPS * WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        for d, value in self.results(k, k.ctaid.y, k.ctaid.x):
            k.store(k.arg.out[k.ctaid.y, k.ctaid.x, d], value)

    def results(self, k: KernelBuilder, row: Value, head: Value) -> Iterator[tuple[Value, Value]]:
        """For each d < head_dim, d and the value of out, in the thread that has it to write. All threads must come here."""
        tiles = Tiles(self.head_dim, WARPS)
        length = length_of(k, k.load(k.arg.position[row]), self.max_len)
        size = k.max(self.split.device_size(length), 1)
        count = (length + size - 1) // size
        peaks, totals = k.arg.peaks.at(row, head, 0), k.arg.totals.at(row, head, 0)
        total, weighted = put_together(k, tiles, peaks, totals, lambda first: k.arg.weighted.at(row, head, 0, first), count)
        missing = k.u32(0)
        for number in k.strided(k.tid.x, count, step=WARPS * WARP_SIZE):
            missing @= k.select(k.load(totals[number]) == 0.0, 1, missing)
        usable = (k.block_max(missing) == 0) & (count > 0)
        for d, value in tiles.added(k, weighted):
            yield d, k.select(usable, value / total, 0.0)

    def _parts(self, arguments: Mapping[str, Any], row: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Peaks, totals and sums of a row's parts, in float64; of no part if the row is idle."""
        position = int(arguments["position"][row])
        count = len(self.split.slices(position + 1 if position < self.max_len else 0))
        peaks, totals, sums = (arguments[name][row, :, :count].astype(np.float64) for name in ("peaks", "totals", "weighted"))
        if (totals == 0.0).any():
            return peaks[:, :0], totals[:, :0], sums[:, :0]
        return peaks, totals, sums

    def _each(self, arguments: Mapping[str, Any], of_parts: Any) -> NDArray[np.float64]:
        """[rows, heads, head_dim] of what a function of peaks, totals and sums says; zeros of idle rows."""
        result = np.zeros((self.rows, self.heads, self.head_dim))
        for row in range(self.rows):
            parts = self._parts(arguments, row)
            if parts[0].size:
                result[row] = of_parts(*parts)
        return result

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"out": self._each(arguments, softmax_of_parts)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """See `parts_bound`."""
        return {"out": self._each(arguments, parts_bound)}

    def work(self, length: int | None = None) -> Work:
        """As PagedAttention.work."""
        parts = len(self.split.slices(positions(self, self.max_len, length)))
        values = self.rows * self.heads * parts * (self.head_dim + 2)
        return Work(
            flops=2 * values, bytes=F32.bytes * (values + self.rows * self.heads * self.head_dim) + U32.bytes * self.rows
        )

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, rows=4, heads=4, head_dim=96, max_len=8192)
        yield cls(**fixed, rows=1, heads=1, head_dim=32, max_len=32, splits=1, least=32)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """What rows of random lengths leave, with NaN where paged_attention writes nothing; of two rows or more the first has a
        part without a page, of three or more the last is idle."""
        position = rng.integers(self.max_len, size=self.rows).astype(np.uint32)
        peaks = rng.normal(0.0, 3.0, (self.rows, self.heads, self.splits)).astype(np.float32)
        totals = rng.uniform(1.0, self.least, peaks.shape).astype(np.float32)
        sums = (totals[..., None] * rng.normal(size=(*peaks.shape, self.head_dim))).astype(np.float32)
        for row in range(self.rows):
            count = len(self.split.slices(int(position[row]) + 1))
            peaks[row, :, count:], totals[row, :, count:], sums[row, :, count:] = np.nan, np.nan, np.nan
        if self.rows > 1:
            peaks[0, :, 0], totals[0, :, 0], sums[0, :, 0] = -np.inf, 0.0, np.nan
        if self.rows > 2:
            position[-1] = self.max_len
        out = np.zeros((self.rows, self.heads, self.head_dim), np.float32)
        return {"out": out, "peaks": peaks, "totals": totals, "weighted": sums, "position": position}


@register
@dataclass(frozen=True)
class PagedAttentionReduceDigits(PagedAttentionReduce):
    """paged_attention_reduce and the int8 digits of its out in one launch, bit for bit.

    out and what is read as there. With size = heads * head_dim, digits: s8[rows, digits, size], scales: f32[rows, size / 32],
    sums: s32[rows, size / 32]: what q8_quantize (digits=1), q16_quantize (2) or q24_quantize (3) make of out as rows.
    """

    name = "paged_attention_reduce_digits"
    digits: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "digits", high=max(activation_digits.LARGEST))

    @property
    def size(self) -> int:
        """Values of a row of `out`."""
        return self.heads * self.head_dim

    def signature(self) -> Signature:
        out, *inputs = super().signature().items()
        return dict([out, *activation_digits.arrays(self.rows, self.digits, self.size, "out").items(), *inputs])

    def emit(self, k: KernelBuilder) -> None:
        value = k.f32(0.0)
        for d, result in self.results(k, k.ctaid.y, k.ctaid.x):  # once: a block has a thread for each d
            value @= result
            k.store(k.arg.out[k.ctaid.y, k.ctaid.x, d], value)
        write_digits(k, self.digits, k.ctaid.y, k.ctaid.x * self.head_dim + k.tid.x, [value], k.tid.x < self.head_dim)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        out = super().reference(**arguments)["out"]
        return {"out": out, **activation_digits.quantize(out.reshape(self.rows, self.size), self.digits)._asdict()}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """That of paged_attention_reduce, and what it lets the digits be."""
        out, bound = super().reference(**arguments)["out"], np.asarray(super().tolerance(**arguments)["out"])
        flat = (self.rows, self.size)
        return {"out": bound, **digit_bounds(out.reshape(flat), bound.reshape(flat), self.digits)}

    def work(self, length: int | None = None) -> Work:
        reduce, quantize = super().work(length), Quantize(self.digits, self.size, self.rows).work()
        read_again = F32.bytes * self.rows * self.size
        return Work(flops=reduce.flops + quantize.flops, bytes=reduce.bytes + quantize.bytes - read_again)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, rows=4, heads=3, head_dim=128, max_len=8192, digits=2)
        yield cls(**fixed, rows=1, heads=1, head_dim=32, max_len=32, splits=1, least=32, digits=1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().inputs(rng), **activation_digits.unwritten(self.rows, self.digits, self.size)}
