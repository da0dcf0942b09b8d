"""The pages of the project, and what is fenced on them. No test."""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass
from pathlib import Path

from tests.paths import ROOT

FILE = re.compile(r"^`([\w./-]+)`:$")
"""The line above a block that is a file of this name."""
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@dataclass(frozen=True)
class Block:
    """What stands between two fences: its language, its text, the number of its first line, and the last line before it."""

    page: Path
    language: str
    text: str
    line: int
    above: str


def name(page: Path) -> str:
    """How a page is called in reports: its path in the repository."""
    return str(page.relative_to(ROOT) if page.is_relative_to(ROOT) else page)


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    lines = page.read_text().splitlines()
    start: int | None = None
    for i, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = i
            continue
        above = next((said for said in reversed(lines[:start]) if said.strip()), "")
        found.append(
            Block(page, lines[start].removeprefix("```"), "".join(f"{x}\n" for x in lines[start + 1 : i]), start + 2, above)
        )
        start = None
    assert start is None, f"{name(page)}:{start}: a fence without an end"
    return found


def session(page: Path) -> doctest.DocTest:
    """The Python prompts of a page as one session, every line at its own number."""
    lines = [""] * len(page.read_text().splitlines())
    for block in blocks(page):
        if block.language == "python" and ">>> " in block.text:
            text = block.text.splitlines()
            lines[block.line - 1 : block.line - 1 + len(text)] = text
    return doctest.DocTestParser().get_doctest("\n".join(lines) + "\n", {}, page.name, str(page), 0)


def anchors(page: Path) -> set[str]:
    """How headings are called in links, as GitHub makes it of their words."""
    outside = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", outside, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
