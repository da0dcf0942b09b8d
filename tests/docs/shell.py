"""Runs what a page types at its shell prompts: a page is one folder, into which the files that it shows are written where they
stand. No test."""

from __future__ import annotations

import difflib
import doctest
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import FILE, Block, blocks, name
from tests.paths import ROOT

LOOSELY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def commands(block: Block) -> Iterator[tuple[int, str, str]]:
    """The commands of a console block, each with its line on the page and what it must print; `...` is anything. A command that
    ends with a backslash goes on in the next line."""
    for part in re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE):
        if not part.strip():
            continue
        line = block.line + block.text[: block.text.index(part)].count("\n")
        command, said = re.match(r"\$ ((?:[^\n]*\\\n)*[^\n]*\n)((?s:.*))", part).groups()  # type: ignore[union-attr]
        yield line, command, said


def steps(page: Path) -> list[Block]:
    """The files that a page shows and its console blocks, in order."""
    return [block for block in blocks(page) if block.language == "console" or FILE.match(block.above)]


def run_page(page: Path, folder: Path, environment: dict[str, str]) -> None:
    """Do what the page shows in this folder, in which the examples are if it names them. AssertionError, with the line of the
    page, for what is said otherwise."""
    if any("examples/" in block.text for block in steps(page)):
        (folder / "examples").symlink_to(ROOT / "examples")
    for block in steps(page):
        if shown := FILE.match(block.above):
            path = folder / shown[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            continue
        for line, command, wanted in commands(block):
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
            )
            said = done.stdout + done.stderr
            where = f"{name(page)}:{line}: {command}"
            assert done.returncode == 0, f"{where}exit code {done.returncode}\n{said}"
            difference = "".join(difflib.ndiff(wanted.splitlines(True), said.splitlines(True)))
            assert doctest.OutputChecker().check_output(wanted, said, LOOSELY), f"{where}{difference}"
