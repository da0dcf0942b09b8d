"""Attention that quantises its result, for an output projection on int8 planes (quantize/int8_planes.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.output import HeadValues, Output, OutShape, Own, Runs, Store, StoreHead, ready
from ptxgen.kernels.quantize import int8_planes
from ptxgen.kernels.quantize.plane_bounds import plane_bounds
from ptxgen.kernels.quantize.quantize import Quantize, write_planes
from ptxgen.kernels.shape import Named, require_of
from ptxgen.types import F32


@dataclass(frozen=True)
class Int8PlanesOutput(Output):
    """`out`, and what q8_quantize (digits=1), q16_quantize (2) or q24_quantize (3) make of its rows: digits: s8[tokens, digits,
    size], scales: f32[tokens, size / 32], sums: s32[tokens, size / 32]."""

    suffix = "_digits"
    summary = "quantised to int8 planes"
    digits: int

    def require(self, kernel: Named, shape: OutShape) -> None:
        require_of(kernel.name, self, "digits", high=max(int8_planes.LARGEST))
        if shape.head_dim % int8_planes.BLOCK:
            raise ArgumentError(
                f"{kernel.name} quantises heads of a multiple of {int8_planes.BLOCK} values, got {shape.head_dim}"
            )

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
        values = [k.f32(0.0) for _ in range(-(-shape.head_dim // k.threads))]
        for value, (d, result) in zip(values, found, strict=True):
            value @= result()
            store(d, ready(value))
        place, live = own()
        for number, value in enumerate(values):
            write_planes(k, self.digits, token, place + number * k.threads if number else place, [value], live)

    def write_runs(
        self, k: KernelBuilder, shape: OutShape, token: Value | int, first: Value, values: int, runs: Runs, store: Store
    ) -> None:
        for place, results, live in runs:
            with k.when(live):
                store(place, results)
            write_planes(k, self.digits, token, first * shape.head_dim + place, results, live)
