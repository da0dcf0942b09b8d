"""The reduction of the parts of a token's softmax that paged_attention leaves, in a launch of its own."""

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
from ptxgen.dsl.parts import PARTS
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.attention_type import LONGEST, positions
from ptxgen.kernels.attention.f16_split import F16SplitOutput
from ptxgen.kernels.attention.int8_planes import Int8PlanesOutput
from ptxgen.kernels.attention.output import HeadValues, Output, OutShape, ready
from ptxgen.kernels.attention.paged_cache import TILE, length_of
from ptxgen.kernels.attention.scores import PLAIN_SCORES, Scoring, less
from ptxgen.kernels.attention.split import SequenceSplit, partials, require_split
from ptxgen.kernels.attention.split_attention_reduce import WARPS, parts_bound, put_together, softmax_of_parts
from ptxgen.kernels.attention.suited import LEAST, SPLITS
from ptxgen.kernels.attention.tiles import Tiles
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require, require_head_dim
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32

OUTPUTS: Mapping[type[Output], tuple[tuple[Output, tuple[int, ...]], ...]] = {
    Output: ((Output(), (4, 4, 96, 8192)), (Output(), (1, 1, 32, 32, 1, 32))),
    Int8PlanesOutput: ((Int8PlanesOutput(2), (4, 3, 128, 8192)), (Int8PlanesOutput(1), (1, 1, 32, 32, 1, 32))),
    F16SplitOutput: ((F16SplitOutput(2, 64), (3, 3, 128, 64, 2, 32)), (F16SplitOutput(1, 4), (1, 1, 128, 32, 1, 32))),
}
"""What the kernel writes, with samples: the form, and the fields from rows on."""


