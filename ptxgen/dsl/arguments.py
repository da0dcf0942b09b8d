"""What a kernel takes: arrays in global memory and scalars, and what a launch does with each."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from ptxgen.errors import ArgumentError
from ptxgen.types import U64, DType

Direction = Literal["in", "out", "inout"]


def is_whole(value: object) -> bool:
    """Whether a value is an int; a bool is not one."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Array:
    """A pointer argument: row-major `shape` elements of `dtype` in global memory, the first on an `align`-byte boundary.
    partial: a launch reads or writes only some of them, so the others may hold anything, NaN included. constant: no
    launch that may still run writes it when this one starts, so a dependent kernel may read it before it waits: the
    host wrote it (weights), or later launches do, for later steps (the position of a token). settled: as constant, but that
    the launch itself writes some elements, after its wait, which are none of those that it reads before (a cache, to which each
    token adds a row). zeros: it holds zeros before a launch, which leaves it so. addresses_of: its elements are the addresses
    of the argument of this name on every rank's device, in the order of the ranks (LaunchConfig.ranks), and the kernel has them
    as arrays: `k.arg.NAME[rank]`.
    ArgumentError if it is constant and written, settled or zeros and not both read and written, no constant u64[ranks] of
    addresses, or an extent is no positive integer: even a kernel type without checks refuses such a shape."""

    dtype: DType
    shape: tuple[int, ...]
    direction: Direction = "in"
    align: int = 16
    partial: bool = False
    constant: bool = False
    zeros: bool = False
    addresses_of: str = ""
    settled: bool = False

    def __post_init__(self) -> None:
        if self.constant and self.direction != "in":
            raise ArgumentError(f"an array cannot be constant and {self.direction}; what a launch writes is not constant")
        if self.settled and self.direction != "inout":
            raise ArgumentError(f"an array cannot be settled and {self.direction}; what a launch only reads is constant")
        if self.zeros and self.direction != "inout":
            raise ArgumentError(f"an array of zeros before and after cannot be {self.direction}; a launch updates it")
        # A model's launches have tens of thousands of arrays, whose extents are plain ints: these are known at once.
        if not self.shape or any((type(extent) is not int and not is_whole(extent)) or extent <= 0 for extent in self.shape):
            raise ArgumentError(f"no array has the shape {self.shape}; extents are positive integers")
        if self.addresses_of and (self.dtype != U64 or len(self.shape) != 1 or not self.constant):
            raise ArgumentError(f"the addresses of {self.addresses_of} are a constant u64[ranks], not {self}")

    @property
    def readable_before_wait(self) -> bool:
        """Whether a dependent kernel may read it before it waits."""
        return self.constant or self.settled

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return self.size * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Scalar:
    """A value argument; `low` and `high` bound it (inclusive) where the kernel relies on that."""

    dtype: DType
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return str(self.dtype)


Argument = Array | Scalar
Signature = dict[str, Argument]
"""Arguments in the order of the entry's parameters."""


def read(dtype: DType, *shape: int, align: int = 16, partial: bool = False, constant: bool = False) -> Array:
    """An array that a launch reads."""
    return Array(dtype, shape, "in", align, partial, constant)


def write(dtype: DType, *shape: int, align: int = 16) -> Array:
    """An array that a launch fills."""
    return Array(dtype, shape, "out", align)


def update(
    dtype: DType, *shape: int, align: int = 16, partial: bool = False, zeros: bool = False, settled: bool = False
) -> Array:
    """An array that a launch reads and writes."""
    return Array(dtype, shape, "inout", align, partial, zeros=zeros, settled=settled)


def addresses(of: str, ranks: int) -> Array:
    """Where the argument `of` lies on the device of each rank."""
    return Array(U64, (ranks,), align=8, constant=True, addresses_of=of)
