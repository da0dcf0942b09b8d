"""Files that are there whole or not at all. Knows nothing of what is in them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ptxgen.errors import ArgumentError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file `path` when the block ends without an error; until then `path` is as it was.

    The bytes wait in the same folder, since only a rename within one file system is atomic. Raises ArgumentError, with the path
    and the system's reason, if the file cannot be written.
    """
    path = Path(os.path.realpath(path))  # through a link, so that the link stays one
    waiting: str | None = None
    try:
        if path.exists() and not path.is_file():  # a pipe or a device is written to, never replaced
            with path.open("wb") as stream:
                yield stream
            return
        handle, waiting = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            yield stream
        os.chmod(waiting, 0o666 & ~_umask())
        os.replace(waiting, path)
        waiting = None
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if waiting is not None:
            Path(waiting).unlink(missing_ok=True)


def _umask() -> int:
    """The permissions that new files lack. The system has no way to read it but to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
