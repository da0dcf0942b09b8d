"""Attention that quantises its result, for an output projection on int8 planes (quantize/int8_planes.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.output import HeadValues, Output, OutShape, Own, Runs, Store, StoreHead, ready
from ptxgen.kernels.quantize import int8_planes
from ptxgen.kernels.quantize.plane_bounds import plane_bounds
from ptxgen.kernels.quantize.quantize import Quantize, write_planes
from ptxgen.kernels.shape import require_of
from ptxgen.types import F32


@dataclass(frozen=True)
class Int8PlanesOutput(Output):
    """`out`, and what q8_quantize (digits=1), q16_quantize (2) or q24_quantize (3) make of its rows: digits: s8[tokens, digits,
    size], scales: f32[tokens, size / 32], sums: s32[tokens, size / 32]."""

    suffix = "_digits"
    summary = "quantised to int8 planes"
    digits: int

    def require(self, kernel: KernelType) -> None:
        require_of(kernel.name, self, "digits", high=max(int8_planes.LARGEST))

    def arrays(self, shape: OutShape) -> Signature:
        return {**int8_planes.arrays(shape.tokens, self.digits, shape.size, "out")}

    def unwritten(self, shape: OutShape) -> dict[str, NDArray[Any]]:
        return int8_planes.unwritten(shape.tokens, self.digits, shape.size)

    def of(self, shape: OutShape, out: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return int8_planes.quantize(shape.rows(out), self.digits)._asdict()

    def bounds(self, shape: OutShape, out: NDArray[Any], bound: Any) -> dict[str, NDArray[Any]]:
        return plane_bounds(shape.rows(out), shape.rows(bound), self.digits)

    def work(self, shape: OutShape) -> Work:
        """Without a second read of `out`."""
        quantize = Quantize(self.digits, shape.size, shape.tokens).work()
        return Work(quantize.flops, quantize.bytes - F32.bytes * shape.tokens * shape.size)

    def write_head(
        self, k: KernelBuilder, shape: OutShape, token: Value | int, found: HeadValues, store: StoreHead, own: Own
    ) -> None:
        value = k.f32(0.0)
        for d, result in found:  # once: a block has a thread for each d
            value @= result()
            store(d, ready(value))
        place, live = own()
        write_planes(k, self.digits, token, place, [value], live)

    def write_runs(
        self, k: KernelBuilder, shape: OutShape, token: Value | int, first: Value, values: int, runs: Runs, store: Store
    ) -> None:
        for place, results, live in runs:
            with k.when(live):
                store(place, results)
            write_planes(k, self.digits, token, first * shape.head_dim + place, results, live)
