"""What `ptxgen` and `ptxrun` print: lines, tables, JSON and progress. No subcommand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from ptxgen.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH: Final = 100  # columns of a table that no terminal limits

Report = Callable[[str, int, int], None]
"""Takes a stage's name, how much of it is done, and its total."""


def echo(text: str = "", *, err: bool = False, bold: bool = False, nl: bool = True) -> None:
    """Lines on stdout or stderr; without `nl` a part of one. Codes that a terminal obeys are spelt: a text may be from a
    stranger's file or package. What the commands say goes through here, `print_table`, `print_json` or the log, unless it is
    asked for as it is."""
    click.echo(click.style(printable(text), bold=True) if bold else printable(text), nl=nl, err=err)


def in_terminal() -> bool:
    """Whether people see stdout at once; else a program reads it, or a file keeps it."""
    return sys.stdout.isatty()


def counted(count: int, thing: str) -> str:
    """How many there are of a thing, whose plural has an s."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def magnitude(value: float) -> str:
    """A number of which one digit matters, such as an error."""
    return f"{value:.0e}" if value else "0"


def print_json(facts: Any) -> None:
    """Facts as JSON on stdout, in the order in which they were given. What `echo` spells is escaped, as JSON does it."""
    _print_json(json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False))


def print_json_line(facts: Any) -> None:
    """As `print_json`, in one line: for facts that come one after another."""
    _print_json(json.dumps(facts, ensure_ascii=False, allow_nan=False))


def _print_json(text: str) -> None:
    click.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[str] = (), bold: str = "") -> None:
    """A table on stdout; the columns named in `numeric` stand to the right, the one in `bold` is the one that matters."""
    from rich.table import Table
    from rich.text import Text

    rows = [tuple(row) for row in rows]
    names_fit = max((len(row[0]) for row in rows), default=0) <= WIDTH // 2  # longer ones may take two lines, not the columns
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in numeric else "left",
            style="bold" if column == bold else None,
            overflow="fold",
            no_wrap=column in numeric or (column == columns[0] and names_fit),
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))  # Text: a shape such as [4096] is not rich's markup
    print_rich(table)


def print_rich(renderable: RenderableType) -> None:
    """A rich table, or whatever else rich prints, on stdout: as wide as the terminal, else at most WIDTH columns."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False).print(renderable)


@contextmanager
def progress() -> Iterator[Report]:
    """A bar for each stage on stderr, gone when the block ends; nothing at all where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

    stages: dict[str, TaskID] = {}
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage)
            bars.update(stages[stage], completed=done, total=total)

        yield report
