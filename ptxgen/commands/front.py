"""What `ptxgen` and `ptxrun` share: how errors become exit codes, how tables, JSON and progress are printed. No subcommand."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click
from click.exceptions import Exit

from ptxgen import __version__
from ptxgen.commands.stdout import ClosedPipe, checked_stdout
from ptxgen.errors import PtxGenError
from ptxgen.start import INTERRUPTED

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from rich.console import Console, RenderableType

FAILED: Final = 1
"""Exit code when the command ran and what it looked at is wrong: a check that failed, a sanitiser's finding."""
BAD_INPUT: Final = 2
"""Exit code for what the user gave: options, files, devices. click's usage errors have it too."""
CLOSED_PIPE: Final = 141
"""What a shell reports for a program that SIGPIPE ended; Python ignores that signal."""

WIDTH: Final = 100  # columns of a table that no terminal limits

Report = Callable[[str, int, int], None]
"""Takes a stage's name, how much of it is done, and its total."""


class Front(click.Group):
    """A group of subcommands that ends with one clear line and the right exit code.

    The package's errors are the user's to mend: one line, exit code 2, or 1 for those of the kinds in `failures`. A stdout that
    cannot be written is one of them. Any other exception is a bug and keeps its traceback.

    `plugins` names an entry-point group: each of its entries is a subcommand that another package (or one that may not be
    imported here) adds. One that does not load says so when it is asked for, and harms no other.
    """

    failures: tuple[type[PtxGenError], ...] = ()
    plugins: str = ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(point.name for point in self._points())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = super().get_command(ctx, cmd_name)
        if known is not None:
            return known
        return next((_plugin(point) for point in self._points() if point.name == cmd_name), None)

    def _points(self) -> Iterable[EntryPoint]:
        from importlib.metadata import entry_points

        return entry_points(group=self.plugins) if self.plugins else ()

    def main(self, *args: Any, **extra: Any) -> Any:
        with checked_stdout():
            return super().main(*args, **extra)

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        with self._ending(info_name):  # --help and --version are printed here
            return super().make_context(info_name, args, *rest, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with self._ending(ctx.find_root().info_name):
            return super().invoke(ctx)

    @contextmanager
    def _ending(self, name: str | None) -> Iterator[None]:
        """Turns what the block raises into one line on stderr and an exit code, unless it is a bug."""
        try:
            try:
                yield
            finally:
                sys.stdout.flush()  # so that what cannot be written is noticed here, and not by the interpreter at its end
        except PtxGenError as error:
            if isinstance(error, ClosedPipe):
                raise Exit(CLOSED_PIPE) from error
            _say(f"{name}: {error}")
            raise Exit(FAILED if isinstance(error, self.failures) else BAD_INPUT) from error
        except KeyboardInterrupt as error:
            _say("")
            raise Exit(INTERRUPTED) from error


def _say(text: str) -> None:
    """A line on stderr, if that can be written. Codes that a terminal obeys are spelt: a text may be from a stranger's file."""
    spelt = "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)
    with suppress(OSError):
        click.echo(spelt, err=True)


def _plugin(point: EntryPoint) -> click.Command:
    """The subcommand of an entry point, or one that tells why there is none."""
    try:
        loaded = point.load()
        if isinstance(loaded, click.Command):
            return loaded
        reason = f"it is a {type(loaded).__name__}, not a click command"
    except Exception as error:  # a stranger's module may raise anything
        reason = f"{type(error).__name__}: {error}"
    said = f"the command {point.name} of {point.value} cannot be used: {reason}"

    def refuse(_: tuple[str, ...]) -> None:
        raise PtxGenError(said)

    return click.Command(
        point.name,
        callback=refuse,
        params=[click.Argument(["_"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        short_help="Cannot be used: its module does not load.",
        add_help_option=False,
    )


def front(name: str, help: str, failures: tuple[type[PtxGenError], ...] = (), plugins: str = "") -> Front:
    """An empty command of this name with --version and --verbose. `failures`: errors that are findings, not bad input;
    `plugins`: the entry-point group of further subcommands."""

    def started(verbose: bool) -> None:
        logging.basicConfig(
            level=logging.INFO if verbose else logging.WARNING, format=f"{name}: %(message)s", stream=sys.stderr, force=True
        )

    group = Front(
        name=name,
        help=help,
        callback=started,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
        params=[click.Option(["-v", "--verbose"], is_flag=True, help="Say on stderr what is being done.")],
    )
    group.failures = failures
    group.plugins = plugins
    return click.version_option(__version__, prog_name=name)(group)


def counted(count: int, thing: str) -> str:
    """How many there are of a thing, whose plural has an s."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def magnitude(value: float) -> str:
    """A number of which one digit matters, such as an error."""
    return f"{value:.0e}" if value else "0"


def print_json(facts: Any) -> None:
    """Facts as JSON on stdout, in the order in which they were given."""
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False))


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
        table.add_row(*map(Text, row))  # Text: a shape such as [4096] is not rich's markup
    print_rich(table)


def print_rich(made: RenderableType) -> None:
    """A rich table, or whatever else rich prints, on stdout: as wide as the terminal, else at most WIDTH columns."""
    _console().print(made)


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


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
