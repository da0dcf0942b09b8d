"""The site's navigation has every page, and what docs/hooks.py does to pages is right."""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.docs.pages import PAGES, name
from tests.paths import ROOT

ABSENT = 'mkdocs is not installed: pip install -e ".[docs]"'


def test_the_navigation_has_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    shown = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    assert sorted(shown) == sorted({name(page).removeprefix("docs/") for page in PAGES} - {"README.md"})


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_without_the_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason=ABSENT)
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "site" / "reference" / "executor.html").read_text()
    assert all(f'id="executor.CudaExecutor.{name}"' in reference for name in ("buffer", "q4k_gemv_into", "matmul"))
    assert "Source code in" in reference


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("mkdocs", reason=ABSENT)
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.delitem(sys.modules, "hooks", raising=False)
    return importlib.import_module("hooks")


@pytest.mark.parametrize(
    ("page", "text", "shown"),
    [
        ("executor/interop.md", "[a](../../examples/tiny_model.py)", "a"),
        ("executor/interop.md", "[a](../tuning.md#precisions)", "[a](../tuning.md#precisions)"),
        ("bundles.md", "[a](../SECURITY.md#chat-templates)", "[a](SECURITY.md#chat-templates)"),
        ("CONTRIBUTING.md", "[a](docs/tuning.md)", "[a](tuning.md)"),
        ("CONTRIBUTING.md", "[a](.ci/run) [b](#add) [c](https://semver.org)", "a [b](#add) [c](https://semver.org)"),
        ("performance.md", "![a](rows.svg)", "![a](rows.svg)"),
    ],
)
def test_links_lead_to_what_the_site_has(hooks: Any, page: str, text: str, shown: str) -> None:
    has = {"tuning.md", "SECURITY.md", "rows.svg", "CONTRIBUTING.md"}
    files = SimpleNamespace(get_file_from_path=lambda path: path if path in has else None)
    at = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert hooks.on_page_markdown(text, at, None, files) == shown


@pytest.mark.parametrize(
    "fault",
    ['<script src="https://cdn.example/x.js">', '<link rel="stylesheet" href="//fonts.example/f.css">', "<p>Say:\n* one"],
)
def test_what_a_page_fetches_and_a_list_that_is_none_are_warned_of(hooks: Any, fault: str, caplog: Any) -> None:
    at = SimpleNamespace(file=SimpleNamespace(src_uri="a.md"))
    with caplog.at_level(logging.WARNING):
        hooks.on_post_page('<p>See <a href="https://semver.org">it</a></p><script src="a.js">', at, None)
        assert not caplog.records
        hooks.on_post_page(fault, at, None)
    assert len(caplog.records) == 1
