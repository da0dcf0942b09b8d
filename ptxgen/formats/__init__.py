"""GGML weight formats by name and by type id. A format is one file of this package; nothing lists them by hand."""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from ptxgen.errors import ArgumentError
from ptxgen.formats.format import Format as Format
from ptxgen.formats.format import RepackedFormat as RepackedFormat
from ptxgen.formats.format import registered

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

FORMATS: dict[str, Format] = {name: format for name, format in registered().items() if format.ggml_type is not None}
"""Every format of files by its GGML name, in the order of GGML's type ids."""

COMMON: dict[str, Format] = {name: format for name, format in FORMATS.items() if format.common}
"""Those of which every strategy has a registered kernel."""

REPACKED: dict[str, RepackedFormat] = {
    name: format for name, format in registered().items() if isinstance(format, RepackedFormat)
}
"""The formats that weights are given when they are loaded, by name."""

ALL: dict[str, Format] = {**FORMATS, **REPACKED}
"""Both."""


def find(name: str | Format) -> Format:
    """The format of this name (`Q4_K`, in any case); a Format is returned as it is. ArgumentError if there is none."""
    if isinstance(name, Format):
        return name
    if name.upper() in ALL:
        return ALL[name.upper()]
    near = difflib.get_close_matches(name.upper(), ALL, n=2)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ArgumentError(f"no format is called {name!r}; {hint}known formats: {', '.join(ALL)}")


def of_type(ggml_type: int) -> Format:
    """The format of this GGML type id, as GGUF files hold it. ArgumentError if no format here has it."""
    for format in FORMATS.values():
        if format.ggml_type == ggml_type:
            return format
    types = ", ".join(f"{format.name} ({format.ggml_type})" for format in FORMATS.values())
    raise ArgumentError(f"GGML type {ggml_type} has no format here; known types: {types}")
