"""Checks of the numbers, names, tokens, shapes and objects that callers pass, one for each kind. A check returns the value as
it is used from then on, or raises ArgumentError: name, value, what is allowed. (Buffers and weights: layers/operands.py.)"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from numbers import Integral, Real
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import quoted
from ptxgen.errors import ArgumentError

Kind = TypeVar("Kind")
Name = TypeVar("Name", bound=str)
LONGEST: Final = 256
"""Bits of an integer that is written out in a message."""


def whole(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """An integer from `low` to `high`; NumPy's are integers, bools and floats are not. An int stays the object that it is."""
    if not _is_whole(value) or (low is not None and value < low) or (high is not None and value > high):
        raise ArgumentError(f"{name} is {described(value)}; allowed: a whole number{_range(low, high)}")
    return value if isinstance(value, int) else int(value)


def number(name: str, value: Any, low: float | None = None, high: float | None = None) -> float:
    """A finite number from `low` to `high`; bools are none."""
    finite = isinstance(value, Real) and not isinstance(value, bool) and _is_finite(value)
    if not finite or (low is not None and value < low) or (high is not None and value > high):
        raise ArgumentError(f"{name} is {described(value)}; allowed: a finite number{_range(low, high)}")
    return float(value)


def one_of(name: str, value: Any, allowed: Collection[Name]) -> Name:
    """One of these names."""
    for choice in allowed:
        if isinstance(value, str) and choice == value:
            return choice
    raise ArgumentError(f"{name} is {described(value)}; allowed: {', '.join(allowed)}")


def tokens(name: str, value: Any, vocab: int) -> list[int]:
    """Token ids from 0 to vocab - 1: any collection of integers, or a NumPy vector of them."""
    if isinstance(value, str | bytes):
        raise ArgumentError(f"{name} is text, {described(value)}; allowed: token ids, which `encode` of a tokenizer gives")
    if not isinstance(value, Iterable) or (isinstance(value, np.ndarray) and value.ndim != 1):
        shape = f" of shape {list(value.shape)}" if isinstance(value, np.ndarray) else ""
        raise ArgumentError(f"{name} is {described(value)}{shape}; allowed: one row of token ids")
    return [token(f"token {at} of {name}", one, vocab) for at, one in enumerate(value)]


def token(name: str, value: Any, vocab: int) -> int:
    """A token id from 0 to vocab - 1."""
    id = whole(name, value)
    if not 0 <= id < vocab:
        raise ArgumentError(f"token id {described(id)} is out of range; the vocabulary has ids 0 to {vocab - 1}")
    return id


def extents(name: str, value: Any, low: int = 1) -> tuple[int, ...]:
    """A shape: whole numbers of at least `low`, or one for a shape of one dimension."""
    if _is_whole(value):
        value = (value,)
    shape = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else None
    if shape is None or not all(_is_whole(extent) and extent >= low for extent in shape):
        text = described(value) if shape is None else f"[{', '.join(map(described, shape))}]"
        raise ArgumentError(f"{name} is {text}; allowed: whole numbers of at least {low}")
    return tuple(extent if isinstance(extent, int) else int(extent) for extent in shape)


def one_shape(given: Sequence[int | Sequence[int]]) -> int | Sequence[int]:
    """The shape that a call was given as n, as n, m or as (n, m), for `extents`; what follows a shape is refused."""
    if len(given) == 1:
        return given[0]
    for extent in given:
        if not isinstance(extent, Integral):
            raise ArgumentError(f"the shape has {described(extent)} in it; allowed: n, or n, m, or (n, m); a type is dtype=...")
    return cast(Sequence[int], given)


def checked(name: str, kind: type, doc: str) -> Any:
    """An attribute of a class that holds an object of one kind: what else is set is refused as by `instance`."""
    held = f"_{name}"

    def hold(owner: Any, value: Any) -> None:
        setattr(owner, held, instance(name, value, kind))

    return property(attrgetter(held), hold, doc=doc)  # read on every step: no Python function


def array(name: str, value: Any) -> NDArray[Any]:
    """An array of the host, from whatever NumPy takes for one."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name} is {described(value)}, which NumPy cannot make an array of: {error}") from error


def numbers(name: str, value: Any) -> NDArray[np.float64]:
    """An array of real numbers."""
    values = array(name, value)
    if values.dtype.kind not in "biuf":
        raise ArgumentError(f"{name} is an array of {values.dtype}; allowed: real numbers")
    return values.astype(np.float64)


def same_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether row-major values of one shape can be read as the expected one: it is the same, or flat. Axes of one element do
    not count: they move no value."""
    if len(shape) == 1:
        return shape[0] == math.prod(expected)
    return [extent for extent in shape if extent != 1] == [extent for extent in expected if extent != 1]


def instance(name: str, value: Any, kind: type[Kind], source: str = "") -> Kind:
    """An object of this class; `source` says what returns one."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} is {described(value)}; allowed: a {kind.__name__}{source and f', which {source} gives'}")
    return value


def described(value: Any) -> str:
    """A value for a message: a number as it is written, text in quotes, of other things the class."""
    if isinstance(value, int) and value.bit_length() > LONGEST:  # Python refuses to write out the longest of them
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        return quoted(value)
    return str(value) if value is None or isinstance(value, Real) else f"a {type(value).__name__}"


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer above the largest float
        return False


def _is_whole(value: Any) -> bool:
    if type(value) is int:  # the likeliest answer, in a tenth of the time
        return True
    return isinstance(value, Integral) and not isinstance(value, bool)


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return "" if high is None else f" of at most {high}"
    return f" of at least {low}" if high is None else f" from {low} to {high}"
