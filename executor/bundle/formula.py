"""Whole numbers that remember how they were computed, so that a manifest can say why a size is what it is. Knows no kernel."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ptxgen.dsl.parts import KernelPart

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    D = TypeVar("D", bound=DataclassInstance)

LONGEST: Final = 120
"""Characters; a number whose formula would be longer is just a number. Launch geometry has formulae of a few names."""
_SUM, _PRODUCT, _NEGATIVE, _ATOM = range(4)


def _operators(sign: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The method of an operator, and that for a number on the right of another one."""
    return (lambda self, other: _binary(self, other, sign)), (lambda self, other: _binary(other, self, sign))


class TracedInt(int):
    """An int with a formula: names, numbers, + - * // % and brackets, with Python's meaning (// and % round down).

    Equal to, hashed as and printed as the plain number, so a kernel of traced sizes is the kernel of these sizes. Any operation
    but those five gives a plain number.
    """

    formula: str
    _binds: int

    def __new__(cls, value: int, formula: str, binds: int = _ATOM) -> TracedInt:
        number = super().__new__(cls, value)
        number.formula = formula
        number._binds = binds
        return number

    def __neg__(self) -> Any:
        return _unless_long(-int(self), f"-{_within(self, _NEGATIVE)}", _NEGATIVE)

    __add__, __radd__ = _operators("+")
    __sub__, __rsub__ = _operators("-")
    __mul__, __rmul__ = _operators("*")
    __floordiv__, __rfloordiv__ = _operators("//")
    __mod__, __rmod__ = _operators("%")


def formula_of(value: int) -> str:
    """How the number was computed; a plain number is its own formula."""
    return value.formula if isinstance(value, TracedInt) else str(value)


def traced(record: D) -> D:
    """The dataclass with every whole number replaced by one that is named as its field."""
    numbers = {f.name: value for f in fields(record) if type(value := getattr(record, f.name)) is int}
    return replace(record, **{name: TracedInt(value, name) for name, value in numbers.items()})


def plain(record: D) -> D:
    """The dataclass with its numbers without formulae."""
    values: dict[str, Any] = {f.name: getattr(record, f.name) for f in fields(record) if f.init}
    found = {name: _plain(value) for name, value in values.items()}
    return replace(record, **{name: value for name, value in found.items() if value is not values[name]})


def _plain(value: Any) -> Any:
    """A value of a field: a number, or the parts of a kernel (ptxgen/dsl/parts.py), without formulae."""
    if isinstance(value, KernelPart):
        return plain(value)
    return int(value) if isinstance(value, TracedInt) else value


_COMPUTED: Final[dict[str, tuple[int, Callable[[Any, Any], Any]]]] = {
    "+": (_SUM, operator.add),
    "-": (_SUM, operator.sub),
    "*": (_PRODUCT, operator.mul),
    "//": (_PRODUCT, operator.floordiv),
    "%": (_PRODUCT, operator.mod),
}
# What changes nothing when it stands on that side: sizes are products and sums that start at 1 and 0.
_NEUTRAL: Final = {("+", 0): "both", ("*", 1): "both", ("-", 0): "right", ("//", 1): "right"}


def _binary(left: Any, right: Any, sign: str) -> Any:
    binds, compute = _COMPUTED[sign]
    if not (isinstance(left, int) and isinstance(right, int)):
        return compute(_number(left), _number(right))
    if _NEUTRAL.get((sign, int(right))) and not isinstance(right, TracedInt):
        return left
    if _NEUTRAL.get((sign, int(left))) == "both" and not isinstance(left, TracedInt):
        return right
    text = f"{_within(left, binds)} {sign} {_within(right, binds + 1)}"
    return _unless_long(compute(int(left), int(right)), text, binds)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, TracedInt) else value


def _unless_long(value: int, formula: str, binds: int) -> Any:
    """The number with its formula, or without one that would be too long to read."""
    return TracedInt(value, formula, binds) if len(formula) <= LONGEST else value


def _within(value: int, least: int) -> str:
    """The formula, in brackets where it binds less than its place asks."""
    if isinstance(value, TracedInt):
        return f"({value.formula})" if value._binds < least else value.formula
    return f"({value})" if value < 0 else str(value)
