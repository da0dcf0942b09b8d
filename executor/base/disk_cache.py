"""A folder of compiled kernels: atomic writes, checksums, a size limit. What the bytes mean is the caller's business.

Entries are files, so several processes may share the folder: a file appears whole or not at all, and one that another process
removes meanwhile is simply not there. The cache is a convenience: a folder that cannot be written is reported once and not
used; nor is one that others own or may write to, since what lies in it is run.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
import time
from functools import cached_property
from pathlib import Path

from ptxgen.errors import ArgumentError
from ptxgen.files import private_folder, read_regular

MAGIC = b"ptxgen cache 1\n"
STALE_SECONDS = 3600.0
"""Age from which a temporary file must be the rest of a process that died."""
_HEAD = len(MAGIC) + hashlib.sha256().digest_size
ENTRIES = (".bin", ".o")
"""How the names of entries end, ours and the emulator's: no other file is ever removed to make room."""

_log = logging.getLogger(__name__)


class DiskCache:
    """Bytes by key in the folder `root/names...`, at most `limit_bytes` in all: when it is full, what was used least recently
    goes. From `root` on, folders must be the user's alone."""

    def __init__(self, root: Path, limit_bytes: int, *names: str) -> None:
        self.folder = root.joinpath(*names)
        self.limit_bytes = limit_bytes
        self.corrupt = 0
        """Entries found damaged or of no use, which were removed."""
        self._root, self._names = root, names
        self._writable = True

    @cached_property
    def usable(self) -> bool:
        """Whether the folder is there (it is made) and the user's alone; the reason why not is logged."""
        try:
            private_folder(self._root, *self._names)
        except OSError as error:
            _log.warning("compiled kernels cannot be kept in %s: %s", error.filename or self.folder, error.strerror or error)
            return False
        return True

    def get(self, key: str) -> bytes | None:
        """The bytes stored under `key`, None if there are none or they are damaged (then the entry is removed)."""
        path = self._path(key)
        if not self.usable:
            return None
        fault = ""
        try:
            content = read_regular(path, self.limit_bytes, own=True)
        except FileNotFoundError:
            return None
        except OSError as error:
            content, fault = b"", str(error.strerror)
        head, payload = content[:_HEAD], content[_HEAD:]
        if fault or head != MAGIC + _digest(key, payload):
            _log.warning("%s is not used and will be made again: %s", path, fault or "it is damaged")
            self.remove(key)
            return None
        try:
            os.utime(path)  # it was used now
        except OSError:
            _log.debug("%s went away while it was read", path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Store bytes under `key`. What is larger than the whole cache is not stored."""
        content = MAGIC + _digest(key, payload) + payload
        if not self._writable or len(content) > self.limit_bytes or not self.usable:
            return
        temporary: str | None = None
        try:
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            os.replace(temporary, self._path(key))
        except OSError as error:
            self._writable = False
            _log.warning("compiled kernels cannot be kept in %s: %s", self.folder, error)
            if temporary is not None:
                _remove(Path(temporary))
            return
        trim(self.folder, self.limit_bytes)

    def remove(self, key: str) -> None:
        """Drop what is stored under `key`, which is of no use."""
        self.corrupt += 1
        _remove(self._path(key))

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.bin"


def cache_folder(root: Path, *names: str) -> Path:
    """The folder `root/names...` of the cache, made if it is not there. ArgumentError if it cannot be made or is not the user's
    alone."""
    try:
        return private_folder(root, *names)
    except OSError as error:
        where = error.filename or root.joinpath(*names)
        raise ArgumentError(
            f"{where} cannot be used as a cache: {error.strerror or error}; PTXGEN_CACHE_DIR names another"
        ) from error


def trim(folder: Path, limit_bytes: int) -> None:
    """Remove the files used least recently, until the others (in all subfolders) have at most `limit_bytes`; and the temporary
    files that dead processes left."""
    now = time.time()
    files: list[tuple[float, int, Path]] = []
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                continue
            if path.suffix in (".tmp", ".part"):
                if now - status.st_mtime > STALE_SECONDS:
                    _remove(path)
                continue
        except OSError:
            continue
        if path.suffix in ENTRIES:
            files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit_bytes:
            return
        if _remove(path):
            total -= size


def _remove(path: Path) -> bool:
    """Whether the file is gone; another process may have been first."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.debug("%s stays: %s", path, error)
        return False
    return True


def _digest(key: str, payload: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + payload).digest()
