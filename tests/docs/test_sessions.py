"""What is typed at the Python prompts of the pages gives what stands below it: a page is one session."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

from executor.base.environment import VARIABLES, variable
from tests.docs.pages import PAGES, name, session
from tests.paths import ROOT

SESSIONS = [page for page in PAGES if session(page).examples]
EXTRAS = {"docs/executor/torch.md": "torch"}
"""What a page imports that is an extra, which CI does not install."""


@pytest.fixture
def folder(tmp_path: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which tiny.gguf lies, and an environment that says nothing but where compiled kernels are."""
    for known in [said for each in VARIABLES for said in each.names]:
        monkeypatch.delenv(known, raising=False)
    monkeypatch.setenv(variable("debug").name, "0")  # a page changes it, and this fixture puts it back
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(kernels))
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, ROOT / "examples" / "tiny_model.py", "tiny.gguf"], check=True)
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("folder", "quick_kernels")
@pytest.mark.parametrize("page", SESSIONS, ids=name)
def test_a_page_does_what_it_shows(page: Path) -> None:
    if (extra := EXTRAS.get(name(page))) is not None:
        pytest.importorskip(extra, reason=f"{extra} is not installed")
    said: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_ONLY_FIRST_FAILURE
    results = doctest.DocTestRunner(optionflags=flags).run(session(page), out=said.append)
    assert results.failed == 0, "".join(said)


def test_sessions_are_found_with_the_lines_of_their_pages() -> None:
    assert {"docs/executor.md", "docs/executor/generation.md"} <= set(map(name, SESSIONS))
    page = ROOT / "docs" / "executor.md"
    first = session(page).examples[0]
    assert page.read_text().splitlines()[first.lineno] == f">>> {first.source.rstrip()}"
