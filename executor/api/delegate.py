"""A method of a part as a method of its owner: what it does, its signature and its docstring stand once, at the part."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

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
        return method(getattr(self, part), *first, *arguments, **named)

    if first:
        signature = inspect.signature(method)
        own, fixed, *others = signature.parameters.values()
        call.__signature__ = signature.replace(parameters=[own, *others])  # type: ignore[attr-defined]
        doc = f"With {fixed.name} {first[0]}: {method.__doc__}"
    call.__doc__ = doc or method.__doc__
    return call
