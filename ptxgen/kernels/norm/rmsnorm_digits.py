"""RMSNorm of one row and the int8 digits of the result in one launch: the bits of rmsnorm and the quantisation (q8_, q16_,
q24_quantize) one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from ptxgen.kernels.shape import require


@register
@dataclass(frozen=True)
class RmsNormDigits(RmsNorm):
    """y = gamma * x / sqrt(mean(x^2) + eps), and y as int8 digits with a scale and an exact sum for every 32.

    y, x: f32[1, hidden]; digits: s8[1, digits, hidden]; scales: f32[1, hidden / 32]; sums: s32[1, hidden / 32]; gamma:
    f32[hidden]; eps: f32 scalar. hidden is a multiple of 32. What the digits mean: quantize/activation_digits.py. Each
    block adds up the squares of the whole row by itself and makes the results of its own 1024 values, so that nobody waits for
    another block, and gamma, results and digits are the work of several multiprocessors.
    """

    name = "rmsnorm_digits"
    digits: int = 2

    def __post_init__(self) -> None:
        require(self, "hidden", high=LARGEST_ROW, multiple=BLOCK)
        require(self, "digits", high=max(LARGEST))

    def signature(self) -> Signature:
        y, *inputs = super().signature().items()
        return dict([y, *arrays(1, self.digits, self.hidden, "out").items(), *inputs])

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.chunks, block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        x = k.arg.x.at(0, 0)
        start, inside = self._place(k, k.ctaid.x)
        self._fetch_gamma(k, start)
        values, gammas = self._load(k, x, start), self._load(k, k.arg.gamma, start)
        total = k.f32(0.0)
        for chunk in range(self.chunks):
            place, counted = self._place(k, chunk)
            self._add_squares(k, total, self._load(k, x, place), counted)
        self._write(k, start, inside, self._scaled(values, self._scale(k, total), gammas))

    def _write(self, k: KernelBuilder, start: Value, inside: Value, results: list[Value]) -> None:
        with k.when(inside):
            k.store(k.arg.y[0, start], results)
        write_digits(k, self.digits, 0, start, results, inside)

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
        digit_bytes = self.digits * self.hidden + 8 * self.hidden // BLOCK
        return Work(flops=norm.flops + 2 * self.hidden, bytes=norm.bytes + digit_bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for hidden, digits in ((576, 2), (2048, 1), (4096, 3), (160, 2), (LARGEST_ROW, 2)):
            yield cls(hidden=hidden, digits=digits)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().inputs(rng), **unwritten(1, self.digits, self.hidden)}
