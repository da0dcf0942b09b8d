"""RMSNorm of rows and the int8 digits of the result in one launch: the bits of rmsnorm and the quantisation (q8_, q16_,
q24_quantize) one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, LaunchConfig, Signature, Work
from ptxgen.dsl.value import Value
from ptxgen.kernels.norm.rmsnorm import LARGEST_ROW, THREADS, RmsNorm
from ptxgen.kernels.quantize.activation_digits import BLOCK, LARGEST, arrays, quantize, unwritten
from ptxgen.kernels.quantize.digit_bounds import digit_bounds
from ptxgen.kernels.quantize.quantize import write_digits
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require


@register
@dataclass(frozen=True)
class RmsNormDigits(RmsNorm):
    """y = gamma * x / sqrt(mean(x^2) + eps), and y as int8 digits with a scale and an exact sum for every 32.

    y, x: f32[1, hidden]; digits: s8[1, digits, hidden]; scales: f32[1, hidden / 32]; sums: s32[1, hidden / 32]; gamma:
    f32[hidden]; eps: f32 scalar. hidden is a multiple of 32. What the digits mean: quantize/activation_digits.py. Each
    block makes the results of 1024 values, so that gamma, results and digits are the work of several multiprocessors.
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
        start, inside, results = self._chunk(k, row)
        with k.when(inside):
            k.store(k.arg.y[row, start], results)
        write_digits(k, self.digits, row, start, results, inside)

    def _row(self, k: KernelBuilder) -> Value | int:
        """The row of a block."""
        return 0

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        y = super().reference(**arguments)["y"]
        return {"y": y, **quantize(y, self.digits)._asdict()}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """y as in rmsnorm; the digits are those of any value that near."""
        y, bound = super().reference(**arguments)["y"], np.asarray(super().tolerance(**arguments)["y"])
        return {"y": bound, **digit_bounds(y, bound, self.digits)}

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
