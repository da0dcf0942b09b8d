"""A method of a part as a method of its owner, under the name that it has there: what it does, its signature and its docstring
stand once, at the part."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@overload
def delegate(
    part: str, method: Callable[Concatenate[Any, Parameters], Result], *, doc: str | None = None
) -> Callable[Concatenate[Any, Parameters], Result]: ...


@overload
def delegate(
    part: str, method: Callable[Concatenate[Any, Any, Parameters], Result], first: str, /
) -> Callable[Concatenate[Any, Parameters], Result]: ...


def delegate(part: str, method: Callable[..., Any], *first: str, doc: str | None = None) -> Callable[..., Any]:
    """part: the owner's attribute that holds the part; first: what the method's first argument is for this name; doc: another
    docstring."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return method(getattr(self, part), *first, *arguments, **named)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is None:  # the method has not begun
                _require_arguments(call, self, *arguments, **named)
            raise

    if first:
        signature = inspect.signature(method)
        own, fixed, *others = signature.parameters.values()
        call.__signature__ = signature.replace(parameters=[own, *others])  # type: ignore[attr-defined]
        doc = f"With {fixed.name} {first[0]}: {method.__doc__}"
    call.__doc__ = doc or method.__doc__
    return cast(Callable[..., Any], _Named(call))


class _Named:
    """Puts a function into the class that has it as an attribute, under the name of that attribute."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __set_name__(self, owner: type, name: str) -> None:
        self.function.__module__, self.function.__name__ = owner.__module__, name
        self.function.__qualname__ = f"{owner.__qualname__}.{name}"
        setattr(owner, name, self.function)


def _require_arguments(function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """TypeError, which names the function, unless it takes these arguments."""
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError as error:
        raise TypeError(f"{function.__qualname__}(): {error}") from None
