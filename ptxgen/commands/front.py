"""What `ptxgen` and `ptxrun` share: how errors become exit codes, how tables, JSON and progress are printed. No subcommand."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click
from click.exceptions import Exit

from ptxgen import __version__
from ptxgen.commands.start import BAD_INPUT, INTERRUPTED
from ptxgen.commands.stdout import ClosedPipe, checked_stdout
from ptxgen.errors import PtxGenError
from ptxgen.printable import spelt

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from rich.console import Console, RenderableType

FAILED: Final = 1
"""Exit code when the command ran and what it looked at is wrong: a check that failed, a sanitiser's finding."""
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
        named = [point for point in self._points() if point.name == cmd_name] if known is None else []
        return _Plugin(named) if named else known

    def _points(self) -> Iterable[EntryPoint]:
        if not self.plugins:
            return ()
        from ptxgen import plugins

        # A name that is no word cannot be typed, and might be codes that a terminal obeys.
        return [point for point in plugins.points(self.plugins) if re.fullmatch(r"\w[\w.-]*", point.name, re.ASCII)]

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


def echo(text: str = "", *, err: bool = False, bold: bool = False) -> None:
    """Lines on stdout or stderr. Codes that a terminal obeys are spelt: a text may be from a stranger's file or package. What
    the commands say goes through here, `print_table`, `print_json` or the log, unless it is asked for as it is."""
    click.echo(click.style(spelt(text), bold=True) if bold else spelt(text), err=err)


def _say(text: str) -> None:
    """A line on stderr, if that can be written."""
    with suppress(OSError):
        echo(text, err=True)


class _Plugin(click.Command):
    """A subcommand of another package, which is imported when it is used and not before: `--help` of all does not need it, nor
    wait for it. Ours comes first; where several strangers have one of this name, it is nobody's."""

    def __init__(self, points: Sequence[EntryPoint]) -> None:
        from ptxgen.plugins import is_own, package

        owners = ", ".join(map(package, points))
        super().__init__(points[0].name, add_help_option=False, short_help=f"(of another package: {owners})")
        self._point = points[0]
        self._own = is_own(points[0])
        self._owners = "" if self._own or len(points) == 1 else owners

    def get_short_help_str(self, limit: int = 45) -> str:
        if self._own:
            try:
                return self._loaded().get_short_help_str(limit)
            except PtxGenError:
                return "(cannot be used; say it to see why)"
        return super().get_short_help_str(limit)

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        return self._loaded().make_context(info_name, args, *rest, **extra)

    def _loaded(self) -> click.Command:
        from ptxgen.neighbour import NameTaken
        from ptxgen.plugins import PluginError, load

        if self._owners:
            raise PtxGenError(f"several packages have a command {self.name}: {self._owners}; uninstall all but one")
        try:
            return load(self._point, _require_command)
        except NameTaken:
            raise
        except PluginError as error:
            raise PtxGenError(f"the command {self.name} of {self._point.value} cannot be used: {error}") from error


def _require_command(loaded: Any) -> click.Command:
    if not isinstance(loaded, click.Command):
        raise PtxGenError(f"it is a {type(loaded).__name__}, not a click command")
    return loaded


class _Formatter(logging.Formatter):
    """Log lines as `echo` prints them."""

    def format(self, record: logging.LogRecord) -> str:
        return spelt(super().format(record))


def front(name: str, help: str, failures: tuple[type[PtxGenError], ...] = (), plugins: str = "") -> Front:
    """An empty command of this name with --version and --verbose. `failures`: errors that are findings, not bad input;
    `plugins`: the entry-point group of further subcommands."""

    def started(verbose: bool) -> None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Formatter(f"{name}: %(message)s"))
        logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=True)

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
    """Facts as JSON on stdout, in the order in which they were given. What `echo` spells is escaped, as JSON does it."""
    text = json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False)
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
        table.add_row(*(Text(spelt(cell)) for cell in row))  # Text: a shape such as [4096] is not rich's markup
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
