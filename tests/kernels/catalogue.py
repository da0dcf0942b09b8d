"""Every registered kernel with each of its sample cases. Nothing here lists kernels by hand."""

from __future__ import annotations

from ptxgen.kernels.kernel_type import KernelType
from ptxgen.kernels.registry import entries

CASES: list[KernelType] = list(dict.fromkeys(case for entry in entries().values() for case in entry.cases()))

CANONICAL: list[KernelType] = [next(iter(entry.cases())) for entry in entries().values()]
"""The first case of each, whose text is kept in golden/."""
