"""Int8 planes of activations, in NumPy: f32 activations rounded per block of 32 to integers of one to three int8 planes, with a
scale and the exact sum of the integers. One plane is GGML's Q8_1. The kernels that make them stand in quantize.py, those that
read them in kernels/gemv."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxgen.arrays import numpy_dtype
from ptxgen.dsl.arguments import Array, Direction
from ptxgen.types import F32, S8, S32

BLOCK = 32
"""Values that share a scale."""

LARGEST = {1: 127, 2: 127 * 256 + 127, 3: (127 * 256 + 127) * 256 + 127}
"""The largest integer, by number of planes. Every plane of the largest is 127, so none ever overflows int8. All are under
2^23, so that f32 holds them exactly."""


class ActivationPlanes(NamedTuple):
    """x ~ scale * integer, where the integer is a (one plane), 256 a + b (two) or 65536 a + 256 b + c (three).

    digits: s8[rows, D, n], the highest plane first; scales: f32[rows, n / 32]; sums: s32[rows, n / 32], of a block's integers,
    which are at most 32 * LARGEST in magnitude, under 2^28."""

    digits: NDArray[Any]
    scales: NDArray[Any]
    sums: NDArray[Any]


def arrays(rows: int, digits: int, n: int, direction: Direction) -> dict[str, Array]:
    """The three arguments by name, for signatures."""
    return {
        "digits": Array(S8, (rows, digits, n), direction),
        "scales": Array(F32, (rows, n // BLOCK), direction),
        "sums": Array(S32, (rows, n // BLOCK), direction),
    }


def quantize(x: NDArray[Any], digits: int) -> ActivationPlanes:
    """The very bits that the kernels make of x: f32[rows, n], n a multiple of 32.

    scale = max |x| / LARGEST, the integer is x / scale rounded to nearest even (both rounded as f32). A block whose scale is
    0, as that of zeros, has integers 0. A block with an infinity or a NaN has that as its scale and integers 0, so whatever is
    computed from it is NaN. Where max |x| < LARGEST * 2^-126 the scale is subnormal, rounded once more for that, and the
    integers are clamped.

    Elsewhere x is within 0.51 scale of scale * integer for one or two planes, and within 0.75 scale for three: there a quotient
    in 2^22..2^23 is first rounded to a multiple of a half, which is off by a quarter at most, and that to an integer, which is
    off by another half. (The peak's quotient, up to a half above LARGEST because the scale is rounded, is clamped.) So three
    planes are off by 0.75 / LARGEST = 1.5 * 2^-24 of the block's peak, where an f32 of its size is off by 2^-24."""
    rows, n = x.shape
    blocks = x.astype(np.float32).reshape(rows, n // BLOCK, BLOCK)
    largest = np.float32(LARGEST[digits])
    # As bits, because NaN is then the largest.
    peak = (blocks.view(np.uint32) & 0x7FFFFFFF).max(axis=-1).view(np.float32)
    with np.errstate(invalid="ignore", divide="ignore", under="ignore", over="ignore"):
        lift = np.where(peak < np.float32(2.0**-60), np.float32(2.0**64), np.float32(1.0))
        scales = peak * lift / largest / lift
        ratio = np.where(scales[..., None] == 0, np.float32(0), np.rint(blocks / scales[..., None]))
    integers = np.clip(np.nan_to_num(ratio, nan=0.0), -largest, largest).astype(np.int32)
    sums = integers.sum(axis=-1, dtype=np.int32)
    rest, parts = integers.reshape(rows, n), []
    for _ in range(digits - 1):
        above = (rest + 128) >> 8
        parts.append(rest - 256 * above)
        rest = above
    return ActivationPlanes(np.stack([rest, *reversed(parts)], axis=1).astype(np.int8), scales, sums)


def unwritten(rows: int, digits: int, n: int) -> dict[str, NDArray[Any]]:
    """The three arguments before a kernel wrote them: what they hold is none of its results. For inputs of tests."""
    outputs = arrays(rows, digits, n, "out")
    return {name: np.full(array.shape, 99, numpy_dtype(array.dtype)) for name, array in outputs.items()}


def values(digits: NDArray[Any], scales: NDArray[Any]) -> NDArray[Any]:
    """The activations that planes stand for: f64[rows, n]."""
    integers = digits[:, 0].astype(np.float64)
    for plane in range(1, digits.shape[1]):
        integers = 256 * integers + digits[:, plane]
    return integers * np.repeat(scales.astype(np.float64), BLOCK, axis=1)
