"""RMSNorm of one row and the int8 digits of the result in one launch, also with the residual connection before it: the bits of
residual_add, rmsnorm and the quantisation (q8_, q16_, q24_quantize) one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.builder import KernelBuilder
from ptxgen.kernels.kernel_type import KernelType, Launch, Scalar, Signature, Work, read, update, write
from ptxgen.kernels.norm.rmsnorm import LARGEST_ROW, THREADS, RmsNorm, rms_bound, rms_normalised
from ptxgen.kernels.quantize.digit_bounds import UNIT, digit_bounds
from ptxgen.kernels.quantize.fixed_point import BLOCK, LARGEST, arrays, quantize, unwritten
from ptxgen.kernels.quantize.quantize import write_digits
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import F32
from ptxgen.value import Value


@register
@dataclass(frozen=True)
class RmsNormDigits(RmsNorm):
    """y = gamma * x / sqrt(mean(x^2) + eps), and y as int8 digits with a scale and an exact sum for every 32.

    y, x: f32[1, hidden]; digits: s8[1, digits, hidden]; scales: f32[1, hidden / 32]; sums: s32[1, hidden / 32]; gamma:
    f32[hidden]; eps: f32 scalar. hidden is a multiple of 32. What the digits mean is said in quantize/fixed_point.py. Each
    block adds up the squares of the whole row by itself and makes the results of its own 1024 values, so that nobody waits for
    another block, and gamma, results and digits are the work of several multiprocessors.
    """

    name = "rmsnorm_digits"
    digits: int = 2

    def __post_init__(self) -> None:
        require(self, "hidden", high=LARGEST_ROW, multiple=BLOCK)
        require(self, "digits", high=max(LARGEST))

    def signature(self) -> Signature:
        return {
            "y": write(F32, 1, self.hidden),
            **arrays(1, self.digits, self.hidden, "out"),
            "x": read(F32, 1, self.hidden),
            "gamma": read(F32, self.hidden),
            "eps": Scalar(F32, low=0.0),
        }

    def launch(self) -> Launch:
        return Launch(grid=self.chunks, block=THREADS)

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
        y = self._exact(arguments)
        return {"y": y, **quantize(y, self.digits)._asdict()}

    def _exact(self, arguments: Mapping[str, Any]) -> NDArray[np.float64]:
        x, gamma = arguments["x"].astype(np.float64), arguments["gamma"].astype(np.float64)
        return rms_normalised(x, gamma, float(arguments["eps"]))

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """y as in rmsnorm; the digits are those of any value that near."""
        y = self._exact(arguments)
        bound = rms_bound(y, chain=self.chunks * self.width, tree=10)
        return {"y": bound, **digit_bounds(y, bound, self.digits)}

    def work(self) -> Work:
        """That of rmsnorm, and of the quantisation without reading y again."""
        norm = super().work()
        made = self.digits * self.hidden + 8 * self.hidden // BLOCK
        return Work(flops=norm.flops + 2 * self.hidden, bytes=norm.bytes + made)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for hidden, digits in ((576, 2), (2048, 1), (4096, 3), (160, 2), (LARGEST_ROW, 2)):
            yield cls(hidden=hidden, digits=digits)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().inputs(rng), **unwritten(1, self.digits, self.hidden)}


@register
@dataclass(frozen=True)
class ResidualRmsNormDigits(RmsNormDigits):
    """x += delta; then y = gamma * x / sqrt(mean(x^2) + eps), and y as int8 digits with a scale and an exact sum for every 32.

    x: f32[1, hidden], in place; delta: f32[hidden]; all else as in rmsnorm_digits. One block, in whose registers the row stays
    between the two passes: another block could not read x while this one changes it.
    """

    name = "residual_rmsnorm_digits"

    @property
    def holds_gamma(self) -> bool:
        """Whether the registers also have room for gamma, so that it is loaded ahead."""
        return self.hidden <= 8192

    def signature(self) -> Signature:
        others = super().signature()
        return {**others, "x": update(F32, 1, self.hidden), "delta": read(F32, self.hidden)}

    def launch(self) -> Launch:
        return Launch(grid=1, block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        x, delta = k.arg.x.at(0, 0), k.arg.delta
        total = k.f32(0.0)
        held: list[tuple[Value, Value, list[Value], list[Value]]] = []
        for chunk in range(self.chunks):
            start, inside = self._place(k, chunk)
            self._fetch_gamma(k, start)
            values = [a + b for a, b in zip(self._load(k, x, start), self._load(k, delta, start), strict=True)]
            held.append((start, inside, values, self._load(k, k.arg.gamma, start) if self.holds_gamma else []))
            self._add_squares(k, total, values, inside)
        scale = self._scale(k, total)
        # Where gamma is held, no load stands after a store: it would have to wait, as the arrays might overlap.
        for start, inside, values, early in held:
            gammas = early or self._load(k, k.arg.gamma, start)
            with k.when(inside):
                k.store(x[start], values)
            self._write(k, start, inside, self._scaled(values, scale, gammas))

    def _exact(self, arguments: Mapping[str, Any]) -> NDArray[np.float64]:
        return super()._exact({**arguments, "x": _streamed(arguments)})

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {**super().reference(**arguments), "x": _streamed(arguments)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """x is rounded once. That adds two units to y: one of the value, and half of the two by which its square and so
        the mean are off."""
        x, y = _streamed(arguments), self._exact(arguments)
        bound = rms_bound(y, chain=self.chunks * self.width, tree=10) + 2 * UNIT * np.abs(y)
        return {"x": np.abs(x) * UNIT, "y": bound, **digit_bounds(y, bound, self.digits)}

    def work(self) -> Work:
        """One addition a value more; delta is read and x written, too."""
        norm = super().work()
        return Work(flops=norm.flops + self.hidden, bytes=norm.bytes + 2 * F32.bytes * self.hidden)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for hidden, digits in ((2048, 2), (576, 1), (4096, 3), (160, 2), (LARGEST_ROW, 2)):
            yield cls(hidden=hidden, digits=digits)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """A stream with a massive channel, which delta half takes away."""
        given = super().inputs(rng)
        return {**given, "delta": (rng.normal(0.0, 1.0, self.hidden) - 0.5 * given["x"][0]).astype(np.float32)}


def _streamed(arguments: Mapping[str, Any]) -> NDArray[np.float64]:
    """x + delta, f64[1, hidden]."""
    added: NDArray[np.float64] = arguments["x"].astype(np.float64) + arguments["delta"].astype(np.float64)
    return added
