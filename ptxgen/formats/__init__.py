"""GGML weight formats by name and by type id. A format is one file of this package; nothing lists them by hand."""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from ptxgen.errors import ArgumentError
from ptxgen.formats.format import Format as Format
from ptxgen.formats.format import registered

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

FORMATS: dict[str, Format] = registered()
"""Every format by its GGML name, in the order of GGML's type ids."""


def find(name: str | Format) -> Format:
    """The format of this GGML name (`Q4_K`, in any case); a Format is returned as it is. ArgumentError if there is none."""
    if isinstance(name, Format):
        return name
    if name.upper() in FORMATS:
        return FORMATS[name.upper()]
    near = difflib.get_close_matches(name.upper(), FORMATS, n=2)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ArgumentError(f"no format is called {name!r}; {hint}known formats: {', '.join(FORMATS)}")


def of_type(ggml_type: int) -> Format:
    """The format of this GGML type id, as GGUF files hold it. ArgumentError if no format here has it."""
    for format in FORMATS.values():
        if format.ggml_type == ggml_type:
            return format
    types = ", ".join(f"{format.name} ({format.ggml_type})" for format in FORMATS.values())
    raise ArgumentError(f"GGML type {ggml_type} has no format here; known types: {types}")
