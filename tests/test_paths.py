"""Every file and folder of this repository that a text names is there: pages, docstrings and comments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES

ROOT = Path(__file__).parents[1]
PATH = re.compile(r"(?<![\w./-])(?:ptxgen|executor|tests|benchmarks|docs|examples|golden)/[\w./*{},-]*[\w*}]")

SOURCES = sorted([*ROOT.glob("ptxgen/**/*.py"), *ROOT.glob("executor/**/*.py")])


def missing(text: str) -> list[str]:
    """The paths in a text at which nothing lies; `{a,b}.py` names two, `*` any, and so does NAME."""
    return [path for path in PATH.findall(text) if not all(any(ROOT.glob(one)) for one in alternatives(path))]


def without_links(text: str) -> str:
    """The text without where its links lead, which starts at the page (tests/docs/test_links.py)."""
    return re.sub(r"\]\([^)\s]*\)", "]", text)


def alternatives(path: str) -> list[str]:
    braces = re.search(r"\{([^{}]*)\}", path)
    if braces is None:
        return [re.sub(r"\b[A-Z]{4,}\b", "*", path)]
    return [whole for part in braces[1].split(",") for whole in alternatives(path.replace(braces[0], part, 1))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_paths_that_a_page_names_are_there(page: Path) -> None:
    assert missing(without_links(page.read_text())) == []


def test_the_paths_that_the_sources_name_are_there() -> None:
    faults = {str(file.relative_to(ROOT)): missing(file.read_text()) for file in SOURCES}
    assert {file: paths for file, paths in faults.items() if paths} == {}


def test_a_path_that_is_not_there_is_found() -> None:
    assert missing("see `executor/launch/{launch,modulus}.py` and ptxgen/isa/rows/*.py.") == [
        "executor/launch/{launch,modulus}.py"
    ]
