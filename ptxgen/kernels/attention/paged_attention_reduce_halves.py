"""Puts the parts of a row's softmax together that paged_attention leaves, and packs the result in one launch, for an output
projection on f16 halves: one block a window of a row, the heads of which it takes one after the other."""

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
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.paged_attention_reduce import PagedAttentionReduce
from ptxgen.kernels.attention.split_attention_reduce import WARPS
from ptxgen.kernels.quantize.activation_halves import TILE, WINDOW, arrays, pack, tiles_of, unwritten, windows_of
from ptxgen.kernels.quantize.half_bounds import half_bounds
from ptxgen.kernels.quantize.pack_halves import PackF16, write_staged_halves
from ptxgen.kernels.registry import register
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32

HEAD_DIMS = (128, 256)
"""Of which a window has one or two whole heads: to wait for more of them takes longer than a launch."""


@register
@dataclass(frozen=True)
class PagedAttentionReduceHalves(PagedAttentionReduce):
    """paged_attention_reduce and the halves of its out in one launch, bit for bit.

    out and what is read as there; head_dim is 128 or 256. With size = heads * head_dim, halves: f16[ceil(rows / 8), ceil(size /
    256), 17, parts, 2, 8, 8], scales: f32[rows, ceil(size / 256)]: what pack_halves makes of out as rows.
    """

    name = "paged_attention_reduce_halves"
    least_sm = 80
    parts: int = field(kw_only=True)
    lane_run: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim not in HEAD_DIMS:
            raise ArgumentError(f"{self.name}: head_dim must be one of {HEAD_DIMS}, got {self.head_dim}")
        assert self.form  # checks parts and lane_run

    @property
    def form(self) -> HalfForm:
        """In which form it writes the halves."""
        return HalfForm(self.parts, self.lane_run)

    @property
    def size(self) -> int:
        """Values of a row of `out`."""
        return self.heads * self.head_dim

    def signature(self) -> Signature:
        out, *inputs = super().signature().items()
        return dict([out, *arrays(self.rows, self.size, self.form, "out").items(), *inputs])

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(windows_of(self.size), TILE * tiles_of(self.rows)), block=WARPS * WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        window, row = k.ctaid.x, k.ctaid.y
        staged, heads = k.shared(F32, WINDOW), WINDOW // self.head_dim
        line = k.min(row, self.rows - 1) if self.rows % TILE else row
        for number in range(heads):
            head = window * heads + number
            inside = (row < self.rows) & (head < self.heads)
            for d, value in self.results(k, line, k.min(head, self.heads - 1)):
                with k.when(inside):
                    k.store(k.arg.out[row, head, d], value)
                k.store(staged[d + number * self.head_dim], k.select(inside, value, 0.0))
        k.barrier()
        write_staged_halves(k, self.form, row, window, 1, staged)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        out = super().reference(**arguments)["out"]
        return {"out": out, **pack(out.reshape(self.rows, self.size), self.form)._asdict()}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """That of paged_attention_reduce, and what it lets the halves be."""
        out, bound = super().reference(**arguments)["out"], np.asarray(super().tolerance(**arguments)["out"])
        flat = (self.rows, self.size)
        return {"out": bound, **half_bounds(out.reshape(flat), bound.reshape(flat), self.form)}

    def work(self, length: int | None = None) -> Work:
        reduce, packing = super().work(length), PackF16(self.rows, self.size, self.parts, self.lane_run).work()
        read_again = F32.bytes * self.rows * self.size
        return Work(flops=reduce.flops + packing.flops, bytes=reduce.bytes + packing.bytes - read_again)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, rows=3, heads=3, head_dim=128, max_len=64, splits=2, least=32, parts=2, lane_run=64)
        yield cls(**fixed, rows=1, heads=1, head_dim=128, max_len=32, splits=1, least=32, parts=1, lane_run=4)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().inputs(rng), **unwritten(self.rows, self.size, self.form)}
