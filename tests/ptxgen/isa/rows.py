"""The cases of tests over all instructions. No test."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest

from ptxgen.isa import instructions


def cases(names: Collection[str] | None = None) -> list[Any]:
    """Parameters of a test: these names, or those of all instructions. The last of each chapter of the manual (9.7.1:
    integers) is essential."""
    return list(_cases(names or dict.fromkeys(row.name for row in instructions.ROWS)))


def _cases(names: Collection[str]) -> Iterator[Any]:
    essential = {row.section.rpartition(".")[0]: row.name for row in instructions.ROWS if row.name in names}
    for name in names:
        yield name if name in essential.values() else pytest.param(name, marks=pytest.mark.slow)
