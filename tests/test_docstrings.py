"""Every public name has a docstring: modules, classes, functions, methods and properties. One that overrides a documented name
has that one's."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType

import pytest

import executor
import ptxgen
from executor.base.errors import MissingExtra


def modules() -> Iterator[ModuleType]:
    for package in (ptxgen, executor):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                with suppress(MissingExtra):  # a part that CI does not install
                    yield importlib.import_module(module.name)


def undocumented(module: ModuleType) -> list[str]:
    """The public names that a module defines and nothing describes."""
    faults = [] if (module.__doc__ or "").strip() else ["the module"]
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value) and not inspect.getdoc(value):
            faults.append(name)
        if inspect.isclass(value):
            generated = f"{name}("  # what a dataclass says of itself
            if not value.__doc__ or value.__doc__.startswith(generated):
                faults.append(name)
            faults += [f"{name}.{member}" for member in vars(value) if not member.startswith("_") and bare(value, member)]
    return faults


def bare(owner: type, member: str) -> bool:
    """Whether a method or property has no docstring, and none of the bases that have it either."""
    value = vars(owner)[member]
    callable_or_property = isinstance(value, property) or inspect.isfunction(getattr(value, "__func__", value))
    return callable_or_property and not any(
        inspect.getdoc(vars(base)[member]) for base in owner.__mro__ if member in vars(base)
    )


@pytest.mark.parametrize("module", list(modules()), ids=lambda module: module.__name__)
def test_public_names_have_docstrings(module: ModuleType) -> None:
    assert undocumented(module) == []
