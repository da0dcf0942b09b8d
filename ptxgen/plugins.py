"""What other packages add by entry points: found by group, ours first, and loaded so that nothing that a package does when it
is imported harms anybody but itself. What the entry points are for is the business of who asks."""

from __future__ import annotations

import io
import logging
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import metadata
from importlib.metadata import EntryPoint
from types import FrameType
from typing import Any, Final, TypeVar

from ptxgen import neighbour
from ptxgen.errors import PtxGenError
from ptxgen.printable import error_text, printable

T = TypeVar("T")

OWN: Final = "ptxgen"
"""The distribution of this package, whose entry points nobody takes away."""
SLOW: Final = 2.0
"""Seconds of an import after which the package is named, as the user waits for it and cannot see why."""

_log = logging.getLogger(__name__)


class PluginError(PtxGenError):
    """An entry point that cannot be used, and why."""


def points(group: str) -> list[EntryPoint]:
    """The entry points of a group: ours first, then by package, so that the order is the same wherever they are installed."""
    return sorted(metadata.entry_points(group=group), key=lambda point: (not is_own(point), package(point), point.name))


def package(point: EntryPoint) -> str:
    """The distribution that has this entry point."""
    return printable(point.dist.name) if point.dist is not None else "unknown package"


def is_own(point: EntryPoint) -> bool:
    """Whether it is this package's own."""
    return package(point) == OWN


def load(point: EntryPoint, check: Callable[[Any], T]) -> T:
    """What `check` makes of what the entry point names. PluginError with the reason if either raises, be it SystemExit;
    KeyboardInterrupt instead, whatever they raise, if Ctrl-C was pressed meanwhile. What a stranger's module prints is logged,
    so that it is in nobody's output."""
    if is_own(point):
        neighbour.require(point.module.partition(".")[0])
    output = io.StringIO()
    start = time.perf_counter()
    try:
        with _ctrl_c_apart() as pressed, redirect_stdout(output), redirect_stderr(output):
            try:
                return check(point.load())
            except BaseException as error:  # a stranger's module may raise anything
                if pressed:  # whatever became of it: Python 3.11 raises RuntimeError from what comes out of `__set_name__`
                    raise KeyboardInterrupt from error
                raise PluginError(_reason(error)) from error
    finally:
        seconds = time.perf_counter() - start
        if output.getvalue():
            _log.info("entry point %s of %s says: %s", point.name, package(point), output.getvalue().rstrip())
        if seconds > SLOW:
            _log.warning("entry point %s of %s took %.0f s to import", point.name, package(point), seconds)


@contextmanager
def _ctrl_c_apart() -> Iterator[list[int]]:
    """In the block, a list that has an element once Ctrl-C was pressed: a module may raise KeyboardInterrupt by itself. The
    handler that was there decides what Ctrl-C does, and is there again afterwards, whatever a module put in its place."""
    before = signal.getsignal(signal.SIGINT)
    pressed: list[int] = []
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    handler = before

    def note(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _reason(error: BaseException) -> str:
    """What went wrong and at which line of the stranger's code."""
    message = error_text(error)
    if isinstance(error, PtxGenError):
        message = message.removeprefix(f"{type(error).__name__}: ")
    if isinstance(error, SyntaxError):
        return printable(message)  # names the file and the line itself
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    return printable(f"{message} ({frames[-1].filename}:{frames[-1].lineno})" if frames else message)


def _is_machinery(file: str) -> bool:
    return file == __file__ or "importlib" in file or "ptxgen/kernels/registry.py" in file
