"""What docs/executor.md shows must work, name every part of the executor, and lead somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import executor
from executor.base.environment import DEBUG, VARIABLES
from tests.executor.api.test_public_names import NAMES
from tests.paths import ROOT

PAGE = ROOT / "docs" / "executor.md"


def session() -> doctest.DocTest:
    """The Python blocks of the page as one session, every line at its own number."""
    lines, inside = [], False
    for line in PAGE.read_text().splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        inside = line == "```python" if fence else inside
    return doctest.DocTestParser().get_doctest("\n".join(lines) + "\n", {}, PAGE.name, str(PAGE), 0)


def shown() -> str:
    return "".join(example.source for example in session().examples)


@pytest.mark.slow
def test_the_executor_page_does_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (name for variable in VARIABLES for name in variable.names):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(DEBUG.name, "0")  # the page changes it, and this test puts it back
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_ONLY_FIRST_FAILURE
    results = doctest.DocTestRunner(optionflags=flags).run(session(), out=said.append)
    assert results.attempted > 100
    assert results.failed == 0, "".join(said)


@pytest.mark.parametrize("row", NAMES)
def test_every_name_of_the_executor_is_in_a_snippet(row: str) -> None:
    missing = [name for name in NAMES[row] if not re.search(rf"\bexecutor\.{name}\b", shown())]
    assert not missing, f"{row}: docs/executor.md shows no {', '.join(missing)}"


@pytest.mark.parametrize("name", [*executor.__all__, "is_massive_activation_outlier", DEBUG.name])
def test_every_class_predicate_and_mode_of_the_executor_is_in_a_snippet(name: str) -> None:
    assert re.search(rf"\b{name}\b", shown())


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
    ],
)
def test_links_lead_to_files_and_headings_that_exist(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", (ROOT / page).read_text()):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(path), f"{page} links to {target}#{anchor}"


def anchors(path: Path) -> set[str]:
    """How headings are called in links, as GitHub makes it of their words."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
