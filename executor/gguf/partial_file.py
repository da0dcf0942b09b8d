"""A file that has come in part: what is there, its checksum so far, and how it goes on. Knows no network."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Final, Self

CHUNK: Final = 1 << 20  # bytes


class PartialFile:
    """The file `path`, made if it is not there, to which bytes are added until it has `nbytes`. What was there when it was
    opened counts. OSError where the system refuses; a link is never followed."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path = path
        self.nbytes = nbytes
        self.size = 0
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        self._stream = os.fdopen(handle, "r+b")  # refuses a directory
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            self._stream.close()
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        self._digest = hashlib.sha256()
        while chunk := self._stream.read(CHUNK):
            self._digest.update(chunk)
            self.size += len(chunk)
        if self.size > nbytes:
            self.restart()

    def add(self, chunk: bytes) -> None:
        """Append bytes."""
        self._stream.write(chunk)
        self._digest.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        """Forget what there is."""
        self._stream.seek(0)
        self._stream.truncate()
        self._digest, self.size = hashlib.sha256(), 0

    @property
    def sha256(self) -> str:
        """Of the bytes so far."""
        return self._digest.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.close()


def is_whole(path: Path, nbytes: int, sha256: str) -> bool:
    """Whether the file is there with the expected bytes. Reading 100 MB takes a tenth of a second."""
    if not path.is_file() or path.stat().st_size != nbytes:
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == sha256
