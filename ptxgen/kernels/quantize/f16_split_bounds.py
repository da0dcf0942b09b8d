"""How far the f16 split of values that are themselves rounded may be from those of the exact values: the tolerance of kernels
that compute activations and pack them in one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.kernel_type import HalfForm
from ptxgen.kernels.accuracy import gamma
from ptxgen.kernels.quantize.f16_split import LEAST_SCALE, STEPS, in_order, in_windows, pack, scales_of

SUM_ADDITIONS = 4
"""Additions that a value goes through on its way into a sum of sixteen."""


def f16_split_bounds(x: NDArray[np.float64], bound: NDArray[np.float64], form: HalfForm) -> dict[str, NDArray[Any]]:
    """How far the f16 parts and scales of any f32 values within `bound` of x may be from those of `pack(x, form)`.

    x, bound: f64[m, k]; `bound` is at least the rounding of x to f32. By intervals: the peak of a window is between the largest
    |x| - bound and the largest |x| + bound, and the scale between those of these two, or 1 if the first is not above zero. A
    ratio is between the ends of its value, each divided by the scale that brings it farther out, a sum between the sums of
    these, rounded. The first part rises with what it stands for. Where it is the same at both ends, the second is between what
    is left of them; elsewhere it may be any that a first part leaves, half a unit in its last place."""
    low, high, near, far = (
        in_windows(side) for side in (x - bound, x + bound, np.maximum(np.abs(x) - bound, 0), np.abs(x) + bound)
    )
    near_peak, far_peak = (side.max(axis=-1).astype(np.float32) for side in (near, far))
    least, most = (scales_of(peak).astype("f8") for peak in (near_peak, far_peak))
    unknown = (near_peak == 0) & (far_peak > 0)
    least, most = np.where(unknown, LEAST_SCALE, least), np.where(unknown, np.maximum(most, 1.0), most)
    low, high = (
        np.clip(side / np.where(outside, least[..., None], most[..., None]), -1024, 1024)
        for side, outside in ((low, low < 0), (high, high > 0))
    )
    start, end = in_order(low, form), in_order(high, form)
    rounded = gamma(SUM_ADDITIONS) * in_order(np.maximum(np.abs(low), np.abs(high)), form)[:, :, STEPS]
    start[:, :, STEPS] -= rounded
    end[:, :, STEPS] += rounded

    packed = pack(x, form)
    parts = packed.halves.astype("f8")
    first, last = start.astype(np.float16), end.astype(np.float16)
    allowed = [np.maximum(last - parts[:, :, :, 0], parts[:, :, :, 0] - first)]
    if form.parts == 2:
        left = parts[:, :, :, 1]
        ends = ((end - last).astype(np.float16) - left, left - (start - first).astype(np.float16))
        any_left = np.spacing(np.maximum(np.abs(first), np.abs(last))).astype("f8") / 2 + np.abs(left)
        allowed.append(np.where(first == last, np.maximum(*ends), any_left))
    m, windows = packed.scales.shape
    between = [side.reshape(-1, windows)[:m] for side in (least, most)]
    scales = np.maximum(between[1] - packed.scales, packed.scales - between[0])
    return {"halves": np.stack(allowed, axis=3), "scales": scales}
