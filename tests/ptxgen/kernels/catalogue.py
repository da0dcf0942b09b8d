"""Every registered kernel with each of its sample cases. Nothing here lists kernels by hand."""

from __future__ import annotations

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.formats import FORMATS
from ptxgen.kernels.dequant.dequant_f16 import DequantF16
from ptxgen.kernels.registry import KernelEntry, entries

ENTRIES: list[KernelEntry] = list(entries().values())

CASES: list[KernelType] = list(dict.fromkeys(case for entry in ENTRIES for case in entry.cases()))

RECORDED: list[KernelEntry] = [
    entry for entry in ENTRIES if entry.type is DequantF16 or getattr(entry.fixed.get("format"), "common", True)
]
"""Those whose outputs are recorded: of a format that is not common its weights, and no products with them."""

ALONE: list[KernelType] = [case for case in CASES if case.launch().ranks == 1]
"""Those that one launch on one device is enough for."""


def _representatives() -> frozenset[str]:
    found: dict[object, str] = {}
    for entry in sorted(ENTRIES, key=lambda entry: "m" in entry.given):
        if entry.fixed.get("format") is FORMATS["Q4_K"]:
            found[entry.composition] = entry.name
        found.setdefault(entry.composition, entry.name)
    return frozenset([*found.values(), *(entry.name for entry in ENTRIES if entry.type is DequantF16)])


REPRESENTATIVES = _representatives()
"""The names of one kernel a strategy, which is a composition (that of Q4_K, or the first; of one token if there is one), and
one a format (its dequantisation)."""
