"""`--set name=value`: the shape of a kernel as words of a command line. What a shape may be is the kernel's own to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from ptxgen.dsl.parts import fields_of
from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import KernelEntry

TRUTHS: Final = {"true": True, "false": False, "1": True, "0": False}
READERS: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "int": (lambda text: int(text, 0), "a whole number"),
    "float": (float, "a number"),
    "bool": (lambda text: TRUTHS[text.lower()], "true or false"),
}
"""How the words of a declared type are read, and what they must be."""


def parse_shape(entry: KernelEntry, settings: Iterable[str]) -> dict[str, Any]:
    """The fields of `entry` that words such as `k=4096` name, each as the type that the kernel's class declares.

    Fields of any other type than a number or a truth value are given as text: their class accepts their names. Raises
    ArgumentError for a word that is no setting, a name that is there twice, or a value of another type.
    """
    declared = _declared(entry)
    shape: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals and value):
            raise ArgumentError(f"--set {setting} is not of the form name=value")
        if name in shape:
            raise ArgumentError(f"--set {name} is given twice: {shape[name]} and {value}")
        shape[name] = _converted(entry.name, name, value, declared.get(name))
    return shape


def known_values(entry: KernelEntry, name: str) -> list[str]:
    """The words that a parameter may be: truth values, all formats, those of the sample shapes where it is another word; none
    of a number."""
    declared = _declared(entry)[name]
    if declared == "bool":
        return ["true", "false"]
    if declared == "Format":
        from ptxgen.formats import FORMATS

        return list(FORMATS)
    if declared in READERS:
        return []
    try:
        return sorted({str(case.parameters()[name]) for case in entry.cases()})
    except Exception:  # a stranger's code: conformance says what is wrong with it
        return []


def _declared(entry: KernelEntry) -> dict[str, Any]:
    """The types that the class declares, and its parts, by field: where None is allowed, too, the other one."""
    types = {one.name: getattr(one.type, "__name__", str(one.type)) for one in fields_of(entry.type, entry.fixed)}
    return {name: type.removesuffix(" | None") for name, type in types.items()}


def _converted(kernel: str, name: str, text: str, declared: Any) -> Any:
    if declared not in READERS:
        return text
    read, allowed = READERS[declared]
    try:
        return read(text)
    except (KeyError, ValueError):
        raise ArgumentError(f"{kernel}: {name} is {text!r}; it must be {allowed}") from None
