"""RMSNorm of rows as int8 digits: those of gamma * x, whose scales are multiplied by what a row is normalised with. So who
makes x may leave these digits before the row is complete, and who reads them may do the rest: the bits are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.norm.rmsnorm import LARGEST_ROW, THREADS, RmsNorm, rms_bound, root_units
from ptxgen.kernels.norm.squares import GROUP_TREE, inverse_root, row_squares, total_chain
from ptxgen.kernels.quantize.activation_digits import BLOCK, LARGEST, arrays, quantize, unwritten
from ptxgen.kernels.quantize.quantize import write_digits
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require


@register
@dataclass(frozen=True)
class RmsNormDigits(RmsNorm):
    """y = gamma * x / sqrt(mean(x^2) + eps), and y as int8 digits with a scale and an exact sum for every 32.

    y, x: f32[1, hidden]; digits: s8[1, digits, hidden]; scales: f32[1, hidden / 32]; sums: s32[1, hidden / 32]; gamma:
    f32[hidden]; eps: f32 scalar. hidden is a multiple of 32. What the digits mean: quantize/activation_digits.py. They are
    those of gamma * x, rounded to f32, and a scale is theirs times 1 / sqrt(mean(x^2) + eps), rounded once more; the squares
    are added as told in squares.py. Each block makes the results of 1024 values, so that gamma, results and digits are the
    work of several multiprocessors.
    """

    name = "rmsnorm_digits"
    digits: int = 2

    def __post_init__(self) -> None:
        require(self, "hidden", high=LARGEST_ROW, multiple=BLOCK)
        require(self, "digits", high=max(LARGEST))

    def batched(self, m: int) -> tuple[KernelType, ...]:
        return (BatchedRmsNormDigits(self.hidden, self.digits, m=m),) if type(self) is RmsNormDigits else ()

    def signature(self) -> Signature:
        y, *inputs = super().signature().items()
        return dict([y, *arrays(self.rows, self.digits, self.hidden, "out").items(), *inputs])

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.chunks, block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        row = self._row(k)
        start, inside = self.place(k, k.ctaid.x)
        self._fetch_gamma(k, start)
        values, gammas = (self.load_values(k, array, start) for array in (k.arg.x.at(row, 0), k.arg.gamma))
        scale = inverse_root(k, row_squares(k, k.arg.x.at(row, 0), self.hidden), self.hidden, k.arg.eps)
        with k.when(inside):
            k.store(k.arg.y[row, start], self.scaled(values, scale, gammas))
        weighted = [value * gamma for value, gamma in zip(values, gammas, strict=True)]
        write_digits(k, self.digits, row, start, weighted, inside, factor=scale)

    def _row(self, k: KernelBuilder) -> Value | int:
        """The row of a block."""
        return 0

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        """The digits of gamma * x are exact, since its rounding is."""
        x, gamma = arguments["x"], arguments["gamma"]
        weighted = quantize(x * gamma, self.digits)
        scales = weighted.scales * (1 / np.sqrt(np.mean(x.astype("f8") ** 2, axis=-1, keepdims=True) + float(arguments["eps"])))
        return {**super().reference(**arguments), **weighted._replace(scales=scales)._asdict()}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """y as in rmsnorm. A scale: the sum of squares, whose error the root halves, and one more product."""
        blocks = self.hidden // BLOCK
        units = root_units(chain=0, tree=GROUP_TREE + 1 + total_chain(blocks)) + 1
        expected = self.reference(**arguments)
        return {
            "y": rms_bound(expected["y"], chain=0, tree=GROUP_TREE + 1 + total_chain(blocks)),
            "digits": 0.0,
            "scales": np.abs(expected["scales"]) * units * UNIT + 2.0**-148,
            "sums": 0.0,
        }

    def work(self) -> Work:
        """That of rmsnorm, and of the quantisation without reading y again."""
        norm = super().work()
        values = self.rows * self.hidden
        digit_bytes = self.digits * values + 8 * values // BLOCK
        return Work(flops=norm.flops + 2 * values, bytes=norm.bytes + digit_bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for hidden, digits in ((576, 2), (2048, 1), (4096, 3), (160, 2), (LARGEST_ROW, 2)):
            yield cls(hidden=hidden, digits=digits)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().inputs(rng), **unwritten(self.rows, self.digits, self.hidden)}


@register
@dataclass(frozen=True)
class BatchedRmsNormDigits(RmsNormDigits):
    """y = gamma * x / sqrt(mean(x^2) + eps) and the int8 digits of y for each of m rows: rmsnorm_digits, with the same bits in
    every row.

    y, x: f32[m, hidden]; digits: s8[m, digits, hidden]; scales: f32[m, hidden / 32]; sums: s32[m, hidden / 32]; gamma:
    f32[hidden]; eps: f32 scalar. hidden is a multiple of 32.
    """

    name = "batched_rmsnorm_digits"
    m: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m", high=MOST_ROWS)

    @property
    def rows(self) -> int:
        return self.m

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(self.chunks, self.m), block=THREADS)

    def _row(self, k: KernelBuilder) -> Value | int:
        return k.ctaid.y

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for hidden, digits, m in ((576, 2, 5), (1056, 3, 2)):
            yield cls(hidden=hidden, digits=digits, m=m)
