"""Attention that packs its result, for an output projection on an f16 split (quantize/f16_split.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HalfForm, KernelType, Work
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.output import Output, OutShape, Results, Runs, Store
from ptxgen.kernels.quantize.f16_split import TILE, WINDOW, arrays, pack, tiles_of, unwritten, windows_of
from ptxgen.kernels.quantize.f16_split_bounds import f16_split_bounds
from ptxgen.kernels.quantize.pack_f16 import PackF16, write_staged_f16_split
from ptxgen.kernels.shape import Named
from ptxgen.types import F32

HEAD_DIMS = (128, 256)
"""Of heads that a reduction packs: a window has one or two of them. To wait for more heads takes longer than a launch."""


@dataclass(frozen=True)
class F16SplitOutput(Output):
    """`out`, and what pack_halves makes of its rows.

    halves: f16[ceil(tokens / 8), ceil(size / 256), 17, parts, 2, 8, 8], scales: f32[tokens, ceil(size / 256)]. A block has
    whole windows of 256 values. Blocks of their own write the zeros of a last tile of fewer than 8 tokens."""

    suffix = "_halves"
    summary = "packed as an f16 split"
    least_sm = 80
    one_token = False
    parts: int
    lane_run: int

    @property
    def form(self) -> HalfForm:
        """ArgumentError where there is none."""
        return HalfForm(self.parts, self.lane_run)

    def require(self, kernel: Named, shape: OutShape) -> None:
        assert self.form

    def require_windows(self, kernel: KernelType, windows: int) -> None:
        if not windows:
            raise ArgumentError(f"{kernel}: the heads of a block must be a multiple of {WINDOW} values")

    def require_head_dim(self, kernel: KernelType, head_dim: int) -> None:
        if head_dim not in HEAD_DIMS:
            raise ArgumentError(f"{kernel.name}: head_dim must be one of {HEAD_DIMS}, got {head_dim}")

    def arrays(self, shape: OutShape) -> Signature:
        return {**arrays(shape.tokens, shape.size, self.form, "out")}

    def unwritten(self, shape: OutShape) -> dict[str, NDArray[Any]]:
        return unwritten(shape.tokens, shape.size, self.form)

    def of(self, shape: OutShape, out: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return pack(shape.rows(out), self.form)._asdict()

    def bounds(self, shape: OutShape, out: NDArray[Any], bound: Any) -> dict[str, NDArray[Any]]:
        return f16_split_bounds(shape.rows(out), shape.rows(bound), self.form)

    def work(self, shape: OutShape) -> Work:
        """Without a second read of `out`."""
        packing = PackF16(shape.tokens, shape.size, self.parts, self.lane_run).work()
        return Work(packing.flops, packing.bytes - F32.bytes * shape.tokens * shape.size)

    def blocks(self, shape: OutShape) -> int:
        return TILE * tiles_of(shape.tokens)

    def write_runs(
        self, k: KernelBuilder, shape: OutShape, token: Value | int, first: Value, values: int, runs: Runs, store: Store
    ) -> None:
        staged = k.shared(F32, values)
        for place, results, live in runs:
            with k.when(live):
                k.store(staged[place], results)
            with k.when(live & (token < shape.tokens)):
                store(place, results)
        k.barrier()
        write_staged_f16_split(k, self.form, token, first * shape.head_dim // WINDOW, values // WINDOW, staged)

    def reduction_grid(self, shape: OutShape) -> tuple[int, int]:
        """A block a window and token."""
        return windows_of(shape.size), self.blocks(shape)

    def write_reduced(self, k: KernelBuilder, shape: OutShape, results: Results) -> None:
        """A block takes the heads of its window one after the other."""
        window, token = k.ctaid.x, k.ctaid.y
        staged, heads = k.shared(F32, WINDOW), WINDOW // shape.head_dim
        line = k.min(token, shape.tokens - 1) if shape.tokens % TILE else token
        for number in range(heads):
            head = window * heads + number
            inside = (token < shape.tokens) & (head < shape.heads)
            for d, result in results(line, k.min(head, shape.heads - 1)):
                value = result()
                with k.when(inside):
                    k.store(k.arg.out[token, head, d], value)
                k.store(staged[d + number * shape.head_dim], k.select(inside, value, 0.0))
        k.barrier()
        write_staged_f16_split(k, self.form, token, window, 1, staged)
