"""Checks of the shape fields of a kernel type, with messages that name the kernel, the field, the value and what is allowed."""

from __future__ import annotations

from typing import Any

from ptxgen.dsl.arguments import is_whole
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ShapeError
from ptxgen.target import MAX_GRID

MOST_ROWS = MAX_GRID[1]
"""The most rows of a batch where they are the second dimension of the grid."""


def require(
    kernel: KernelType, *names: str, low: int = 1, high: int | None = None, multiple: int = 1, part: Any = None
) -> None:
    """Raise ShapeError unless each of the fields, of the kernel or of its `part`, is an int from `low` to `high` and a multiple
    of `multiple`."""
    for name in names:
        value = getattr(kernel if part is None else part, name)
        if not is_whole(value) or value < low or (high is not None and value > high) or value % multiple:
            size = f"{low} or more" if high is None else f"{low}..{high}"
            kind = "an integer" if multiple == 1 else f"a multiple of {multiple}"
            raise ShapeError(kernel.name, name, value, f"{kind}, {size}")
