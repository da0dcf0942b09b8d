"""How rows of activations are shared out to launches of kernels that take a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

TILE: Final = 8
"""Rows of one launch: the most that a kernel holds sums for while it reads a weight."""


def tiles(m: int) -> Iterator[tuple[int, range]]:
    """How m rows are multiplied by a matrix: launches of so many rows each, and the rows that they start at."""
    whole = m // TILE * TILE
    if whole:
        yield TILE, range(0, whole, TILE)
    if whole < m:
        yield m - whole, range(whole, m, TILE)
