"""Attention of the tokens of a step over a paged cache in one launch: the blocks that share a token leave parts as
paged_attention does, and the last block reduces them as paged_attention_reduce does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.parts import PARTS
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.attention_type import positions
from ptxgen.kernels.attention.f16_split import F16SplitOutput
from ptxgen.kernels.attention.int8_planes import Int8PlanesOutput
from ptxgen.kernels.attention.merge import Merge, PartArrays, Staged, alone, merged_bound
from ptxgen.kernels.attention.output import Output, OutShape
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.kernels.attention.paged_cache import PagePlace
from ptxgen.kernels.attention.scores import Scoring, less, plus
from ptxgen.kernels.attention.split import HANDED, softmax_part
from ptxgen.kernels.attention.tiles import Softmax
from ptxgen.kernels.quantize.f16_split import WINDOW
from ptxgen.kernels.registry import register
from ptxgen.target import MAX_STATIC_SHARED, WARP_SIZE
from ptxgen.types import F32, U32

WINDOWS_OF_A_WARP = 2
SMALL = 64  # bytes that are shared besides

ONE_PART: dict[str, Any] = {"kv_type": "f32", "splits": 1, "least": 32, "spread": 1, "resident_threads": 32}

OUTPUTS: Mapping[type[Output], tuple[tuple[Output, tuple[int, ...], dict[str, Any]], ...]] = {
    Output: (
        (Output(), (3, 4, 2, 128, 32, 12, 3, 160), {"kv_type": "f16", "splits": 4, "least": 32, "tile": 16, "spread": 2}),
        (Output(), (1, 1, 1, 64, 128, 9, 1, 1152), {"kv_type": "q8_0", "splits": 256, "least": 32}),
        (Output(), (1, 1, 1, 32, 32, 1, 1, 32), ONE_PART),
        (
            Output(),
            (3, 3, 1, 80, 32, 9, 2, 128),
            {"kv_type": "f32", "splits": 3, "least": 32, "scores": Scoring(50, 5.0, 0.3, 8.0)},
        ),
    ),
    Int8PlanesOutput: (
        (Int8PlanesOutput(2), (3, 3, 1, 96, 32, 5, 2, 96), {"kv_type": "f32", "splits": 2, "least": 64}),
        (Int8PlanesOutput(1), (1, 1, 1, 32, 32, 1, 1, 32), ONE_PART),
    ),
    F16SplitOutput: (
        (F16SplitOutput(2, 64), (3, 4, 2, 128, 32, 5, 2, 96), {"kv_type": "f16", "splits": 2, "least": 64}),
        (F16SplitOutput(1, 4), (1, 1, 1, 256, 32, 1, 1, 32), ONE_PART),
    ),
}
"""What the kernel writes, with samples: the form, rows to max_len, the other fields."""


@register(output=OUTPUTS, scores=(Scoring,))
@dataclass(frozen=True)
class PagedAttentionLastBlock(PagedAttention):
    """out[r, h] = softmax(q[r, h] K^T / sqrt(head_dim)) V over the positions that row r sees, in one launch.

    out: f32[rows, heads, value_dim], zeros for a row that is idle; what is written beside it: output.py. The bits are those of
    paged_attention and paged_attention_reduce. q, the cache, slot and position as in paged_attention; peaks, totals, weighted,
    too, but of a row with one part alone nothing is written there. counters: u32[rows, kv_heads * blocks], zeros before the
    launch and zeros again after it: `blocks` share the heads of a group.
    """

    output: Output = field(default=Output(), kw_only=True, metadata=PARTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.output.require(self, self.out_shape)
        self.output.require_windows(self, self.windows)

    @property
    def least_sm(self) -> int:
        return self.output.least_sm

    @property
    def name(self) -> str:
        return f"paged_attention_merged{self.output.suffix}"

    @property
    def out_shape(self) -> OutShape:
        """Of `out`."""
        return OutShape(self.rows, self.heads, self.value_width)

    @property
    def blocks(self) -> int:
        """As there, or more: a block has the results of its heads in shared memory, too."""
        blocks = super().blocks
        while blocks < self.group and not self._fits(-(-self.group // blocks)):
            blocks += 1
        return blocks

    def _fits(self, heads: int) -> bool:
        """Whether queries, sums of warps and results of so many heads, and factors of parts, have room: GroupTiles, Merge."""
        floats = heads * (self.head_dim + self.value_width * (self.warps + 1) + 2 * self.warps + 1)
        factors = self.warps * -(-self.splits // WARP_SIZE) * WARP_SIZE
        return F32.bytes * (floats + factors) + SMALL <= MAX_STATIC_SHARED

    @property
    def windows(self) -> int:
        """Windows of an f16 split that the heads of a block fill; 0 where they do not, or are too many for its warps."""
        windows, rest = divmod(self.tiles.heads * self.value_width, WINDOW)
        fits = not rest and self.group % self.tiles.heads == 0 and windows <= WINDOWS_OF_A_WARP * self.warps
        return windows if fits else 0

    def signature(self) -> Signature:
        return {
            "out": write(F32, self.rows, self.heads, self.value_width),
            **self.output.arrays(self.out_shape),
            **super().signature(),
            "counters": update(U32, self.rows, self.kv_heads * self.blocks, zeros=True),
        }

    @property
    def scratch(self) -> tuple[str, ...]:
        return (*HANDED, "counters")

    @property
    def merge(self) -> Merge:
        """How the last block puts parts together."""
        return Merge(self.value_width, self.tiles.heads, self.warps)

    def launch(self) -> LaunchConfig:
        launch = super().launch()
        groups, _, parts = launch.grid
        return replace(launch, grid=(groups, self.output.blocks(self.out_shape), parts))

    def emit(self, k: KernelBuilder) -> None:
        row, kv_head, spread = k.ctaid.y, k.ctaid.x // self.blocks, self.launch().grid[2]
        place = self.own_place(k, row)
        from_tile = self.scores.device_tile(k, place.length)
        dealt_out = less(place.length, from_tile)
        size = k.max(self.split.device_size(dealt_out), 1)
        count = k.shuffle((dealt_out + (size - 1)) // size, 0)  # so the assembler knows that warps stay together
        several, is_mine = count > 1, k.variable(1, U32)
        staged = Staged.of(k, self.tiles.heads, self.value_width)
        begin = plus(k.ctaid.z * size, from_tile)
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

    def own_place(self, k: KernelBuilder, row: Value) -> PagePlace:
        """Where the block's row stands; nowhere, if there is no such row."""
        if self.output.blocks(self.out_shape) == self.rows:
            return self.place(k, row)
        known, slot, length = self.place(k, k.min(row, self.rows - 1))
        return PagePlace(known, slot, k.select(row < self.rows, length, 0))

    def _leave(
        self,
        k: KernelBuilder,
        first: Value,
        heads: Value,
        part: Value,
        usable: Value,
        found: list[Softmax],
        several: Value,
        staged: Staged,
    ) -> None:
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
                k.store(staged.weighted[head * self.value_width + d], alone(k, value))

    def finish(self, k: KernelBuilder, row: Value, first: Value, heads: Value, staged: Staged) -> None:
        """Write what the block's heads attend to; all its threads come here."""
        out, values = k.arg.out.at(row, first, 0), self.tiles.heads * self.value_width
        runs = staged.runs(k, heads)
        self.output.write_runs(k, self.out_shape, row, first, values, runs, lambda at, result: k.store(out[at], result))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        held = dict(super().reference(**arguments))
        for row in self._lone(arguments):
            for name in HANDED:
                held[name][row] = arguments[name][row]
        out = self._exact_out(arguments)
        forms = self.output.of(self.out_shape, out)
        return {"out": out, **forms, **held, "counters": np.zeros_like(arguments["counters"])}

    def _exact_out(self, arguments: Mapping[str, Any]) -> NDArray[np.float64]:
        out = np.zeros((self.rows, self.heads, self.value_width))
        for row in range(self.rows):
            where = self.seen(arguments, row)
            if len(where):
                part = softmax_part(*self.exact(arguments, row, where))
                out[row] = part["weighted"] / part["totals"][:, None]
        return out

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """Of parts that of paged_attention, nothing of a part that is alone; of the result see `merged_bound`."""
        held = {name: np.array(bound) for name, bound in super().tolerance(**arguments).items()}
        for row in self._lone(arguments):
            for name in HANDED:
                held[name][row] = 0.0
        out, bound = self._exact_out(arguments), np.zeros((self.rows, self.heads, self.value_width))
        for row in range(self.rows):
            where = self.seen(arguments, row)
            if len(where):
                scores, values = self.exact(arguments, row, where)
                size, hidden = self.split.size(len(where) + self.scores.hidden), self.scores.hidden
                bound[row] = merged_bound(self.tiles, size, scores, self.errors(arguments, row, where), values, hidden)
        return {"out": bound, **self.output.bounds(self.out_shape, out, bound), **held, "counters": 0.0}

    def _lone(self, arguments: Mapping[str, Any]) -> list[int]:
        """The rows that have one part alone."""
        return [row for row in range(self.rows) if len(list(self.parts_of(arguments, row))) == 1]

    def work(self, length: int | None = None) -> Work:
        """As PagedAttention.work."""
        parts, length = super().work(length), self.scores.seen(positions(self, self.max_len, length))
        handed = self.heads * len(self.split.slices(length)) * (self.value_width + 2)
        if len(self.split.slices(length)) == 1:
            handed = -handed
        moved, form = F32.bytes * self.rows * (handed + self.out_shape.size), self.output.work(self.out_shape)
        return Work(parts.flops + self.rows * max(2 * handed, 0) + form.flops, parts.bytes + moved + form.bytes)

    @classmethod
    def cases(cls, *, output: type[Output] = Output, scores: type[Scoring] = Scoring, **fixed: Any) -> Iterator[KernelType]:
        names = ("rows", "heads", "kv_heads", "head_dim", "page_len", "pages", "slots", "max_len")
        for form, sizes, others in OUTPUTS[output]:
            shape: dict[str, Any] = dict(zip(names, sizes, strict=True))
            yield cls(**fixed, **shape, **others, output=form)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        given = super().inputs(rng)
        return {
            "out": np.zeros((self.rows, self.heads, self.value_width), np.float32),
            **given,
            **self.output.unwritten(self.out_shape),
            **{name: np.zeros_like(given[name]) for name in HANDED},
            "counters": np.zeros((self.rows, self.kv_heads * self.blocks), np.uint32),
        }
