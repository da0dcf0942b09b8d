"""`Value`: a typed register as a kernel author sees it. Its operators write instructions; nothing is computed in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol, cast

from ptxgen.dsl.refusals import OfTheKernel
from ptxgen.errors import AuthorError, Location, TypeMismatch
from ptxgen.isa.operands import Register
from ptxgen.types import PRED, DType, Kind

Number = int | float


class _Writer(Protocol):
    """What the operators of a value need of the builder (core.py)."""

    def op(self, name: str, *operands: Any) -> Value: ...
    def compare(self, relation: str, a: Value | Number, b: Value | Number) -> Value: ...
    def assign(self, variable: Value, value: Value | Number) -> Value: ...
    def convert(self, value: Value | Number, type: DType) -> Value: ...
    def where(self) -> Location: ...


def _written(name: str, *, reflected: bool = False) -> Callable[[Value, Value | Number], Value]:
    """The operator that writes the instruction `name`; `reflected` where the register stands on the right."""

    def operator(self: Value, other: Value | Number) -> Value:
        return self.k.op(name, other, self) if reflected else self.k.op(name, self, other)

    return operator


def _of_bits(name: str, symbol: str) -> Callable[[Value, Value | Number], Value]:
    """The same for an operator that floats do not have."""

    def operator(self: Value, other: Value | Number) -> Value:
        try:
            return self.k.op(name, self, other)
        except TypeMismatch:
            self._need(not self.type.is_float, symbol, f"its bits are k.bits(x, B{self.type.bits})")
            raise

    return operator


def _compared(relation: str) -> Callable[[Value, Value | Number], Value]:
    def operator(self: Value, other: Value | Number) -> Value:
        return self.k.compare(relation, self, other)

    return operator


def _refused(operator: str, plain: str) -> Callable[[Value, object], NoReturn]:
    """Python would bind the name to a new register, and a loop would never see it: silently wrong, so it is an error."""

    def refuse(self: Value, other: object) -> NoReturn:
        raise AuthorError(
            f"`{operator}` would make a new register and leave {self.register} ({self.type}) as it is",
            self.k.where(),
            f"write `x @= x {plain} y` to change the register, `y = x {plain} z` to make another",
        )

    return refuse


class Value(OfTheKernel):
    """A register of the kernel being written. Immutable but for `@=`, which writes the register again."""

    __slots__ = ("k", "register")

    def __init__(self, k: _Writer, register: Register) -> None:
        self.k = k
        self.register = register

    @property
    def type(self) -> DType:
        """The PTX type of the register."""
        return self.register.type

    def __repr__(self) -> str:
        return f"{self.register}: {self.type}"

    __add__ = __radd__ = _written("add")
    __sub__, __rsub__ = _written("sub"), _written("sub", reflected=True)
    __mul__ = __rmul__ = _written("mul")
    __and__ = __rand__ = _of_bits("and", "&")
    __or__ = __ror__ = _of_bits("or", "|")
    __xor__ = __rxor__ = _of_bits("xor", "^")
    __lshift__, __rshift__ = _of_bits("shl", "<<"), _of_bits("shr", ">>")
    __lt__, __le__, __gt__, __ge__ = map(_compared, ("lt", "le", "gt", "ge"))

    def __truediv__(self, other: Value | Number) -> Value:
        """Floats, correctly rounded (div.rn)."""
        self._need(self.type.is_float, "/", "integers divide with //")
        return self.k.op("div", self, other)

    def __rtruediv__(self, other: Number) -> Value:
        self._need(self.type.is_float, "/", "integers divide with //")
        return self.k.op("div", other, self)

    def __floordiv__(self, other: Value | Number) -> Value:
        """Integers, toward zero as PTX does; a power of two becomes a shift."""
        self._need(self.type.is_integer, "//", "floats divide with /")
        if isinstance(other, int) and not self.type.is_signed and other > 0 and other & (other - 1) == 0:
            return self if other == 1 else self >> (other.bit_length() - 1)
        return self.k.op("div", self, other)

    def __mod__(self, other: Value | Number) -> Value:
        self._need(self.type.is_integer, "%", "floats have no remainder instruction")
        if isinstance(other, int) and not self.type.is_signed and other > 0 and other & (other - 1) == 0:
            return self & (other - 1)
        return self.k.op("rem", self, other)

    def __rfloordiv__(self, other: Number) -> Value:
        self._need(self.type.is_integer, "//", "floats divide with /")
        return self.k.op("div", other, self)

    def __rmod__(self, other: Number) -> Value:
        self._need(self.type.is_integer, "%", "floats have no remainder instruction")
        return self.k.op("rem", other, self)

    def __invert__(self) -> Value:
        try:
            return self.k.op("not", self)
        except TypeMismatch:
            self._need(not self.type.is_float, "~", f"its bits are k.bits(x, B{self.type.bits})")
            raise

    def __neg__(self) -> Value:
        try:
            return self.k.op("neg", self)
        except TypeMismatch:
            self._need(self.type != PRED, "-", "its opposite is ~x")
            self._need(self.type.kind is not Kind.UNSIGNED, "-", f"write k.s{self.type.bits}(x), or 0 - x, which wraps around")
            raise

    def __rlshift__(self, other: int) -> Value:
        """A constant shifted by the register; the result has the register's type."""
        return self.k.op("shl", self.k.convert(other, self.type), self)

    def __rrshift__(self, other: int) -> Value:
        return self.k.op("shr", self.k.convert(other, self.type), self)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self.k.compare("eq", self, cast("Value | Number", other))

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self.k.compare("ne", self, cast("Value | Number", other))

    __hash__ = object.__hash__

    def __imatmul__(self, other: Value | Number) -> Value:
        """`total @= expression`: write the register again. The only way to change one."""
        self.k.assign(self, other)
        return self

    __iadd__ = _refused("+=", "+")
    __isub__ = _refused("-=", "-")
    __imul__ = _refused("*=", "*")
    __itruediv__ = _refused("/=", "/")
    __ifloordiv__ = _refused("//=", "//")
    __imod__ = _refused("%=", "%")
    __iand__ = _refused("&=", "&")
    __ior__ = _refused("|=", "|")
    __ixor__ = _refused("^=", "^")
    __ilshift__ = _refused("<<=", "<<")
    __irshift__ = _refused(">>=", ">>")

    def __bool__(self) -> bool:
        raise AuthorError(
            f"{self.register} ({self.type}) has no truth value while the kernel is being written",
            self.k.where(),
            "branch with `with k.when(condition):`, choose with k.select(condition, a, b), combine predicates with & | ~",
        )

    def _need(self, holds: bool, operator: str, instead: str) -> None:
        if not holds:
            raise AuthorError(f"{self.type} has no operator {operator}", self.k.where(), instead)
