"""What is typed at the shell prompts of the pages works and prints what stands below it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, name
from tests.docs.shell import run_page, steps

TIMED = ("docs/tutorials/first-kernel.md",)
"""What test_newcomer.py runs."""
SHELLS = [page for page in PAGES if any(b.language == "console" for b in steps(page)) and name(page) not in TIMED]


@pytest.mark.slow
@pytest.mark.parametrize("page", SHELLS, ids=name)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    run_page(page, tmp_path, environment)


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
        run_page(page, tmp_path, environment)
