"""docs/executor.md and the pages under it name every part of the executor in a snippet that runs."""

from __future__ import annotations

import re
from functools import cache

import pytest

import executor
from executor.base.environment import variable
from tests.docs.pages import session
from tests.executor.api.test_public_names import NAMES
from tests.paths import ROOT


@cache
def shown() -> str:
    pages = [ROOT / "docs" / "executor.md", *(ROOT / "docs" / "executor").glob("*.md")]
    return "".join(example.source for page in pages for example in session(page).examples)


@pytest.mark.parametrize("row", NAMES)
def test_every_name_of_the_executor_is_in_a_snippet(row: str) -> None:
    missing = [name for name in NAMES[row] if not re.search(rf"\bexecutor\.{name}\b", shown())]
    assert not missing, f"{row}: no page of the executor shows {', '.join(missing)}"


@pytest.mark.parametrize("name", [*executor.__all__, "is_massive_activation_outlier", variable("debug").name])
def test_every_class_predicate_and_mode_of_the_executor_is_in_a_snippet(name: str) -> None:
    assert re.search(rf"\b{name}\b", shown())