@register(output=OUTPUTS, scores=(Scoring,))
@dataclass(frozen=True)
class PagedAttentionReduce(KernelType):
    """out[r, h] = sum over parts p of e^(peaks[r, h, p] - largest) weighted[r, h, p], over the same sum of totals[r, h, p].

    out: f32[rows, heads, head_dim]; peaks, totals: f32[rows, heads, splits], weighted: f32[rows, heads, splits, head_dim], as
    paged_attention of the same max_len, splits, least and scores leaves them; position: u32[rows], from which it follows how
    many parts there are: the others are not read. A row whose position is max_len or more, or of which a part has a total of 0,
    is idle: its out is zeros.
    """

    family: ClassVar[str] = "attention"
    rows: int
    heads: int
    head_dim: int
    max_len: int
    splits: int = SPLITS
    least: int = LEAST
    output: Output = field(default=Output(), kw_only=True, metadata=PARTS)
    scores: Scoring = field(default=PLAIN_SCORES, kw_only=True, metadata=PARTS)

    def __post_init__(self) -> None:
        require(self, "rows", high=MOST_ROWS)
        require(self, "heads")
        require_head_dim(self, self.head_dim)
        require(self, "max_len", low=TILE, high=LONGEST, multiple=TILE)
        require_split(self, self.split)
        self.output.require(self, self.out_shape)
        self.scores.require(self)
        self.output.require_head_dim(self, self.head_dim)

    @property
    def name(self) -> str:
        return f"paged_attention_reduce{self.output.suffix}"

    @property
    def least_sm(self) -> int:
        return self.output.least_sm

    @property
    def out_shape(self) -> OutShape:
        """Of `out`."""
        return OutShape(self.rows, self.heads, self.head_dim)

    @property
    def split(self) -> SequenceSplit:
        """How the positions of a row are dealt out."""
        return SequenceSplit(self.splits, self.least)

    def signature(self) -> Signature:
        return {
            "out": write(F32, self.rows, self.heads, self.head_dim),
            **self.output.arrays(self.out_shape),
            **partials(self.rows, self.heads, self.splits, self.head_dim, "in"),
            "position": read(U32, self.rows, align=4),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.output.reduction_grid(self.out_shape), block=WARPS * WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        self.output.write_reduced(k, self.out_shape, lambda row, head: self.results(k, row, head))

    def results(self, k: KernelBuilder, row: Value, head: Value) -> HeadValues:
        """Those of a head of a row. All threads must come here."""
        tiles = Tiles(self.head_dim, WARPS)
        length = length_of(k, k.load(k.arg.position[row]), self.max_len)
        length = less(length, self.scores.device_tile(k, length))
        size = k.max(self.split.device_size(length), 1)
        count = (length + size - 1) // size
        peaks, totals = k.arg.peaks.at(row, head, 0), k.arg.totals.at(row, head, 0)
        total, weighted = put_together(k, tiles, peaks, totals, lambda first: k.arg.weighted.at(row, head, 0, first), count)
        missing = k.u32(0)
        for number in k.strided(k.tid.x, count, step=WARPS * WARP_SIZE):
            missing @= k.select(k.load(totals[number]) == 0.0, 1, missing)
        usable = (k.block_max(missing) == 0) & (count > 0)
        for d, value in tiles.added(k, weighted):
            yield d, ready(k.select(usable, value / total, 0.0))

    def _parts(self, arguments: Mapping[str, Any], row: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Peaks, totals and sums of a row's parts, in float64; of no part if the row is idle."""
        position = int(arguments["position"][row])
        count = self._parts_of(position)
        peaks, totals, sums = (arguments[name][row, :, :count].astype(np.float64) for name in ("peaks", "totals", "weighted"))
        if (totals == 0.0).any():
            return peaks[:, :0], totals[:, :0], sums[:, :0]
        return peaks, totals, sums

    def _parts_of(self, position: int) -> int:
        """How many parts a row at this position has."""
        length = position + 1 if position < self.max_len else 0
        return len(self.split.slices(length - self.scores.tile(length)))

    def _each(self, arguments: Mapping[str, Any], of_parts: Any) -> NDArray[np.float64]:
        """[rows, heads, head_dim] of what a function of peaks, totals and sums says; zeros of idle rows."""
        result = np.zeros((self.rows, self.heads, self.head_dim))
        for row in range(self.rows):
            parts = self._parts(arguments, row)
            if parts[0].size:
                result[row] = of_parts(*parts)
        return result

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        out = self._each(arguments, softmax_of_parts)
        return {"out": out, **self.output.of(self.out_shape, out)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """See `parts_bound`."""
        out, bound = self._each(arguments, softmax_of_parts), self._each(arguments, parts_bound)
        return {"out": bound, **self.output.bounds(self.out_shape, out, bound)}

    def work(self, length: int | None = None) -> Work:
        """As PagedAttention.work."""
        parts = len(self.split.slices(self.scores.seen(positions(self, self.max_len, length))))
        values = self.rows * self.heads * parts * (self.head_dim + 2)
        moved = F32.bytes * (values + self.rows * self.out_shape.size) + U32.bytes * self.rows
        form = self.output.work(self.out_shape)
        return Work(2 * values + form.flops, moved + form.bytes)

    @classmethod
    def cases(cls, *, output: type[Output] = Output, scores: type[Scoring] = Scoring, **fixed: Any) -> Iterator[KernelType]:
        for form, shape in OUTPUTS[output]:
            yield cls(*shape, **fixed, output=form)
        if output is Output:
            yield cls(3, 2, 80, 128, 3, 32, **fixed, scores=Scoring(window=50))

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """What rows of random lengths leave, with NaN where paged_attention writes nothing; of two rows or more the first has a
        part without a page, of three or more the last is idle."""
        position = rng.integers(self.max_len, size=self.rows).astype(np.uint32)
        peaks = rng.normal(0.0, 3.0, (self.rows, self.heads, self.splits)).astype(np.float32)
        totals = rng.uniform(1.0, self.least, peaks.shape).astype(np.float32)
        sums = (totals[..., None] * rng.normal(size=(*peaks.shape, self.head_dim))).astype(np.float32)
        for row in range(self.rows):
            count = self._parts_of(int(position[row]))
            peaks[row, :, count:], totals[row, :, count:], sums[row, :, count:] = np.nan, np.nan, np.nan
        if self.rows > 1:
            peaks[0, :, 0], totals[0, :, 0], sums[0, :, 0] = -np.inf, 0.0, np.nan
        if self.rows > 2:
            position[-1] = self.max_len
        out = np.zeros((self.rows, self.heads, self.head_dim), np.float32)
        parts = {"peaks": peaks, "totals": totals, "weighted": sums}
        return {"out": out, **self.output.unwritten(self.out_shape), **parts, "position": position}
