"""The value of one register in the 32 lanes of a warp, as LLVM IR: operators and folding of what is known while compiling."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from ptxgen.emulator.emitter import literal, scalar, vector
from ptxgen.isa.algebra import Number
from ptxgen.target import WARP_SIZE
from ptxgen.types import DType, Kind

Constant = int | tuple[int, ...] | None
"""Integer or predicate lanes known while compiling: one for all, one each, or not constant. Integers are held unsigned."""


class Operators(Protocol):
    """What the operators of lanes are made of (bits.py, rounding.py)."""

    def const(self, value: float, type: DType) -> Lanes:
        """The same number in every lane."""
        ...

    def binary(self, operation: str, a: Number, b: object) -> Lanes:
        """add, sub, mul, and, or, xor, or of floats div."""
        ...

    def shift(self, operation: str, a: Lanes, count: object) -> Lanes:
        """shl, lshr or ashr; a count of the width or more gives 0, or the sign."""
        ...

    def compare(self, operation: str, a: Lanes, other: object) -> Lanes:
        """eq, ne, lt, le, gt or ge; on floats false if either is NaN."""
        ...

    def negate(self, a: Lanes) -> Lanes:
        """Floats flip the sign bit, NaN included."""
        ...


class Lanes:
    """A number a lane. `uniform`: `name` is an LLVM scalar, the same in every lane; else it is a vector of 32.
    `loose`: a NaN in it stands for the canonical NaN, whatever its bits."""

    __slots__ = ("algebra", "constant", "loose", "name", "type", "uniform")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, algebra: Operators, type: DType, name: str, uniform: bool, constant: Constant = None, loose: bool = False
    ) -> None:
        self.algebra, self.type, self.name, self.uniform = algebra, type, name, uniform
        self.constant, self.loose = constant, loose

    def __bool__(self) -> bool:
        raise TypeError("a lane value has no truth value while the kernel is being compiled")

    @property
    def llvm_type(self) -> str:
        """What LLVM calls the type of `name`."""
        element = scalar(self.type)
        return element if self.uniform else vector(element)

    def __add__(self, other: Number | float) -> Lanes:
        return self.algebra.binary("add", self, other)

    def __radd__(self, other: float) -> Lanes:
        return self.algebra.binary("add", self.algebra.const(other, self.type), self)

    def __sub__(self, other: Number | float) -> Lanes:
        return self.algebra.binary("sub", self, other)

    def __rsub__(self, other: float) -> Lanes:
        return self.algebra.binary("sub", self.algebra.const(other, self.type), self)

    def __mul__(self, other: Number | float) -> Lanes:
        return self.algebra.binary("mul", self, other)

    def __rmul__(self, other: float) -> Lanes:
        return self.algebra.binary("mul", self.algebra.const(other, self.type), self)

    def __truediv__(self, other: Number | float) -> Lanes:
        return self.algebra.binary("div", self, other)

    def __rtruediv__(self, other: float) -> Lanes:
        return self.algebra.binary("div", self.algebra.const(other, self.type), self)

    def __and__(self, other: Number | int) -> Lanes:
        return self.algebra.binary("and", self, other)

    def __or__(self, other: Number | int) -> Lanes:
        return self.algebra.binary("or", self, other)

    def __xor__(self, other: Number | int) -> Lanes:
        return self.algebra.binary("xor", self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Lanes:
        return self.algebra.binary("xor", self, -1 if self.type.kind is not Kind.PREDICATE else 1)

    def __neg__(self) -> Lanes:
        return self.algebra.negate(self)

    def __lshift__(self, other: Number | int) -> Lanes:
        return self.algebra.shift("shl", self, other)

    def __rshift__(self, other: Number | int) -> Lanes:
        return self.algebra.shift("ashr" if self.type.is_signed else "lshr", self, other)

    def __eq__(self, other: object) -> Lanes:  # type: ignore[override]
        return self.algebra.compare("eq", self, other)

    def __ne__(self, other: object) -> Lanes:  # type: ignore[override]
        return self.algebra.compare("ne", self, other)

    def __lt__(self, other: Number | float) -> Lanes:
        return self.algebra.compare("lt", self, other)

    def __le__(self, other: Number | float) -> Lanes:
        return self.algebra.compare("le", self, other)

    def __gt__(self, other: Number | float) -> Lanes:
        return self.algebra.compare("gt", self, other)

    def __ge__(self, other: Number | float) -> Lanes:
        return self.algebra.compare("ge", self, other)


def constant_lanes(value: Lanes) -> tuple[int, ...] | None:
    """The constant number of each lane."""
    if value.constant is None:
        return None
    return value.constant if isinstance(value.constant, tuple) else (value.constant,) * WARP_SIZE


def signed(value: int, bits: int) -> int:
    """The number that `bits` bits spell in two's complement."""
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def fold(type: DType, result: DType, work: Callable[..., int], *operands: Lanes) -> Constant:
    """`work` on constant operands (signed where `type` is), wrapped to `result`; None if one is not constant."""
    if any(o.constant is None for o in operands):
        return None
    mask = (1 << result.bits) - 1

    def one(*numbers: int) -> int:
        if type.is_signed:
            numbers = tuple(signed(n, type.bits) for n in numbers)
        return work(*numbers) & mask

    same = [o.constant for o in operands if isinstance(o.constant, int)]
    if len(same) == len(operands):
        return one(*same)
    lanes = [constant_lanes(o) or () for o in operands]
    folded = tuple(one(*numbers) for numbers in zip(*lanes, strict=True))
    return folded[0] if len(set(folded)) == 1 else folded


def constant_value(algebra: Operators, type: DType, constant: int | tuple[int, ...]) -> Lanes:
    """A value of constant integer or predicate lanes; costs no instruction."""
    if isinstance(constant, int):
        return Lanes(algebra, type, literal(constant, type), True, constant)
    return Lanes(algebra, type, _spelt(type, constant), False, constant)


@lru_cache(maxsize=1024)
def _spelt(type: DType, constant: tuple[int, ...]) -> str:
    """A constant vector. Those that shuffles are made of come again and again."""
    element = scalar(type)
    return "<" + ", ".join(f"{element} {literal(k, type)}" for k in constant) + ">"
