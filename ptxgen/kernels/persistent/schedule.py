"""Which warp of a persistent kernel multiplies which rows, and in which order: a plan in plain numbers, of which the kernel is
written and that tests can look at. Nothing is decided while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulePart:
    """Rows `first` to `first + rows - 1` of a matrix (counted in the order of its stage) in groups of `height` rows, which a
    warp multiplies together; the last group may have fewer. Group g is that of warp (start + g) modulo the number of warps, so
    that those which have a group less of one part have one more of the next."""

    matrix: int
    first: int
    rows: int
    height: int
    start: int

    @property
    def groups(self) -> int:
        """How many there are."""
        return -(-self.rows // self.height)


def parts_of(rows: Sequence[int], warps: int, highest: int) -> tuple[SchedulePart, ...]:
    """The parts of a stage whose matrices have so many rows, for so many warps that take up to `highest` rows at a time.

    One matrix goes in rounds of groups of `highest` rows, one for each warp; what is left is a round of lower groups, so that
    no warp has more than one row more than the fewest that would do. Several matrices have groups of one height, the lowest
    with which they take the fewest rounds."""
    if len(rows) == 1:
        (n,) = rows
        whole = n // (warps * highest) * warps * highest
        last = -(-(n - whole) // warps)
        pieces = [(0, 0, whole, highest), (0, whole, n - whole, last)] if last < highest else [(0, 0, n, highest)]
        pieces = [piece for piece in pieces if piece[2]]
    else:
        rounds = -(-sum(-(-n // highest) for n in rows) // warps)
        height = next(h for h in range(1, highest + 1) if sum(-(-n // h) for n in rows) <= rounds * warps)
        pieces = [(matrix, 0, n, height) for matrix, n in enumerate(rows)]
    parts: list[SchedulePart] = []
    start = 0
    for matrix, first, n, height in pieces:
        parts.append(SchedulePart(matrix, first, n, height, start))
        start = (start + parts[-1].groups) % warps
    return tuple(parts)
