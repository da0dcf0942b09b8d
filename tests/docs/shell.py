"""Runs what a page types at its shell prompts: a page is one folder, into which the files that it shows are written where they
stand. No test."""

from __future__ import annotations

import difflib
import doctest
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.docs.pages import FILE, Block, blocks, name
from tests.paths import ROOT
from tests.synthetic import Q, write_model

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
    """Do what the page shows in this folder, in which the examples and a model lie if it names them. AssertionError, with the
    line of the page, for what is said otherwise."""
    text = "".join(block.text for block in steps(page))
    if "examples/" in text:
        (folder / "examples").symlink_to(ROOT / "examples")
    if "model.gguf" in text:
        # The shapes of the server's own tests, whose kernels are compiled already.
        write_model(folder / "model.gguf", types=Q.F32, layers=1, hidden=32, heads=1, kv_heads=1, ff=32, context=512)
    started: list[int] = []
    try:
        for block in steps(page):
            if shown := FILE.match(block.above):
                path = folder / shown[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
                continue
            for line, command, wanted in commands(block):
                where = f"{name(page)}:{line}: {command}"
                said = typed(command, folder, environment, started, where)
                difference = "".join(difflib.ndiff(wanted.splitlines(True), said.splitlines(True)))
                assert doctest.OutputChecker().check_output(wanted, said, LOOSELY), f"{where}{difference}"
    finally:
        for group in started:  # what a command left running
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def typed(command: str, folder: Path, environment: dict[str, str], started: list[int], where: str) -> str:
    """What a command prints; the process group that it ran in is added to `started`."""
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    started.append(process.pid)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, f"{where}exit code {process.returncode}\n{said}"
    return said
