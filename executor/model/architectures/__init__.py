"""The architectures of models. Each is a module here, whose ARCHITECTURE is all that the others know of it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from executor.model.architecture import Architecture


def _found() -> Mapping[str, Architecture]:
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    found: list[Architecture] = [module.ARCHITECTURE for module in modules]
    return {architecture.name: architecture for architecture in sorted(found, key=lambda one: one.name)}


ARCHITECTURES: Final = _found()
"""By `general.architecture`."""
