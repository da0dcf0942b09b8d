"""Attention of the rows of a step over a paged cache in one launch, whose result is packed there, too, for an output projection
on f16 halves: where a block has heads that fill windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HalfForm, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.merge import Staged
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.kernels.attention.paged_attention_merged import PagedAttentionMerged
from ptxgen.kernels.attention.paged_cache import Place
from ptxgen.kernels.quantize.activation_halves import TILE, WINDOW, arrays, pack, tiles_of, unwritten
from ptxgen.kernels.quantize.half_bounds import half_bounds
from ptxgen.kernels.quantize.pack_halves import PackF16, write_staged_halves
from ptxgen.kernels.registry import register
from ptxgen.types import F32

WINDOWS_OF_A_WARP = 2


def windows_of_a_block(kernel: PagedAttention) -> int:
    """How many windows the heads of a block fill; 0 where they do not, or are too many for its warps."""
    windows, rest = divmod(kernel.tiles.heads * kernel.head_dim, WINDOW)
    fits = not rest and kernel.group % kernel.tiles.heads == 0 and windows <= WINDOWS_OF_A_WARP * kernel.warps
    return windows if fits else 0


@register
@dataclass(frozen=True)
class PagedAttentionMergedHalves(PagedAttentionMerged):
    """paged_attention_merged and the halves of its out in one launch, bit for bit.

    All arguments as there; the heads of a block are a multiple of 256 values. With size = heads * head_dim, halves:
    f16[ceil(rows / 8), size / 256, 17, parts, 2, 8, 8], scales: f32[rows, size / 256]: what pack_halves makes of out as rows.
    """

    name = "paged_attention_merged_halves"
    parts: int = field(kw_only=True)
    lane_run: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not windows_of_a_block(self):
            raise ArgumentError(
                f"{self.name}: the heads of a block must be a multiple of {WINDOW} values, got {self.heads} heads over "
                f"{self.kv_heads} of {self.head_dim} values, {self.tiles.heads} a block"
            )
        assert self.form  # checks what it is made of

    @property
    def form(self) -> HalfForm:
        """In which form it writes the halves."""
        return HalfForm(self.parts, self.lane_run)

    @property
    def size(self) -> int:
        """Values of a row of `out`."""
        return self.heads * self.head_dim

    def signature(self) -> Signature:
        out, *others = super().signature().items()
        return dict([out, *arrays(self.rows, self.size, self.form, "out").items(), *others])

    def launch(self) -> LaunchConfig:
        """With blocks for the rows that fill the last tile of halves with zeros."""
        alone = super().launch()
        groups, _, parts = alone.grid
        return LaunchConfig((groups, TILE * tiles_of(self.rows), parts), alone.block, resident=alone.resident)

    def own_place(self, k: KernelBuilder, row: Value) -> Place:
        if self.rows % TILE == 0:
            return super().own_place(k, row)
        known, slot, length = super().own_place(k, k.min(row, self.rows - 1))
        return Place(known, slot, k.select(row < self.rows, length, 0))

    def finish(self, k: KernelBuilder, row: Value, first: Value, heads: Value, staged: Staged) -> None:
        out, divided = k.arg.out.at(row, first, 0), k.shared(F32, staged.weighted.shape[0])
        for place, values, live in staged.runs(k, heads):
            with k.when(live):
                k.store(divided[place], values)
            with k.when(live & (row < self.rows)):
                k.store(out[place], values)
        k.barrier()
        write_staged_halves(k, self.form, row, first * self.head_dim // WINDOW, windows_of_a_block(self), divided)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        exact = super().reference(**arguments)
        return {**exact, **pack(exact["out"].reshape(self.rows, self.size), self.form)._asdict()}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """That of paged_attention_merged, and what it lets the halves be."""
        bounds, flat = super().tolerance(**arguments), (self.rows, self.size)
        out = super().reference(**arguments)["out"].reshape(flat)
        return {**bounds, **half_bounds(out, np.asarray(bounds["out"]).reshape(flat), self.form)}

    def work(self, length: int | None = None) -> Work:
        attention, packing = super().work(length), PackF16(self.rows, self.size, self.parts, self.lane_run).work()
        read_again = F32.bytes * self.rows * self.size
        return Work(flops=attention.flops + packing.flops, bytes=attention.bytes + packing.bytes - read_again)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        few: dict[str, Any] = {"page_len": 32, "pages": 5, "slots": 2, "max_len": 96}
        form: dict[str, Any] = {"parts": 2, "lane_run": 64}
        yield cls(**fixed, rows=3, heads=4, kv_heads=2, head_dim=128, **few, kv_type="f16", splits=2, least=64, **form)
        alone: dict[str, Any] = {
            "page_len": 32, "pages": 1, "slots": 1, "max_len": 32, "splits": 1, "least": 32, "spread": 1,
            "resident_threads": 32, "parts": 1, "lane_run": 4,
        }  # fmt: skip
        yield cls(**fixed, rows=1, heads=1, kv_heads=1, head_dim=256, **alone, kv_type="f32")

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().inputs(rng), **unwritten(self.rows, self.size, self.form)}
