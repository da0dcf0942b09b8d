"""The commands `ptxgen` and `ptxrun` as groups of subcommands: errors become exit codes, other packages add subcommands."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from ptxgen import __version__
from ptxgen.commands import console
from ptxgen.commands.start import BAD_INPUT, CLOSED_PIPE, FAILED, INTERRUPTED
from ptxgen.commands.stdout import ClosedPipe, checked_stdout
from ptxgen.errors import PtxGenError
from ptxgen.printable import printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class CommandGroup(click.Group):
    """A group of subcommands that ends with one clear line and the right exit code.

    The package's errors are the user's to mend: one line, exit code 2, or 1 for those of the kinds in `failures`. A stdout that
    cannot be written is one of them. Any other exception is a bug and keeps its traceback.

    `plugins` names an entry-point group: each of its entries is a subcommand that another package (or one that may not be
    imported here) adds. One that does not load is an error when it is called, and harms no other.
    """

    failures: tuple[type[PtxGenError], ...] = ()
    plugins: str = ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(point.name for point in self._points())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        points = [point for point in self._points() if point.name == cmd_name] if own is None else []
        return _Plugin(points) if points else own

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
        except BaseException as error:
            if not _is_interrupt(error):
                raise
            _say("")
            raise Exit(INTERRUPTED) from error


def _is_interrupt(error: BaseException) -> bool:
    """Whether it is Ctrl-C, or what became of it: Python 3.11 raises RuntimeError from what comes out of `__set_name__`, and
    modules are imported, and their dataclasses made, while a command runs."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


def _say(text: str) -> None:
    """A line on stderr, if that can be written."""
    with suppress(OSError):
        console.echo(text, err=True)


class _Plugin(click.Command):
    """A subcommand of another package, which is imported when it is used and not before: `--help` of all does not need it, nor
    wait for it. Ours comes first; where several other packages have one of this name, none gets it."""

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
                return "(cannot be used; run it to see why)"
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


class _LogFormatter(logging.Formatter):
    """Log lines as `console.echo` prints them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def command_group(name: str, help: str, failures: tuple[type[PtxGenError], ...] = (), plugins: str = "") -> CommandGroup:
    """An empty command of this name with --version and --verbose. `failures`: errors that are findings, not bad input;
    `plugins`: the entry-point group of further subcommands."""

    def started(verbose: bool) -> None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_LogFormatter(f"{name}: %(message)s"))
        logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=True)

    group = CommandGroup(
        name=name,
        help=help,
        callback=started,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": console.WIDTH},
        params=[click.Option(["-v", "--verbose"], is_flag=True, help="Say on stderr what is being done.")],
    )
    group.failures = failures
    group.plugins = plugins
    return click.version_option(__version__, prog_name=name)(group)
