"""Checks of the shape fields of a kernel type, with messages that name the kernel, the field, the value and what is allowed."""

from __future__ import annotations

from typing import Protocol

from ptxgen.dsl.arguments import is_whole
from ptxgen.errors import ArgumentError, ShapeError
from ptxgen.target import MAX_GRID

MOST_ROWS = MAX_GRID[1]
"""The most rows of a batch where they are the second dimension of the grid."""

LEAST_NORMAL, LARGEST_F32 = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
"""Of f32."""


class Named(Protocol):
    """A kernel, or what stands for one in messages."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


class Widths(Protocol):
    """What has heads of these widths."""

    @property
    def head_dim(self) -> int:
        """Values of a query and of a key."""
        ...

    @property
    def value_dim(self) -> int | None:
        """Those of a row of V, where it has others."""
        ...


class ValueWidth:
    """Base of what has heads whose values may be of another width than their keys: `value_dim`, None where it is the same."""

    @property
    def value_width(self: Widths) -> int:
        """Values of a row of V, and of the result of a head."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def widest(self: Widths) -> int:
        """Values of the wider of both rows."""
        return max(self.head_dim, self.value_dim or 0)


def require(kernel: Named, *names: str, low: int = 1, high: int | None = None, multiple: int = 1) -> None:
    """Raise ShapeError unless each of the fields is an int from `low` to `high` and a multiple of `multiple`."""
    require_of(kernel.name, kernel, *names, low=low, high=high, multiple=multiple)


def require_of(kernel: str, part: object, *names: str, low: int = 1, high: int | None = None, multiple: int = 1) -> None:
    """As `require`, of fields of a part of the kernel of this name."""
    for name in names:
        value = getattr(part, name)
        if not is_whole(value) or value < low or (high is not None and value > high) or value % multiple:
            size = f"{low} or more" if high is None else f"{low}..{high}"
            kind = "an integer" if multiple == 1 else f"a multiple of {multiple}"
            raise ShapeError(kernel, name, value, f"{kind}, {size}")


def require_factor(kernel: Named, *names: str) -> None:
    """Raise ShapeError unless each of the fields is a number above 0 that an f32 holds as a normal one."""
    for name in names:
        value = getattr(kernel, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST_NORMAL <= value <= LARGEST_F32:
            raise ShapeError(kernel.name, name, value, "a number above 0 that f32 holds")


def require_head_dim(kernel: Named, head_dim: int, value_dim: int | None = None) -> None:
    """Raise ShapeError unless these are sizes of heads that the kernels know: 32, a multiple of 8 from 40 to 256, or 512."""
    for name, size in (("head_dim", head_dim), ("value_dim", head_dim if value_dim is None else value_dim)):
        if not is_whole(size) or not (size in (32, 512) or (40 <= size <= 256 and size % 8 == 0)):
            raise ShapeError(kernel.name, name, size, "32, 512 or a multiple of 8, 40..256")


def require_room(kernel: Named, what: str, used: int, most: int, *names: str) -> None:
    """Raise ArgumentError, which names the fields that would help, if so many bytes of shared memory are more than allowed."""
    if used > most:
        smaller = ", ".join(f"{name}={getattr(kernel, name)}" for name in names)
        raise ArgumentError(
            f"{kernel.name}: {what} would take {used} bytes of shared memory, and {most} are allowed; choose a smaller one of "
            f"{smaller}"
        )
