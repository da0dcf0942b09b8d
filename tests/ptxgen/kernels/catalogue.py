"""Every registered kernel with each of its sample cases. Nothing here lists kernels by hand."""

from __future__ import annotations

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.registry import Entry, entries

ENTRIES: list[Entry] = list(entries().values())

CASES: list[KernelType] = list(dict.fromkeys(case for entry in ENTRIES for case in entry.cases()))
