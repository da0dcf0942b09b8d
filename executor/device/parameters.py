"""How the arguments of an entry lie in memory: one parameter block a kernel, packed once and patched in place."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from numbers import Integral, Real
from typing import NamedTuple

from ptxgen.dsl.arguments import Array, Scalar, Signature
from ptxgen.errors import ArgumentError
from ptxgen.types import BY_NAME, DType

_FORMATS = {
    "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "s8": "b", "s16": "h", "s32": "i", "s64": "q",
    "b8": "B", "b16": "H", "b32": "I", "b64": "Q", "f16": "e", "f32": "f", "f64": "d",
}  # fmt: skip
_PACKERS = {BY_NAME[name]: struct.Struct("<" + letter) for name, letter in _FORMATS.items()}
_POINTER = struct.Struct("<Q")


class ArrayArgument(NamedTuple):
    """An array of a launch: what its signature says, and the address that it has."""

    name: str
    array: Array
    pointer: int


class ParameterBlock:
    """The parameters of one launch, each at its natural alignment, as the PTX ISA lays out an entry's parameters.

    `pointers` is the address of an array with the address of each parameter, which is what cuLaunchKernel takes.
    """

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._packers: dict[str, tuple[struct.Struct, int]] = {}
        self._arrays = {name: argument for name, argument in signature.items() if isinstance(argument, Array)}
        offset = 0
        for name, argument in signature.items():
            packer = _POINTER if isinstance(argument, Array) else scalar_packer(argument.dtype)
            offset = -(-offset // packer.size) * packer.size
            self._packers[name] = (packer, offset)
            offset += packer.size
        self.size = offset
        self._storage = ctypes.create_string_buffer(max(8, offset))
        base = ctypes.addressof(self._storage)
        offsets = [base + at for _, at in self._packers.values()]
        self._addresses = (ctypes.c_void_p * max(1, len(offsets)))(*offsets)
        self.pointers = ctypes.addressof(self._addresses)

    def set(self, name: str, value: float) -> None:
        """Write a pointer or a scalar that has been checked."""
        packer, offset = self._packers[name]
        packer.pack_into(self._storage, offset, value)

    def has(self, name: str) -> bool:
        """Whether there is one of this name."""
        return name in self._packers

    def moved(self, own: Callable[[int], int]) -> ParameterBlock:
        """A copy in which each array lies at `own` of its address."""
        copy = ParameterBlock(self._signature)
        ctypes.memmove(copy._storage, self._storage, self.size)
        for name, _, pointer in self.arrays:
            copy.set(name, own(pointer))
        return copy

    @property
    def ranks(self) -> int:
        """How many devices the launch reaches: it has addresses of each of them."""
        return max((array.shape[0] for array in self._arrays.values() if array.addresses_of), default=1)

    def tobytes(self) -> bytes:
        """A copy of the parameters of now."""
        return self._storage.raw[: self.size]

    @property
    def arrays(self) -> tuple[ArrayArgument, ...]:
        """The arrays at the pointers of now."""
        return tuple(
            ArrayArgument(name, array, _POINTER.unpack_from(self._storage, self._packers[name][1])[0])
            for name, array in self._arrays.items()
        )


def scalar_packer(dtype: DType) -> struct.Struct:
    """How a scalar of this type is written. Raises ArgumentError for a type that cannot be passed by value."""
    packer = _PACKERS.get(dtype)
    if packer is None:
        raise ArgumentError(f"{dtype} cannot be passed by value; use one of {', '.join(t.name for t in _PACKERS)}")
    return packer


def scalar_fault(scalar: Scalar, value: object) -> str:
    """Why `value` cannot be this argument, or an empty string if it can.

    Integers must be integers (bool is not) within the type and the declared bounds; floats must be numbers, never NaN (no
    kernel has a use for one as an argument, so it is a mistake made earlier), and must not overflow the type.
    """
    dtype = scalar.dtype
    packer = scalar_packer(dtype)
    if dtype.is_float:
        if isinstance(value, bool) or not isinstance(value, Real):
            return f"a {type(value).__name__}; must be a number"
        if value != value:
            return "NaN"
    elif isinstance(value, bool) or not isinstance(value, Integral):
        return f"a {type(value).__name__}; must be an integer"
    low, high = _bounds(scalar)
    if not low <= value <= high:  # type: ignore[operator]  # a Real compares with numbers
        return f"{value}; must be from {low} to {high}"
    try:
        packer.pack(value)
    except (struct.error, OverflowError):
        return f"{value}, which {dtype} cannot hold"
    return ""


def _bounds(scalar: Scalar) -> tuple[float, float]:
    dtype = scalar.dtype
    if dtype.is_float:
        low, high = -math.inf, math.inf
    elif dtype.is_signed:
        low, high = -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    else:
        low, high = 0, (1 << dtype.bits) - 1
    return (low if scalar.low is None else max(low, scalar.low)), (high if scalar.high is None else min(high, scalar.high))
