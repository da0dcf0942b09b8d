"""What products of weights and several rows of activations are off by, beside float64 and beside llama.cpp's way. No test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.choice.strategies import DIGITS, default_strategy
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.accuracy import with_outlier
from ptxgen.kernels.compose import for_rows
from ptxgen.kernels.quantize import f16_split
from ptxgen.kernels.quantize.int8_planes import BLOCK, quantize
from ptxgen.kernels.registry import entries

MOST_NMSE = 5e-4
"""The most that llama.cpp's tests allow for the mean square error of a matrix product, relative to that of the result."""

ACCURATE_NMSE = 1e-10
"""What `accurate` promises of a dot product (1e-5), squared."""

AS_GOOD = 1.02
"""Times the error of llama.cpp that counts as no more: both round alike, and then by chance the one or the other is nearer."""

HALVES = {"accurate": 2, "fast": 1}
"""f16 parts of an activation, by precision."""


def products(format: Format, k: int, n: int, m: int, **settings: int) -> Iterator[tuple[str, KernelType]]:
    """All that may multiply m rows of activations, each with the precision whose digits or parts it has: the kernel that a
    precision has by default, in its form for several rows, and every registered one of the family `gemm` that takes m rows,
    with those of the settings that it has. (joined_hw_dp4a takes one, and has the bits of hw_dp4a.)"""
    for precision in DIGITS:
        of_one = default_strategy(format, precision).make(k, n)
        try:
            forms = (of_one,) if m == 1 else for_rows(of_one, m)
        except ArgumentError:  # more rows than the form takes; those are launched a few at a time
            continue
        yield from ((precision, form) for form in forms)
    for entry in entries().values():
        if entry.type.family == "gemm" and entry.fixed.get("format") is format and "m" in entry.parameters:
            name, values = ("parts", HALVES) if "parts" in entry.parameters else ("digits", DIGITS)
            own = {setting: value for setting, value in settings.items() if setting in entry.parameters}
            yield from ((precision, entry.make(k=k, n=n, m=m, **own, **{name: value})) for precision, value in values.items())


class Product:
    """Random weights u8[n, row bytes] and activations f32[m, k], in which one channel is at 26 times their root mean square,
    with their product in float64 and as llama.cpp makes it of activations of 8 bits."""

    def __init__(self, format: Format, k: int, n: int, m: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.w = format.random_blocks(rng, n, k)
        self.x = with_outlier(rng, m, k)
        weights = format.dequantize(self.w).astype("f8")
        self.exact = self.x.astype("f8") @ weights.T
        self.llama_cpp = q8_1(self.x) @ weights.T

    def arguments(self, kernel: KernelType) -> dict[str, Any]:
        """All that the kernel takes, its result full of NaN."""
        given: dict[str, Any] = {"w": self.w, "y": np.full(self.exact.shape, np.nan, np.float32)}
        if kernel.activation_planes:
            given |= quantize(self.x, kernel.activation_planes)._asdict()
        elif kernel.activation_f16_split is not None:
            given |= f16_split.pack(self.x, kernel.activation_f16_split)._asdict()
        else:
            given["x"] = self.x
        return {
            name: given[name].reshape(array.shape) for name, array in kernel.signature().items() if isinstance(array, Array)
        }

    def described(self, kernel: KernelType) -> tuple[float, float]:
        """`error` of the kernel's own reference, and of the worst that its tolerance allows, to which conformance holds it."""
        arguments = self.arguments(kernel)
        reference = kernel.reference(**arguments)["y"].reshape(self.exact.shape)
        off = np.abs(reference - self.exact) + np.broadcast_to(kernel.tolerance(**arguments)["y"], reference.shape)
        return self.error(reference), self.error(self.exact + off)

    def error(self, y: NDArray[Any]) -> float:
        """The mean square error of y, [m, n], relative to the mean square of the exact product."""
        return float(np.mean((y.reshape(self.exact.shape) - self.exact) ** 2) / np.mean(self.exact**2))


def q8_1(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """The activations that llama.cpp multiplies quantised weights by on a GPU: f64[m, k] of x: f32[m, k]. Of each 32 the scale
    is max |x| / 127, the integers are x / scale rounded half away from zero, and the scale is kept in f16 (quantize_q8_1 in
    ggml/src/ggml-cuda/quantize.cu, block_q8_1 in ggml/src/ggml-common.h, at 0c1e570). Its minima use a sum in f16 beside that,
    which is left out here: it only adds to its error."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    scales = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    ratios = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0)
    integers = np.copysign(np.floor(np.abs(ratios) + np.float32(0.5)), ratios)
    rounded: NDArray[np.float64] = scales.astype(np.float16).astype("f8") * integers
    return rounded.reshape(x.shape)
