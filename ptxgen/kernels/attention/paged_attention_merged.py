"""Attention of the rows of a step over a paged cache in one launch: the blocks that share a row leave parts as paged_attention
does, and the last of them puts these together as paged_attention_reduce does, with or without digits of the result. For an
output projection on f16 halves: paged_attention_merged_halves.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.attention_type import positions
from ptxgen.kernels.attention.merge import Merge, PartArrays, Staged, alone, merged_bound
from ptxgen.kernels.attention.paged_attention import PagedAttention, softmax_part
from ptxgen.kernels.attention.paged_cache import Place
from ptxgen.kernels.attention.tiles import Softmax
from ptxgen.kernels.quantize import activation_digits
from ptxgen.kernels.quantize.digit_bounds import digit_bounds
from ptxgen.kernels.quantize.quantize import Quantize, write_digits
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import F32, U32

LEAST_SM = 90
"""Before it the assembler writes all that has a shuffle twice (benchmarks/LOG.md), which is more than 64 KB."""

HANDED = ("peaks", "totals", "weighted")

ALONE: dict[str, Any] = {
    "rows": 1, "heads": 1, "kv_heads": 1, "head_dim": 32, "page_len": 32, "pages": 1, "slots": 1, "max_len": 32,
    "kv_type": "f32", "splits": 1, "least": 32, "spread": 1, "resident_threads": 32,
}  # fmt: skip
"""The smallest shape: a row with one part."""


@register
@dataclass(frozen=True)
class PagedAttentionMerged(PagedAttention):
    """out[r, h] = softmax(q[r, h] K^T / sqrt(head_dim)) V over the positions that row r sees: paged_attention and
    paged_attention_reduce in one launch, bit for bit.

    out: f32[rows, heads, head_dim], zeros for a row that is idle. q, the cache, slot and position as in paged_attention; peaks,
    totals, weighted, too, but of a row with one part alone nothing is written there. counters: u32[rows, kv_heads * blocks],
    zeros before the launch and zeros again after it: `blocks` share the heads of a group.
    """

    name = "paged_attention_merged"
    least_sm = LEAST_SM

    def signature(self) -> Signature:
        return {
            "out": write(F32, self.rows, self.heads, self.head_dim),
            **super().signature(),
            "counters": update(U32, self.rows, self.kv_heads * self.blocks, zeros=True),
        }

    @property
    def scratch(self) -> tuple[str, ...]:
        return (*HANDED, "counters")

    @property
    def merge(self) -> Merge:
        """How the last block puts parts together."""
        return Merge(self.head_dim, self.tiles.heads, self.warps)

    def emit(self, k: KernelBuilder) -> None:
        row, kv_head, spread = k.ctaid.y, k.ctaid.x // self.blocks, self.launch().grid[2]
        place = self.own_place(k, row)
        size = k.max(self.split.device_size(place.length), 1)
        count = k.shuffle((place.length + (size - 1)) // size, 0)  # so the assembler knows that warps stay together
        several, is_mine = count > 1, k.variable(1, U32)
        staged = Staged.of(k, self.tiles.heads, self.head_dim)
        begin = k.ctaid.z * size
        end = self.start(k, place, begin, size)
        with k.when(k.ctaid.z < k.max(count, 1)):
            first, heads = self.own_heads(k, kv_head)
            with k.when(count == 0):
                staged.clear(k)
            with k.otherwise():
                for part, usable, found in self.own_parts(k, place, kv_head, begin, end, size, first, heads):
                    self._leave(k, first, heads, part, usable, found, several, staged)
                with k.when(several):
                    last = k.last_block(k.arg.counters[row, k.ctaid.x], k.min(count, spread))
                    is_mine @= k.select(last, is_mine, 0)
                    with k.when(last):
                        peaks, totals = k.arg.peaks.at(row, first, 0), k.arg.totals.at(row, first, 0)
                        parts = PartArrays(peaks, totals, k.arg.weighted.at(row, first, 0, 0), self.splits)
                        self.merge.put_together(k, parts, count, heads, staged)
            k.barrier()
            with k.when(is_mine != 0):
                self.finish(k, row, first, heads, staged)

    def own_place(self, k: KernelBuilder, row: Value) -> Place:
        """Where the block's row stands."""
        return self.place(k, row)

    def _leave(
        self, k: KernelBuilder, first: Value, heads: Value, part: Value, usable: Value, found: list[Softmax], several: Value,
        staged: Staged,
    ) -> None:  # fmt: skip
        """Store what the warps found of a part: for the last block, or as the block's own result where it is the only part."""
        tiles, row = self.tiles, k.ctaid.y
        merged, weighted = tiles.merge(k, found)
        for peak, total, head, mine in merged:
            with k.when((head < heads) & mine):
                total = k.select(usable, total, 0.0)
                k.store(staged.totals[head], total)
                with k.when(several):
                    k.store(k.arg.peaks[row, first + head, part], k.select(usable, peak, float("-inf")))
                    k.store(k.arg.totals[row, first + head, part], total)
        for head, d, value in tiles.added(k, weighted):
            with k.when(several), k.when(usable & (head < heads)):
                k.store(k.arg.weighted[row, first + head, part, d], value)
            with k.otherwise():
                k.store(staged.weighted[head * self.head_dim + d], alone(k, value))

    def finish(self, k: KernelBuilder, row: Value, first: Value, heads: Value, staged: Staged) -> None:
        """Write what the block's heads attend to; all its threads come here."""
        for _ in self.written(k, row, first, heads, staged):
            pass

    def written(
        self, k: KernelBuilder, row: Value, first: Value, heads: Value, staged: Staged
    ) -> Iterator[tuple[Value, tuple[Value, ...], Value]]:  # fmt: skip
        """As Staged.runs, by the place in the row, once they are written to `out`."""
        out = k.arg.out.at(row, first, 0)
        for place, values, live in staged.runs(k, heads):
            with k.when(live):
                k.store(out[place], values)
            yield first * self.head_dim + place, values, live

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        held = dict(super().reference(**arguments))
        for row in self._lone(arguments):
            for name in HANDED:
                held[name][row] = arguments[name][row]
        out = np.zeros((self.rows, self.heads, self.head_dim))
        for row in range(self.rows):
            where = self.seen(arguments, row)
            if len(where):
                scores, values = self.exact(arguments, row, where)
                part = softmax_part(scores, values)
                out[row] = part["weighted"] / part["totals"][:, None]
        return {"out": out, **held, "counters": np.zeros_like(arguments["counters"])}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """Of parts that of paged_attention, nothing of a part that is alone; of the result see `merged_bound`."""
        held = {name: np.array(bound) for name, bound in super().tolerance(**arguments).items()}
        for row in self._lone(arguments):
            for name in HANDED:
                held[name][row] = 0.0
        out = np.zeros((self.rows, self.heads, self.head_dim))
        for row in range(self.rows):
            where = self.seen(arguments, row)
            if len(where):
                scores, values = self.exact(arguments, row, where)
                size = self.split.size(len(where))
                out[row] = merged_bound(self.tiles, size, scores, self.errors(arguments, row, where), values)
        return {"out": out, **held, "counters": 0.0}

    def _lone(self, arguments: Mapping[str, Any]) -> list[int]:
        """The rows that have one part alone."""
        return [row for row in range(self.rows) if len(list(self.parts_of(arguments, row))) == 1]

    def work(self, length: int | None = None) -> Work:
        """As PagedAttention.work."""
        parts, length = super().work(length), positions(self, self.max_len, length)
        handed = self.heads * len(self.split.slices(length)) * (self.head_dim + 2)
        if len(self.split.slices(length)) == 1:
            handed = -handed
        out = self.heads * self.head_dim
        return Work(
            flops=parts.flops + self.rows * max(2 * handed, 0), bytes=parts.bytes + F32.bytes * self.rows * (handed + out)
        )

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        few: dict[str, Any] = {"page_len": 32, "pages": 12, "slots": 3, "max_len": 160}
        yield cls(
            **fixed, rows=3, heads=4, kv_heads=2, head_dim=128, **few, kv_type="f16", splits=4, least=32, tile=16, spread=2
        )
        more: dict[str, Any] = {"page_len": 128, "pages": 9, "slots": 1, "max_len": 1152}
        yield cls(**fixed, rows=1, heads=1, kv_heads=1, head_dim=64, **more, kv_type="q8_0", splits=256, least=32)
        yield cls(**fixed, **ALONE)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        given = super().inputs(rng)
        return {
            "out": np.zeros((self.rows, self.heads, self.head_dim), np.float32),
            **given,
            **{name: np.zeros_like(given[name]) for name in HANDED},
            "counters": np.zeros((self.rows, self.kv_heads * self.blocks), np.uint32),
        }


