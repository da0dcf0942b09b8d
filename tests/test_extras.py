"""What an error or a page says to install can be installed: the project, which is on no package index, by its folder, and its
extras by their packages."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ptxgen import extras
from tests.docs.pages import PAGES
from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIRED = {Requirement(one).name for one in PROJECT["dependencies"]}
OF_OTHERS = {"pytest", "notebook", "cuda-core", "ai-dynamo", "vllm-gguf-plugin"}
"""Packages of an index that no part of this project asks for, and a page or an error names."""
FOLDERS = ("ptxgen", "executor", "benchmarks", "integrations", "examples")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if ".venv" not in path.parts]
TEXTS = sorted(
    {
        *PAGES,
        *ROOT.glob("*.md"),
        ROOT / "mkdocs.yml",
        *(ROOT / "integrations").glob("*/*.md"),
        *(ROOT / ".github").rglob("*.md"),
    }
)
ADVICE = re.compile(r"pip install ((?:\"[^\"\n]*\"|'[^'\n]*'|[^`'\"\n|#&;()])*)")
VALUE = re.compile(r"\{.*?\}")
"""In a text of a source: what a name stands for there."""


def advised(text: str) -> Iterator[list[str]]:
    """The words of each `pip install` in a text, without what is not known before it is shown."""
    for match in ADVICE.finditer(text.replace('\\"', '"')):
        yield shlex.split(VALUE.sub("", match[1]))


def fault(words: list[str], folder: Path) -> str | None:
    """Why these cannot be installed. folder: where a page says to type it, or that of the project."""
    words = [word for word in words if word[:1].isalnum() or word[:1] == "."]  # no options, and nothing that stands for a name
    for word in words:
        place, bracket, asked = word.partition("[")
        if place == "." or "/" in place:
            if not any((base / place / "pyproject.toml").is_file() for base in (ROOT, folder)):
                return f"{place} is no project"
            if bracket and not set(asked.rstrip("]").split(",")) <= EXTRAS.keys():
                return f"{word} names an extra that there is not"
        elif not word.endswith(".txt"):
            name = Requirement(word.rstrip(":,.")).name
            if name not in REQUIRED | OF_OTHERS:
                return f"{name} is not on a package index, or nothing here needs it"
    return None


ADVISING = [path for path in [*SOURCES, *TEXTS] if "pip install" in path.read_text()]


@pytest.mark.parametrize("path", ADVISING, ids=lambda path: path.name)
def test_what_a_source_or_a_page_says_to_install_can_be_installed(path: Path) -> None:
    faults = {" ".join(words): fault(words, path.parent) for words in advised(path.read_text())}
    assert {words: why for words, why in faults.items() if why} == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('`pip install "ptxgen[serve]"`', "ptxgen is not on"),
        ("f\"needs it: pip install 'ptxgen[bench]', or do without\"", "ptxgen is not on"),
        ("pip install executor", "executor is not on"),
        ('pip install -e ".[benhc]"', "names an extra"),
        ("pip install nowhere/at/all", "is no project"),
        ('pip install -e ".[test,docs]" && mkdocs build', None),
        ("pip install cuda-bindings", None),
    ],
)
def test_advice_that_cannot_be_followed_is_found(text: str, said: str | None) -> None:
    (words,) = advised(text)
    found = fault(words, ROOT)
    assert found is None if said is None else said in (found or "")


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"test"}))
def test_an_error_names_the_packages_of_its_extra(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, verb, *packages = shlex.split(extras.install(extra))
    assert (program, verb) == ("pip", "install")
    assert {Requirement(one) for one in packages} == {Requirement(one) for one in EXTRAS[extra]}
    monkeypatch.setattr(extras, "requires", lambda _: None)
    assert extras.install(extra) == f'pip install -e "{ROOT}[{extra}]"'


def test_the_extras_that_sources_ask_for_exist() -> None:
    asked = {name for path in SOURCES for name in re.findall(r"\binstall\(['\"](\w+)['\"]\)", path.read_text())}
    assert {"serve", "nccl", "sass", "nvrtc", "bench", "torch", "cublas"} <= asked <= EXTRAS.keys()
