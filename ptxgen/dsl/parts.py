"""Parts of kernels. A kernel type that is a composition keeps parts, or tuples of parts, in some of its fields (PARTS); the
fields of a part are parameters of the kernel. So a registered name can fix which parts a kernel has, and users set the
parameters of these parts as they set the kernel's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, ClassVar, Final, TypeVar

from ptxgen.errors import ArgumentError

K = TypeVar("K")

IF_CHANGED: Final = {"if_changed": True}
"""Metadata of a field of a part that the parameters of a kernel leave out where it has its default."""

PARTS: Final = {"shown": False, "parts": True}
"""Metadata of a field of a kernel type that holds a part, or a tuple of parts: `field(metadata=PARTS)`."""


@dataclass(frozen=True)
class KernelPart:
    """Base of a part. A subclass is a frozen dataclass; its fields are parameters of the kernel that has the part."""

    summary: ClassVar[str] = ""
    """What the part adds to the summary of a kernel; nothing if empty."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Fields of the kernel that have another default where a registered name fixes this part."""


def parts_fields(cls: type[Any]) -> list[str]:
    """The names of the fields that hold parts."""
    return [one.name for one in fields(cls) if _holds_parts(one)]


def flat(value: Any) -> tuple[Any, ...]:
    """The parts (or the classes of parts) that a field holds."""
    return value if isinstance(value, tuple) else (value,)


def parts_of(kernel: Any) -> list[KernelPart]:
    """The parts of a kernel, in the order of its fields."""
    return [part for name in parts_fields(type(kernel)) for part in flat(getattr(kernel, name))]


def part_parameters(kernel: Any) -> dict[str, Any]:
    """The parameters that the parts of a kernel have."""
    return {one.name: getattr(part, one.name) for part in parts_of(kernel) for one in fields(part)}


def shown_part_parameters(kernel: Any) -> dict[str, Any]:
    """Those that are shown: without fields that are left out where they have their default (IF_CHANGED)."""
    left = {one.name: one.default for part in parts_of(kernel) for one in fields(part) if one.metadata.get("if_changed")}
    return {name: value for name, value in part_parameters(kernel).items() if name not in left or value != left[name]}


def all_fields(kernel: Any) -> list[Field[Any]]:
    """The fields of a kernel that can be set, those of its parts included; not the fields that hold parts."""
    own = [one for one in fields(kernel) if one.init and not _holds_parts(one)]
    return own + [one for part in parts_of(kernel) for one in fields(part)]


def usual_parameters(kernel: Any) -> dict[str, Any]:
    """The parameters of a kernel that have a default, its parts included, with the defaults."""
    usual = {one.name: one.default for one in all_fields(kernel) if one.default is not MISSING}
    for part in parts_of(kernel):
        usual |= part.defaults
    return usual


def with_parameters(kernel: K, **changes: Any) -> K:
    """The kernel with other values of these parameters, whether they are fields of its own or of its parts. ArgumentError for
    values that the kernel refuses."""
    for name in parts_fields(type(kernel)):
        value = getattr(kernel, name)
        parts = tuple(_changed(part, changes) for part in flat(value))
        if parts != flat(value):
            changes[name] = parts if isinstance(value, tuple) else parts[0]
    of_parts = part_parameters(kernel)
    own: Any = kernel
    changed: K = replace(own, **{name: value for name, value in changes.items() if name not in of_parts})
    return changed


def _changed(part: KernelPart, changes: Mapping[str, Any]) -> KernelPart:
    own = {one.name: changes[one.name] for one in fields(part) if one.name in changes}
    return replace(part, **own) if own else part


def fixed_parts(cls: type[Any], fixed: Mapping[str, Any]) -> list[type[KernelPart]]:
    """The classes of the parts that a registered name fixes."""
    return [part for name in parts_fields(cls) if name in fixed for part in flat(fixed[name])]


def fields_of(cls: type[Any], fixed: Mapping[str, Any]) -> list[Field[Any]]:
    """The fields of the class, and those of the parts that a name fixes."""
    return [*fields(cls), *(one for part in fixed_parts(cls, fixed) for one in fields(part))]


def parameters_of(cls: type[Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a user sets where these fields are fixed, with their defaults (MISSING where there is none)."""
    parts = fixed_parts(cls, fixed)
    own = {one.name: one.default for one in fields(cls) if one.init and one.name not in fixed and not _left_out(one)}
    own |= {one.name: one.default for part in parts for one in fields(part)}
    for part in parts:
        own |= {name: value for name, value in part.defaults.items() if name in own}
    return own


def _left_out(one: Field[Any]) -> bool:
    """Whether a field that no name fixes is none of the user's: it holds parts, or is hidden and has a default."""
    return _holds_parts(one) or (one.default is not MISSING and not one.metadata.get("shown", True))


def composed(cls: type[K], fixed: Mapping[str, Any], shape: Mapping[str, Any]) -> K:
    """The kernel of a registered name, which fixes these fields, and of these parameters."""
    given = dict(shape)
    defaults: dict[str, Any] = {}
    held: dict[str, Any] = {}
    for name in parts_fields(cls):
        if name in fixed:
            parts = tuple(part(**_taken(part, given)) for part in flat(fixed[name]))
            held[name] = parts if isinstance(fixed[name], tuple) else parts[0]
    for part in fixed_parts(cls, fixed):
        defaults |= part.defaults
    return cls(**{**defaults, **fixed, **held, **given})


def _taken(part: type[KernelPart], given: dict[str, Any]) -> dict[str, Any]:
    """What is given for the fields of a part, which it takes away. ArgumentError for one that is missing."""
    missing = [one.name for one in fields(part) if one.default is MISSING and one.name not in given]
    if missing:
        raise ArgumentError(f"{part.__name__} needs {', '.join(missing)}")
    return {one.name: given.pop(one.name) for one in fields(part) if one.name in given}


def summary(cls: type[Any], parts: Iterable[KernelPart | type[KernelPart]]) -> str:
    """The first line of the docstring of a kernel type, and what its parts add to it."""
    line = next(iter((cls.__doc__ or "").strip().splitlines()), "")
    added = [part.summary for part in parts if part.summary]
    return "; ".join([line.rstrip("."), *added]) if added else line


def _holds_parts(one: Field[Any]) -> bool:
    return bool(one.metadata.get("parts"))
