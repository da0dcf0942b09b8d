"""What is typed at the shell prompts of the pages works and prints what stands below it: a page is one folder, into which the
files that it shows are written where they stand."""

from __future__ import annotations

import difflib
import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.docs.pages import FILE, PAGES, Block, blocks, name
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


def run(page: Path, folder: Path, environment: dict[str, str]) -> None:
    """Do what the page shows in this folder, in which the examples are. AssertionError, with the line of the page, for what is
    said otherwise."""
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


@pytest.fixture
def environment(kernels: Path) -> dict[str, str]:
    """What a shell has after `. .venv/bin/activate`, and no colours."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PTXGEN_", "GPU_DEBUG", "PYTEST"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', '')}"
    return {
        **own,
        "PATH": path,
        "PTXGEN_CACHE_DIR": str(kernels),
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "console" for b in steps(page))], ids=name)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    run(page, tmp_path, environment)


PAGE = """`{}`:

```
one
two
three
```

```console
$ cat file
one
...
{}
$ printf 'a b' | \\
    cat
a  b
```
"""


@pytest.mark.parametrize(
    ("file", "last", "fault"),
    [
        ("file", "three", None),
        ("file", "four", r"page.md:10: cat file\n(?s:.*)\+ three"),
        ("other/file", "three", "exit code 1"),
    ],
)
def test_what_a_page_shows_is_written_run_and_compared(
    file: str, last: str, fault: str | None, tmp_path: Path, environment: dict[str, str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(file, last))
    with nullcontext() if fault is None else pytest.raises(AssertionError, match=fault):
        run(page, tmp_path, environment)
