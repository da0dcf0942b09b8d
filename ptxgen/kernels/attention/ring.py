"""Where a position stands in a contiguous cache: in the row of its number, or, where a window hides what is older, in a ring of
rows, of which it takes the one of the position `ring` before it."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.value import Value
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE

P = TypeVar("P", int, Value)


def row_of(position: P, ring: int | None) -> P:
    """The row of a position; ring: how many there are, None if each position has its own."""
    return position if ring is None else position % ring


def rows_of(first: int, stop: int, ring: int | None) -> slice | NDArray[np.int64]:
    """Those of the positions from `first` to `stop`, as NumPy takes them."""
    return slice(first, stop) if ring is None else np.arange(first, stop) % ring


def require_ring(kernel: KernelType, ring: int | None, window: int | None = 1) -> None:
    """Raise ArgumentError unless the ring has whole tiles of 32 rows, and room for the window."""
    if ring is not None:
        require(kernel, "ring", low=window or 1, multiple=WARP_SIZE)
