"""Finds kernel types by name: ours, and those of other packages (entry-point group `ptxgen.kernels`)."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from ptxgen.errors import ArgumentError
from ptxgen.kernels.kernel_type import KernelType

K = TypeVar("K", bound=type[KernelType])


@dataclass(frozen=True)
class Entry:
    """A registered name: a class and the fields that the name fixes (`q4k_gemv` fixes the format of a GEMV)."""

    name: str
    type: type[KernelType]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first line of the class's docstring."""
        return (self.type.__doc__ or "").strip().splitlines()[0]

    @property
    def parameters(self) -> dict[str, Any]:
        """The shape fields a user sets, with their defaults (MISSING where there is none)."""
        return {f.name: f.default for f in fields(self.type) if f.init and f.name not in self.fixed}

    def make(self, **shape: Any) -> KernelType:
        """The kernel of this shape. Raises ArgumentError for unknown, missing or impossible values."""
        known = self.parameters
        for name in shape:
            if name not in known:
                raise ArgumentError(f"{self.name} has no parameter {name!r}; it has {', '.join(known) or 'none'}")
        missing = [name for name, default in known.items() if default is MISSING and name not in shape]
        if missing:
            raise ArgumentError(f"{self.name} needs {', '.join(missing)}")
        return self.type(**self.fixed, **shape)

    def cases(self) -> Iterator[KernelType]:
        return self.type.cases(**self.fixed)


_entries: dict[str, Entry] = {}


def register(cls: K) -> K:
    """Class decorator: make a kernel type known under its `name`."""
    add(Entry(str(cls.name), cls))
    return cls


def register_variants(field_name: str, values: Mapping[str, Any]) -> Callable[[K], K]:
    """Class decorator: make a kernel type known under several names, each of which fixes the field `field_name`."""

    def decorate(cls: K) -> K:
        for name, value in values.items():
            add(Entry(name, cls, {field_name: value}))
        return cls

    return decorate


def add(entry: Entry) -> None:
    """Make an entry known; a name taken by another class is an error."""
    taken = _entries.get(entry.name)
    if taken is not None and taken.type is not entry.type:
        raise ArgumentError(f"kernel name {entry.name!r} is taken by {taken.type.__module__}.{taken.type.__qualname__}")
    _entries[entry.name] = entry


def entries() -> dict[str, Entry]:
    """Every registered kernel by name, in alphabetical order."""
    _discover()
    return dict(sorted(_entries.items()))


def find(name: str) -> Entry:
    """The entry of this name; ArgumentError with near names if there is none."""
    _discover()
    if name not in _entries:
        near = difflib.get_close_matches(name, _entries, n=3)
        raise ArgumentError(
            f"no kernel is called {name!r}; " + (f"did you mean {', '.join(near)}?" if near else "see `ptxgen list`")
        )
    return _entries[name]


@cache
def _discover() -> None:
    import ptxgen.kernels as package

    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    for point in entry_points(group="ptxgen.kernels"):
        point.load()
