"""The page of an explanation: self-contained, linked, and seen through a headless Chromium where one is installed."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ptxgen.explain.explanation import explain
from ptxgen.explain.page import render
from ptxgen.explain.sass import find_nvdisasm
from ptxgen.gpus.gpu import GPUS
from ptxgen.kernels import registry
from ptxgen.target import Target

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SIZE = (1500, 1100)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kernel = registry.find("q4k_gemv").make(k=4096, n=64)
    path = tmp_path_factory.mktemp("page") / "q4k.html"
    path.write_text(render(explain(kernel, Target(90), GPUS["h200"])), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((program for name in BROWSERS if (program := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser to look at the page with: none of {', '.join(BROWSERS)} is on PATH")
    return found


class Links(HTMLParser):
    """The data-l attributes of each section, and every address that the page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.panes: list[list[str]] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag == "section":
            self.panes.append([])
        if found.get("data-l"):
            self.panes[-1].append(found["data-l"] or "")
        self.fetched += [found[name] or "" for name in ("src", "href") if name in found]


def test_the_page_needs_no_network(page: Path) -> None:
    text = page.read_text()
    links = Links()
    links.feed(text)
    assert links.fetched == []
    assert "url(" not in text
    assert "@import" not in text


def test_every_line_of_a_pane_has_its_counterpart_in_the_ptx(page: Path) -> None:
    links = Links()
    links.feed(page.read_text())
    python, ptx, sass = links.panes
    assert {line for row in python for line in row.split()} == set(ptx)
    assert set(sass) <= set(ptx)
    assert bool(sass) == (find_nvdisasm() is not None)


def test_without_a_disassembler_the_page_says_so_and_has_no_column_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.explain.sass.find_nvdisasm", lambda: None)
    kernel = registry.find("residual_add").make(n=64)
    page = render(explain(kernel, Target(90), GPUS["h200"]))
    assert "SASS: nvdisasm is not installed: pip install" in page
    assert re.findall(r'<section aria-label="(\w+)"', page) == ["Python", "PTX"]
    assert "grid-template-columns: minmax(0, 1.15fr) minmax(0, 1fr) ;" in page


def chromium(browser: str, profile: Path, *words: str) -> str:
    """What the browser writes; a profile of its own keeps it from the user's."""
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
    size = f"--window-size={SIZE[0]},{SIZE[1]}"
    return subprocess.run([*command, size, *words], capture_output=True, text=True, check=True, timeout=120).stdout


def test_a_line_lights_its_counterparts_in_all_three_panes(browser: str, page: Path, tmp_path: Path) -> None:
    load = next(number for number, line in enumerate(page_ptx(page), 1) if "ld.global.v4" in line)
    seen = chromium(browser, tmp_path, "--dump-dom", f"file://{page}#ptx{load}")
    panes = re.split(r"<section", seen)[1:]
    lit = [len(re.findall(r'class="row[^"]* on\b', pane)) for pane in panes]
    assert lit[0] == 1
    assert lit[1] == 1
    assert lit[2] >= 1 or find_nvdisasm() is None
    assert len(re.findall(r'class="row[^"]* pinned', panes[1])) == 1


@pytest.mark.slow
def test_a_screenshot_shows_the_page(browser: str, page: Path, tmp_path: Path) -> None:
    plain, lit, empty = (tmp_path / f"{name}.png" for name in ("plain", "lit", "empty"))
    blank = tmp_path / "blank.html"
    blank.write_text("<!doctype html><title>nothing</title>")
    chromium(browser, tmp_path, f"--screenshot={plain}", f"file://{page}")
    chromium(browser, tmp_path, f"--screenshot={lit}", f"file://{page}#ptx61")
    chromium(browser, tmp_path, f"--screenshot={empty}", f"file://{blank}")
    assert struct.unpack(">II", plain.read_bytes()[16:24]) == SIZE
    assert plain.stat().st_size > 10 * empty.stat().st_size
    assert plain.read_bytes() != lit.read_bytes()


def page_ptx(page: Path) -> list[str]:
    """The lines of the PTX pane as text."""
    section = page.read_text().split("<section")[2]
    return [re.sub(r"<[^>]+>", "", row) for row in re.findall(r"<u></u><span>(.*?)</span></div>", section)]
