"""What an error or a page says to install is there: an extra of pyproject.toml, or a package that the plain install has."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES
from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
REQUIRED = {re.split(r"[<>=\[]", one)[0] for one in PROJECT["dependencies"]}
SOURCES = [path for folder in ("ptxgen", "executor", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
NAMED = re.compile(r"(?:ptxgen|[\"' ]\.)\[(\w+(?:,\w+)*)\](?=[\"'`])")
"""What stands in brackets behind the project's name, or behind the folder that is installed."""
ADVICE = re.compile(r"pip install ([^`'\"\n]*)(?:(['\"])ptxgen\[(\w+)\]\2)?")


def extras(text: str) -> set[str]:
    """The extras that a text names."""
    return {name for names in NAMED.findall(text) for name in names.split(",")}


def advised(path: Path) -> Iterator[tuple[str, str]]:
    """What a module's texts say to install: packages, or an extra."""
    text = path.read_text()
    package = re.search(r'^PACKAGE.*= "([\w-]+)"', text, re.MULTILINE)
    for match in ADVICE.finditer(text):
        yield match[1].replace("{PACKAGE}", package[1] if package else "PACKAGE").strip(" )"), match[3] or ""


def test_the_extras_that_sources_and_pages_name_exist() -> None:
    assert {"bench", "sass", "nvrtc", "docs"} <= EXTRAS
    found = {path: extras(path.read_text()) for path in [*SOURCES, *PAGES]}
    assert {"bench", "sass", "nvrtc", "torch", "cublas"} <= set.union(*found.values())
    assert {path: names - EXTRAS for path, names in found.items() if names - EXTRAS} == {}


@pytest.mark.parametrize("path", [path for path in SOURCES if "pip install" in path.read_text()], ids=lambda path: path.stem)
def test_what_an_error_says_to_install_is_an_extra_or_a_dependency(path: Path) -> None:
    for packages, extra in advised(path):
        if path == ROOT / "benchmarks" / "cuda_core.py":  # what it measures is nothing that this project uses
            continue
        assert extra in EXTRAS or (packages and set(packages.split()) <= REQUIRED | {"-e"}), (packages, extra)


def test_an_extra_that_is_none_is_found(tmp_path: Path) -> None:
    text = "f\"needs {it}: pip install 'ptxgen[benhc]'\""
    assert extras(text) == {"benhc"}
    assert extras('pip install -e ".[test,docs]"') == {"test", "docs"}
    (tmp_path / "a.py").write_text(f"{text}\n'pip install matplotlib'\n")
    assert list(advised(tmp_path / "a.py")) == [("", "benhc"), ("matplotlib", "")]
