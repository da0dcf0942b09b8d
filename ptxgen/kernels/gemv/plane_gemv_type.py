"""What every matrix-vector kernel on int8 planes of activations has in common: arguments, reference, error bound, accuracy,
sample cases, and the sum of a fragment. A strategy says the launch, the emission and how long its chains of additions are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS, REPACKED, Format, RepackedFormat, find
from ptxgen.kernels.accuracy import gamma, product_errors
from ptxgen.kernels.gemv.fragments import Fragments
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.quantize.int8_planes import BLOCK, LARGEST, quantize, values
from ptxgen.kernels.shape import require

G = TypeVar("G", bound="Int8GemvType")

PACKED: dict[str, Format] = {format.id: format for format in FORMATS.values() if format.packed_width}
"""The formats of files with packed codes by what kernel names start with."""

PACKED_WITH_REPACKED: tuple[Format, ...] = (*PACKED.values(), *(format for format in REPACKED.values() if format.packed_width))
"""These, and those that weights are given when they are loaded: the formats of the kernels that the executor uses by itself."""

# Roundings beside the additions: the reference's weight (3), scale, product of scales, integer to f32.
PRODUCT_ROUNDINGS = 6

# More of them with three planes. The sum of a run's products is 256 h + c with |c| < 2^20. If |h| < 2^24, then h is exact in
# f32, and as before only the sum is rounded. Else h is rounded, too, which is off by 256 |h| u <= |256 h + c| u (1 + 2^-11).
# The sum of a block's integers has up to 28 bits and is rounded once more; with fewer planes it is exact.
THIRD_DIGIT_ROUNDINGS = 2

# Formats whose sample shapes have three planes, too: with minima for whole blocks of activations (Q4_K) and for parts (Q4_1),
# and without (Q6_K, whose scales are finer than a block, and Q8_0, whose codes have all 8 bits).
SAMPLED_WITH_THREE = ("Q4_K", "Q4_1", "Q6_K", "Q8_0")


def runs(format: Format) -> int:
    """The most runs of a fragment that are added, with or without a minimum: those of neighbours with one scale."""
    a_row = -(-format.packed_width // format.scale_values)
    return format.packed_depth * a_row * (2 if format.has_minimum else 1)


def a_step_and_more(format: Format) -> int:
    """Values of a row of a whole step of a warp, and a partial one of a block."""
    return Fragments(format, format.block).values + format.block


def relative_bound(chain: int, digits: int) -> float:
    """What a result may be off by, relative to the sum of the sizes of its products, where a chain of so many additions is the
    longest: see `DigitGemvType.tolerance`."""
    return gamma(chain + PRODUCT_ROUNDINGS + (THIRD_DIGIT_ROUNDINGS if digits == 3 else 0))


@dataclass(frozen=True)
class Int8GemvType(GemvType):
    """y = W x on int8 planes of activations (see kernels/quantize). y: f32[n]; w: u8[n, row_bytes], rows of k quantised values;
    digits: s8[1, digits, k], scales: f32[1, k / 32] and sums: s32[1, k / 32] stand for x: q8_quantize makes them for
    `digits=1`, q16_quantize for 2, q24_quantize for 3."""

    digits: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.format.packed_width:
            raise ArgumentError(f"{self.format} has no packed 8-bit codes; formats that have: {', '.join(PACKED)}")
        require(self, "k", multiple=max(self.format.block, BLOCK))
        require(self, "digits", high=max(LARGEST))

    @property
    def activation_planes(self) -> int:
        return self.digits

    @property
    def activation_rows(self) -> int:
        """Rows of activations."""
        return prod(self.batch)

    @property
    def fragments(self) -> Fragments:
        """How a warp goes along a row."""
        return Fragments(self.format, self.k)

    @property
    def runs(self) -> int:
        """See `runs`."""
        return runs(self.format)

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        """gamma(chain) * sum (|w_i| + 2 M) |x_i|, where M is the largest minimum a block can have: sums of codes and of
        minima are exact integers, so only their combination in f32 rounds."""
        weights, x = self._in_float64(arguments)
        sizes = np.abs(weights) + 2 * self.format.largest_minima(arguments["w"])
        return {"y": self.relative_bound * (np.abs(x) @ sizes.T) + np.finfo(np.float32).tiny}

    @property
    def relative_bound(self) -> float:
        """What a result may be off by, relative to the sum of the sizes of its products; see `tolerance`."""
        return relative_bound(self.chain, self.digits)

    def _in_float64(self, arguments: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        x = values(arguments["digits"], arguments["scales"]).reshape(*self.batch, self.k)
        return self.format.dequantize(arguments["w"]).astype("f8"), x

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """As of f32 activations, and their planes."""
        inputs = super().inputs(rng)
        return inputs | quantize(inputs.pop("x").reshape(-1, self.k), self.digits)._asdict()

    def accuracy(self, rng: np.random.Generator) -> dict[str, float]:
        """The root mean square error of y against f32 activations, relative to that of y: see product_errors. What a kernel
        rounds beyond its reference is in `tolerance`."""
        return product_errors(rng, self.format, self.k, self._rounded)

    def _rounded(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        digits = quantize(x, self.digits)
        return values(digits.digits, digits.scales)

    @classmethod
    def cases(cls: type[G], **fixed: Any) -> Iterator[G]:
        format = find(fixed["format"])
        size = max(format.block, BLOCK)
        if not format.common:
            yield cls(k=a_step_and_more(format), n=3, digits=3, **cls._narrow(), **fixed)
            return
        yield cls(k=2048, n=19, **fixed)  # Llama 1B, n cut down to a few rows that no block of threads divides
        if isinstance(format, RepackedFormat):
            yield cls(k=19 * size, n=7, digits=3, **cls._narrow(), **fixed)  # what else there is its native format has
            return
        yield cls(k=11 * size, n=9, digits=1, **cls._narrow(), **fixed)
        yield cls(k=18944, n=1, **cls._narrow(), **fixed)  # Qwen2.5 7B: a partial step after a loop
        if format.name in SAMPLED_WITH_THREE:
            yield cls(k=19 * size, n=7, digits=3, **cls._narrow(), **fixed)

    @classmethod
    def _narrow(cls) -> dict[str, Any]:
        """Settings of a strategy that make small blocks of threads, for cases."""
        return {}
