"""Files as they should be: written whole or not at all, read only if they are regular and of a sane size, and trusted only if
nobody else can have written them. Knows nothing of what is in them."""

from __future__ import annotations

import errno
import os
import stat
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
    waiting: str | None = None
    try:
        path = Path(os.path.realpath(path))  # through a link, so that the link stays one
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


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it, unless it is there. ArgumentError, with the system's reason, if that fails."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{folder}: cannot be made: {error.strerror or error}") from error


def read_regular(path: Path, limit: int, *, own: bool = False) -> bytes:
    """The bytes of a regular file, at most `limit`. Waits for nobody, as reading a pipe would.

    own: the file may be no link, and nobody but the user (or root, who may do anything) can have written it.
    Raises OSError, the reason in its `strerror`, for what is not there, is something else, or is larger.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (os.O_NOFOLLOW if own else 0)
    try:
        handle = os.open(path, flags)
    except ValueError as error:  # a NUL or a lone surrogate in the path
        raise OSError(errno.EINVAL, f"not a possible file name ({error})", str(path)) from error
    except OSError as error:
        if own and error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if own and (why := _others(status)):
            raise PermissionError(errno.EACCES, why, str(path))
        with os.fdopen(os.dup(handle), "rb") as stream:
            content = stream.read(limit + 1) if status.st_size <= limit else b""
    finally:
        os.close(handle)
    if max(status.st_size, len(content)) > limit:
        size = max(status.st_size, len(content))
        raise OSError(errno.EFBIG, f"it has {size} bytes; at most {limit} are read", str(path))
    return content


def read_text(path: Path, limit: int) -> str:
    """The text of a regular file of at most `limit` bytes, as `read_regular` reads it.

    Raises ArgumentError, with the path and the reason, for what cannot be read so or is not UTF-8.
    """
    try:
        return read_regular(path, limit).decode("utf-8")
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is not UTF-8: byte {error.start}") from error


def private_folder(root: Path, *names: str) -> Path:
    """The folder `root/names...`, made for the user alone where it is not there.

    Raises OSError if it cannot be made, PermissionError if `root` or a folder below it belongs to somebody else or can be
    written by others; below `root`, which is where the user says, there may be no links.
    """
    folder = root
    for name in (None, *names):
        folder = folder if name is None else folder / name
        try:
            folder.mkdir(0o700, parents=name is None, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(folder)) from None
        status = folder.stat() if name is None else folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it is a symbolic link or not a folder", str(folder))
        if why := _others(status):
            raise PermissionError(errno.EACCES, why, str(folder))
    return folder


def _others(status: os.stat_result) -> str:
    """Who else can have written it; nothing if nobody can."""
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {status.st_uid}, and this is user {os.geteuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o}); chmod go-w takes that from them"
    return ""


def _umask() -> int:
    """The permissions that new files lack. The system has no way to read it but to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
