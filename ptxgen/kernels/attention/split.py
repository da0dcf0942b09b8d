"""How the positions of a sequence are dealt out to blocks; what these hand over to a reduction, its reference and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Direction, Signature
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.attention.group_tiles import GroupTiles
from ptxgen.kernels.shape import require_of
from ptxgen.types import F32

MOST_SPLITS: Final = 256
LEAST_ALLOWED: Final = (32, 64, 128, 256)
HANDED: Final = ("peaks", "totals", "weighted")
"""The arrays of `partials`."""


@dataclass(frozen=True)
class SequenceSplit:
    """How the positions of a row are dealt out: to at most `splits` parts of equal size, a multiple of `least` positions. The
    size follows from the row's own length, on the device, so that one launch serves every length and a row has the same bits
    whatever the other rows are."""

    splits: int
    least: int

    def size(self, length: int) -> int:
        """Positions of a part of a row of `length`; the last part may have fewer."""
        each = -(-length // self.splits)
        return -(-each // self.least) * self.least

    def device_size(self, length: Value) -> Value:
        """The same in a register."""
        each = (length + (self.splits - 1)) // self.splits
        return (each + (self.least - 1)) // self.least * self.least

    def slices(self, length: int) -> list[slice]:
        """The positions of each part of a row of `length`, which may be 0."""
        return [slice(at, min(at + self.size(length), length)) for at in range(0, length, self.size(length) or 1)]


def partials(rows: int, heads: int, splits: int, head_dim: int, direction: Direction) -> Signature:
    """What the two kernels hand over, of each row, head and part: the largest score, the sum of the exponentials of the scores
    less the largest, and the sum of V weighted by these. Only the parts of a row that have positions are written and read. A
    part that needs a page or a slot that does not exist has -infinity, 0 and nothing in their place."""
    return {
        "peaks": Array(F32, (rows, heads, splits), direction, partial=True),
        "totals": Array(F32, (rows, heads, splits), direction, partial=True),
        "weighted": Array(F32, (rows, heads, splits, head_dim), direction, partial=True),
    }


def softmax_part(scores: NDArray[Any], values: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    """What `partials` tells, of one part: scores: f64[heads, positions], values: f64[heads, positions, head_dim]."""
    peaks = scores.max(axis=1)
    weights = np.exp(scores - peaks[:, None])
    return {"peaks": peaks, "totals": weights.sum(axis=1), "weighted": np.einsum("hl,hld->hd", weights, values)}


def part_bounds(
    tiles: GroupTiles, scores: NDArray[Any], errors: NDArray[Any], values: NDArray[Any], hidden: int = 0
) -> dict[str, NDArray[np.float64]]:
    """How far these may be off by rounding; errors: f64[heads, positions], that of each score in units of 2^-24. hidden:
    how many positions a part may have besides, which are not seen.

    The weight of a position is a product of exponentials, one for itself, one for each tile after it and one for the merge:
    2 units each and one for the product, and the roundings of their arguments, which add up to the distance of the score
    from the largest. That largest score is off, too, and part of every weight. The weighted sum and the sum of the weights
    add a unit for each addition (the weights: one for each tile, 5 of the tree over the lanes and as many at most as there
    are warps). A tenth more covers the second order.
    """
    rounds = -(-(scores.shape[1] + hidden) // (tiles.tile * tiles.warps))
    peak, worst = scores.max(axis=1, keepdims=True), errors.max(axis=1, keepdims=True)
    weights = np.exp(scores - peak)
    units = errors + worst + 3 * (rounds + 2) + peak - scores
    bounds = {
        "peaks": worst[:, 0],
        "totals": np.sum(weights * (units + rounds + 5 + tiles.warps), axis=1),
        "weighted": np.einsum("hl,hld->hd", weights * (units + tiles.sum_units(rounds)), np.abs(values)),
    }
    return {name: 1.1 * UNIT * bound + 2.0**-140 for name, bound in bounds.items()}


def require_split(kernel: KernelType, split: SequenceSplit) -> None:
    """Raise ArgumentError unless the kernels know such a split."""
    require_of(kernel.name, split, "splits", high=MOST_SPLITS)
    if split.least not in LEAST_ALLOWED:
        raise ArgumentError(f"{kernel.name}: least must be one of {LEAST_ALLOWED}, got {split.least!r}")
