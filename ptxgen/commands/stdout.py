"""A stdout that says with an error of its own that it cannot be written: libraries take a plain OSError for theirs, and a
command cannot tell it from a fault of another file."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ptxgen.errors import PtxGenError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputLost(PtxGenError):
    """What the command says cannot be written: a full disk, a closed stream."""


class ClosedPipe(OutputLost):
    """Stdout is closed, as with `| head`."""


class _Stdout(io.RawIOBase):
    """The file of stdout. After the first failure it takes everything and writes nothing."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lost = False

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        if self._lost:
            return memoryview(data).nbytes
        try:
            return os.write(self._number, data)
        except OSError as error:
            self._lost = True
            kind = ClosedPipe if error.errno == errno.EPIPE else OutputLost
            raise kind(f"stdout cannot be written: {error.strerror}") from error


@contextmanager
def checked_stdout() -> Iterator[None]:
    """In the block, what cannot be written to the process's stdout is an OutputLost. A stdout that somebody has put in its
    place stays."""
    before = sys.stdout
    if before is None or before is not sys.__stdout__ or not isinstance(before, io.TextIOWrapper):
        yield
        return
    before.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Stdout(before.fileno())),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    try:
        yield
    finally:
        sys.stdout = before
