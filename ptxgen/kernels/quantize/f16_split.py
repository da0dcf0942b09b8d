"""The f16 split of activations, in NumPy: f32 activations as one or two f16 each, in the order in which f16 tensor cores read
them, with a scale for every 256. The kernels that make them stand in pack_f16.py, those that read them in kernels/gemm."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxgen.arrays import numpy_dtype
from ptxgen.dsl.arguments import Array, Direction
from ptxgen.dsl.kernel_type import HalfForm as HalfForm
from ptxgen.types import F16, F32

WINDOW = 256
"""Values that share a scale."""

TILE = 8
"""Rows that stand side by side: the columns of a tensor core's right operand."""

STEPS = 16
"""Steps of 16 values of a window: what a tensor core multiplies at once. One more step has the sums."""

SUMMED = 16
"""Neighbours that a sum of the last step is of."""

PEAK_EXPONENT = 9
"""Of a window's largest |x| / scale, which is in 512..1024: 16 of them come to 16384 at most, which f16 holds."""

LEAST_SCALE = 2.0**-126
"""The least normal f32: so is its inverse."""


class ActivationF16Split(NamedTuple):
    """x ~ scale * half, or scale * (half + half). m rows of k values have tiles = ceil(m / 8) and windows = ceil(k / 256).

    halves: f16[tiles, windows, 17, parts, 2, 8, 8], by tile, window, step, part, c, g and e = 2 t + u: row 8 tile + g, and lane
    t of a quad. Of step s < 16 the value at 64 t + 4 s + c + 2 u of the window if lane_run is 64, at 16 s + 4 t + c + 2 u if it
    is 4; of step 16 the sum of x / scale over 16 (4 t + c + 2 u) and the 15 places after it. Beyond m and k zeros. Each
    [2, 8, 8] is two core matrices of 128 bytes. scales: f32[m, windows], powers of two."""

    halves: NDArray[Any]
    scales: NDArray[Any]


