"""How far the planes of values that are themselves rounded may be from those of the exact values: the tolerance of kernels that
compute activations and quantise them in one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.quantize.int8_planes import BLOCK, LARGEST, quantize

SMALLEST = 2.0**-149


def plane_bounds(x: NDArray[np.float64], bound: NDArray[np.float64], digits: int) -> dict[str, NDArray[Any]]:
    """How far the digits, scales and sums of any f32 values within `bound` of x may be from those of `quantize(x, digits)`.

    x, bound: f64[rows, n]; `bound` is at least the rounding of x to f32. By intervals: the peak of a block is between the
    largest |x| - bound and the largest |x| + bound, and the scale between these over LARGEST, rounded. An integer rises with
    its value, so it is between those of the two ends of the value, each divided by the end of the scale that brings it farther
    out, rounded twice and clamped; where the scale may be zero it may be any. A sum is between the sums of the ends. A plane
    rises with the integer up to 127 and goes on at -128: where the integers pass that place it may be any, elsewhere it is
    between the planes of the ends. So with a small bound nearly all of the high planes must be exact."""
    low, high, near, far = (
        side.reshape(len(x), -1, BLOCK) for side in (x - bound, x + bound, np.maximum(np.abs(x) - bound, 0), np.abs(x) + bound)
    )
    largest = LARGEST[digits]
    least = np.maximum(near.max(axis=-1, keepdims=True) / largest * (1 - UNIT) - SMALLEST, 0.0)
    most = far.max(axis=-1, keepdims=True) / largest * (1 + UNIT) + SMALLEST
    first = _integers(low, np.where(low < 0, least, most), -largest, largest)
    last = _integers(high, np.where(high > 0, least, most), largest, largest)

    quantised = quantize(x, digits)
    allowed = []
    for place in reversed(range(digits)):
        start, end = ((_rest(edge, place) - 256 * _rest(edge, place + 1)).reshape(x.shape) for edge in (first, last))
        passes = (_rest(first, place + 1) != _rest(last, place + 1)).reshape(x.shape)
        plane = quantised.digits[:, digits - 1 - place].astype(np.int64)
        allowed.append(np.where(passes, np.maximum(127 - plane, plane + 128), np.maximum(end - plane, plane - start)))
    scales = np.maximum(most[..., 0] - quantised.scales, quantised.scales - least[..., 0])
    sums = np.maximum(last.sum(axis=-1) - quantised.sums, quantised.sums - first.sum(axis=-1))
    return {"digits": np.stack(allowed, axis=1), "scales": scales, "sums": sums}


def _integers(values: NDArray[Any], scales: NDArray[Any], unknown: int, largest: int) -> NDArray[np.int64]:
    """The farthest integers of the values; `unknown` where the scale may be zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotients = values / scales
        quotients = quotients + np.sign(unknown) * np.abs(quotients) * UNIT
        integers = np.clip(np.rint(quotients), -largest, largest)
    return np.where(scales > 0, integers, unknown).astype(np.int64)


def _rest(integers: NDArray[np.int64], places: int) -> NDArray[np.int64]:
    """What is left of the integers above their lowest digits: see int8_planes.quantize."""
    for _ in range(places):
        integers = (integers + 128) >> 8
    return integers
