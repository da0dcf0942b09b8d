"""`--set name=value`: the shape of a kernel as words of a command line. What a shape may be is the kernel's own to say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, get_type_hints

from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import Entry

TRUTHS: Final = {"true": True, "false": False, "1": True, "0": False}


def parse_shape(entry: Entry, settings: Iterable[str]) -> dict[str, Any]:
    """The fields of `entry` that words such as `k=4096` name, each as the type that the kernel's class declares.

    Fields of any other type than a number or a truth value are given as text: their class accepts their names. Raises
    ArgumentError for a word that is no setting, a name that is there twice, or a value of another type.
    """
    hints = get_type_hints(entry.type)
    shape: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals and value):
            raise ArgumentError(f"--set {setting} is not of the form name=value")
        if name in shape:
            raise ArgumentError(f"--set {name} is given twice: {shape[name]} and {value}")
        shape[name] = _converted(entry.name, name, value, hints.get(name))
    return shape


def _converted(kernel: str, name: str, value: str, hint: Any) -> Any:
    try:
        if hint is bool:
            return TRUTHS[value.lower()]
        return {int: lambda: int(value, 0), float: lambda: float(value)}.get(hint, lambda: value)()
    except (KeyError, ValueError):
        allowed = {bool: "true or false", int: "a whole number", float: "a number"}[hint]
        raise ArgumentError(f"{kernel}: {name} is {value!r}; it must be {allowed}") from None