def tiles_of(m: int) -> int:
    """Tiles of m rows."""
    return -(-m // TILE)


def windows_of(k: int) -> int:
    """Windows of a row of k values."""
    return -(-k // WINDOW)


def arrays(m: int, k: int, form: HalfForm, direction: Direction) -> dict[str, Array]:
    """The two arguments by name, for signatures: those that stand for f32[m, k]."""
    windows = windows_of(k)
    return {
        "halves": Array(F16, (tiles_of(m), windows, STEPS + 1, form.parts, 2, TILE, TILE), direction),
        "scales": Array(F32, (m, windows), direction),
    }


def pack(x: NDArray[Any], form: HalfForm) -> ActivationF16Split:
    """The very bits that the kernels make of x: f32[m, k].

    The scale of a window brings its largest |x| to 512..1024, but is LEAST_SCALE at least, and 1 where all are zero. A window
    with an infinity or a NaN has the largest of these bits as its scale and parts of 0, so whatever is computed from it is NaN.
    x / scale is exact unless it underflows; the first part is the f16 nearest to it, the second that nearest to what is left.

    So x is within 2^-11 |x| or 2^-25 scale of one part, the larger, and of two within 2^-22 |x| or 2^-25 scale, which is 2^-34
    of the window's peak. A sum is of f32 additions, of neighbours first, then of pairs, fours and eights, and taken apart as a
    value is."""
    m, k = x.shape
    blocks = in_windows(x.astype(np.float32))
    # As bits, because NaN is then the largest.
    peak = (blocks.view(np.uint32) & 0x7FFFFFFF).max(axis=-1).view(np.float32)
    scales, usable = scales_of(peak), np.isfinite(peak)
    with np.errstate(invalid="ignore", under="ignore", over="ignore"):
        ratios = np.where(usable[..., None], blocks * (1 / scales)[..., None], np.float32(0.0))
        whole = in_order(ratios, form)
        high = whole.astype(np.float16)
        parts = [high, (whole - high.astype(np.float32)).astype(np.float16)][: form.parts]
    return ActivationF16Split(np.stack(parts, axis=3), scales.reshape(-1, windows_of(k))[:m])


def in_windows(x: NDArray[Any]) -> NDArray[Any]:
    """[m, k] as [tiles, 8, windows, 256], with zeros beyond m and k."""
    m, k = x.shape
    tiles, windows = tiles_of(m), windows_of(k)
    padded = np.zeros((tiles * TILE, windows * WINDOW), x.dtype)
    padded[:m, :k] = x
    return padded.reshape(tiles, TILE, windows, WINDOW)


def scales_of(peak: NDArray[np.float32]) -> NDArray[np.float32]:
    """The scales of windows with these largest |x|."""
    bits = peak.view(np.uint32)
    exponent = np.maximum(bits >> 23, PEAK_EXPONENT + 1) - PEAK_EXPONENT
    finite = np.where(bits == 0, 127, exponent) << 23
    return np.where(np.isfinite(peak), finite, bits).astype(np.uint32).view(np.float32)


def in_order(ratios: NDArray[Any], form: HalfForm) -> NDArray[Any]:
    """[tiles, 8, windows, 256] and its sums as [tiles, windows, 17, 2, 8, 8]: `halves` before they are rounded."""
    shape = ratios.shape[:3]
    sums = ratios.reshape(*shape, WINDOW // SUMMED, SUMMED)
    while sums.shape[-1] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    if form.lane_run == 4:
        steps = ratios.reshape(*shape, STEPS, 4, 2, 2)
    else:
        steps = ratios.reshape(*shape, 4, STEPS, 2, 2).swapaxes(3, 4)
    whole = np.concatenate([steps, sums.reshape(*shape, 1, 4, 2, 2)], axis=3)  # [tile, g, window, step, t, u, c]
    return whole.transpose(0, 2, 3, 6, 1, 4, 5).reshape(shape[0], shape[2], STEPS + 1, 2, TILE, TILE)


def values(halves: NDArray[Any], scales: NDArray[Any], form: HalfForm, k: int) -> NDArray[Any]:
    """The activations that an f16 split stands for: f64[m, k]."""
    (m, windows), tiles = scales.shape, halves.shape[0]
    ratios = halves[:, :, :STEPS].astype(np.float64).sum(axis=3)  # [tiles, windows, step, c, g, e]
    by_lane = ratios.reshape(tiles, windows, STEPS, 2, TILE, 4, 2).transpose(0, 4, 1, 2, 5, 6, 3)
    if form.lane_run == 64:
        by_lane = by_lane.swapaxes(3, 4)
    rows: NDArray[Any] = by_lane.reshape(tiles * TILE, windows, WINDOW)[:m] * scales.astype(np.float64)[..., None]
    return rows.reshape(m, windows * WINDOW)[:, :k]


def sums_of(halves: NDArray[Any], scales: NDArray[Any]) -> NDArray[Any]:
    """The sums of 16 neighbours that an f16 split holds: f64[m, 16 windows], the last ones of zeros past k."""
    (m, windows), tiles = scales.shape, halves.shape[0]
    ratios = halves[:, :, STEPS].astype(np.float64).sum(axis=2)  # [tiles, windows, c, g, e]
    in_order = ratios.reshape(tiles, windows, 2, TILE, 4, 2).transpose(0, 3, 1, 4, 5, 2)
    rows: NDArray[Any] = in_order.reshape(tiles * TILE, windows, WINDOW // SUMMED)[:m] * scales.astype(np.float64)[..., None]
    return rows.reshape(m, windows * (WINDOW // SUMMED))


def unwritten(m: int, k: int, form: HalfForm) -> dict[str, NDArray[Any]]:
    """The two arguments before a kernel wrote them: what they hold is none of its results. For inputs of tests."""
    outputs = arrays(m, k, form, "out")
    return {name: np.full(array.shape, 99, numpy_dtype(array.dtype)) for name, array in outputs.items()}