@register
@dataclass(frozen=True)
class PagedAttentionMergedDigits(PagedAttentionMerged):
    """paged_attention_merged and the int8 digits of its out in one launch, bit for bit.

    All arguments as there, and with size = heads * head_dim, digits: s8[rows, digits, size], scales: f32[rows, size / 32],
    sums: s32[rows, size / 32]: what q8_quantize (digits=1), q16_quantize (2) or q24_quantize (3) make of out as rows.
    """

    name = "paged_attention_merged_digits"
    digits: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "digits", high=max(activation_digits.LARGEST))

    @property
    def size(self) -> int:
        """Values of a row of `out`."""
        return self.heads * self.head_dim

    def signature(self) -> Signature:
        out, *others = super().signature().items()
        return dict([out, *activation_digits.arrays(self.rows, self.digits, self.size, "out").items(), *others])

    def finish(self, k: KernelBuilder, row: Value, first: Value, heads: Value, staged: Staged) -> None:
        for place, values, live in self.written(k, row, first, heads, staged):
            write_digits(k, self.digits, row, place, values, live)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        exact = super().reference(**arguments)
        flat = exact["out"].reshape(self.rows, self.size)
        return {**exact, **activation_digits.quantize(flat, self.digits)._asdict()}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """That of paged_attention_merged, and what it lets the digits be."""
        bounds, flat = super().tolerance(**arguments), (self.rows, self.size)
        out = super().reference(**arguments)["out"].reshape(flat)
        return {**bounds, **digit_bounds(out, np.asarray(bounds["out"]).reshape(flat), self.digits)}

    def work(self, length: int | None = None) -> Work:
        attention, quantize = super().work(length), Quantize(self.digits, self.size, self.rows).work()
        read_again = F32.bytes * self.rows * self.size
        return Work(flops=attention.flops + quantize.flops, bytes=attention.bytes + quantize.bytes - read_again)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        few: dict[str, Any] = {"page_len": 32, "pages": 5, "slots": 2, "max_len": 96}
        yield cls(**fixed, rows=3, heads=3, kv_heads=1, head_dim=96, **few, kv_type="f32", splits=2, least=64, digits=2)
        yield cls(**fixed, **ALONE, digits=1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().inputs(rng), **activation_digits.unwritten(self.rows, self.digits, self.size)}
