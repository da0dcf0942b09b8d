"""The GGML types that our kernels multiply with in place of the plugin's."""

from __future__ import annotations

from typing import Final

from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS

NAMES: Final = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
)  # fmt: skip
"""Those of the plugin's quantised types that are common in ptxgen (ptxgen.formats.COMMON). IQ1, IQ2 and IQ3 are not; matrices
of floats the plugin gives to PyTorch."""

FORMAT_OF: Final = {number: name for name in NAMES if (number := FORMATS[name].ggml_type) is not None}
"""By type id, as GGUF files and the plugin have it."""


def format_of(quant_type: int) -> str:
    """The format's name. ArgumentError for any other type."""
    name = FORMAT_OF.get(int(quant_type))
    if name is None:
        types = ", ".join(f"{name} ({number})" for number, name in FORMAT_OF.items())
        raise ArgumentError(
            f"no kernel of ptxgen multiplies with weights of GGML type {int(quant_type)}; allowed: {types}. "
            'install(others="plugin") leaves other types to the plugin'
        )
    return name
