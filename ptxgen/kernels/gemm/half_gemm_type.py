"""What every matrix product on activation halves has in common: arguments, reference, error bound, accuracy. A kernel says the
launch, the emission and how its sums are rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, update, write
from ptxgen.dsl.kernel_type import HalfForm, Work
from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL, Format
from ptxgen.kernels.accuracy import OUTLIER, UNIT, gamma, with_outlier
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.quantize.activation_halves import STEPS, SUMMED, WINDOW, arrays, pack, sums_of, values, windows_of
from ptxgen.kernels.shape import require
from ptxgen.types import F32, U8

IN_HALVES: dict[str, Format] = {format.id: format for format in ALL.values() if format.half_run}
"""The formats with integers in f16 by what kernel names start with."""

CATALOGUED = tuple(IN_HALVES[id] for id in ("q4k", "q5k", "q6k", "q6k_aligned"))
"""The formats that have these kernels in the catalogue. Of others a kernel is made by its class."""

PRODUCT_ROUNDINGS = 8
"""Roundings beside those of sums: the reference's weight (3), the products with the scales of weights (2) and activations, and
what parts of a product are left out where an integer has a low register (2: both are under 2^-11 of what they belong to)."""

SUM_UNITS = 3
"""What a sum of n products by tensor cores is off by, in units of 2^-24 of the sum of their magnitudes for each of them:
whether they round as the emulator or cut as GPUs do (tests/ptxgen/isa/fragments.py)."""

# Rows of the matrix that `accuracy` measures on.
MEASURED_ROWS = 64


def of_windows(windows: slice, count: int) -> slice:
    """The elements of these windows where each has `count`."""
    return slice(*(None if end is None else end * count for end in (windows.start, windows.stop)))


@dataclass(frozen=True)
class HalfGemmType(GemvType):
    """Y = X W^T on activation halves (ptxgen/kernels/quantize). y: f32[m, n]; w: u8[n, row_bytes], rows of k quantised values;
    halves, scales: as pack_halves writes them for m rows of k activations, in `parts` f16 each and the order that the format
    asks for. Where it is `onto` something Y += X W^T, in place, with the bits of the product and residual_add."""

    family: ClassVar[str] = "gemm"
    emulator_bits: ClassVar[bool] = False
    m: int = field(kw_only=True)
    parts: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.format.half_run:
            raise ArgumentError(f"{self.format} has no integers in f16; formats that have: {', '.join(IN_HALVES)}")
        require(self, "m")
        require(self, "parts", high=2)

    @property
    def activation_halves(self) -> HalfForm:
        return HalfForm(self.parts, self.format.half_run)

    @property
    def onto(self) -> bool:
        """Whether the product is added to what y holds."""
        return False

    @property
    def batch(self) -> tuple[int, ...]:
        return (self.m,)

    @property
    def windows(self) -> int:
        """Windows of a row, the last of which may be partial."""
        return windows_of(self.k)

    def batched(self, m: int) -> tuple[()]:
        return ()

    def signature(self) -> Signature:
        return {
            "y": update(F32, self.m, self.n) if self.onto else write(F32, self.m, self.n),
            "w": read(U8, self.n, self.format.row_bytes(self.k), constant=True),
            **arrays(self.m, self.k, self.activation_halves, "in"),
        }

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        product = super().reference(**arguments)["y"]
        return {"y": arguments["y"].astype("f8") + product if self.onto else product}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        """That of the product, and with a residual the rounding of one more addition."""
        bound = self._product_bound(arguments)
        if self.onto:
            bound = bound + UNIT * (np.abs(self.reference(**arguments)["y"]) + bound)
        return {"y": bound}

    def _product_bound(self, arguments: Mapping[str, Any], windows: slice = slice(None)) -> NDArray[np.float64]:
        """gamma(chain) * sum (|w_i| + 2 M) |x_i| over some windows, where M is the largest minimum a block can have. Minima are
        multiplied with sums of 16 activations, which were rounded on their own: M for each unit that they differ from the sums
        of the activations that halves stand for."""
        weights, x = self._in_float64(arguments)
        values, summed = of_windows(windows, WINDOW), of_windows(windows, STEPS)
        minima = self.format.largest_minima(arguments["w"])
        magnitudes = np.abs(weights) + 2 * minima
        bound = gamma(self.chain + PRODUCT_ROUNDINGS) * (np.abs(x)[:, values] @ magnitudes[:, values].T)
        sums = np.zeros((self.m, self.windows * STEPS))
        sums[:, : self.k // SUMMED] = x.reshape(self.m, -1, SUMMED).sum(axis=2)
        off = np.abs(sums_of(arguments["halves"], arguments["scales"]) - sums)[:, : self.k // SUMMED]
        of_sums = off[:, summed] @ minima[:, ::SUMMED][:, summed].T
        within: NDArray[np.float64] = bound + of_sums + np.finfo(np.float32).tiny
        return within

    def _in_float64(self, arguments: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        x = values(arguments["halves"], arguments["scales"], self.activation_halves, self.k)
        return self.format.dequantize(arguments["w"]).astype("f8"), x

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """As of f32 activations, and their halves."""
        inputs = super().inputs(rng)
        if self.onto:
            inputs["y"] = rng.standard_normal(inputs["y"].shape).astype(np.float32)
        return inputs | pack(inputs.pop("x"), self.activation_halves)._asdict()

    def accuracy(self, rng: np.random.Generator) -> dict[str, float]:
        """The root mean square error of y against f32 activations, relative to that of y: for normal activations, and with one
        channel at OUTLIER times their root mean square. What a kernel rounds beyond its reference is in `tolerance`."""
        weights = self.format.dequantize(self.format.random_blocks(rng, MEASURED_ROWS, self.k)).astype("f8")
        errors = {}
        for situation, channel in (("normal activations", 1.0), (f"one channel at {OUTLIER:g} x rms", OUTLIER)):
            x = with_outlier(rng, 1, self.k, channel=channel)
            exact = weights @ x[0].astype("f8")
            halves = pack(x, self.activation_halves)
            error = weights @ values(*halves, self.activation_halves, self.k)[0] - exact
            errors[situation] = float(np.sqrt(np.mean(error**2) / np.mean(exact**2)))
        return errors

    def work(self) -> Work:
        packed = sum(array.nbytes for array in arrays(self.m, self.k, self.activation_halves, "in").values())
        weights = self.n * self.format.row_bytes(self.k)
        results = self.m * self.n
        added = results if self.onto else 0
        return Work(flops=2 * results * self.k + added, bytes=weights + packed + F32.bytes * (results + added))
