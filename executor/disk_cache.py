"""A folder of compiled kernels: atomic writes, checksums, a size limit. What the bytes mean is the caller's business.

Entries are files, so several processes may share the folder: a file appears whole or not at all, and one that another process
removes meanwhile is simply not there. The cache is a convenience: a folder that cannot be written is reported once and not
used.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path
from uuid import uuid4

MAGIC = b"ptxgen cache 1\n"
STALE_SECONDS = 3600.0
"""Age from which a temporary file must be the rest of a process that died."""

_log = logging.getLogger(__name__)


class DiskCache:
    """Bytes by key in `folder`, at most `limit_bytes` in all: when it is full, what was used least recently goes."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.corrupt = 0
        """Entries found damaged or of no use, which were removed."""
        self._usable = True

    def get(self, key: str) -> bytes | None:
        """The bytes stored under `key`, None if there are none or they are damaged (then the entry is removed)."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        at = len(MAGIC) + hashlib.sha256().digest_size
        payload = content[at:]
        if not content.startswith(MAGIC) or content[len(MAGIC) : at] != _digest(key, payload):
            self.corrupt += 1
            _log.warning("%s is damaged and will be made again", path)
            _remove(path)
            return None
        touch(path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Store bytes under `key`. What is larger than the whole cache is not stored."""
        content = MAGIC + _digest(key, payload) + payload
        if not self._usable or len(content) > self.limit_bytes:
            return
        path = self._path(key)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{uuid4().hex[:8]}.tmp")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            os.replace(temporary, path)
        except OSError as error:
            self._usable = False
            _log.warning("compiled kernels cannot be kept in %s: %s", self.folder, error)
            _remove(temporary)
            return
        trim(self.folder, self.limit_bytes)

    def remove(self, key: str) -> None:
        """Drop what is stored under `key`: its bytes are whole and still of no use."""
        self.corrupt += 1
        _remove(self._path(key))

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.bin"


def touch(path: Path) -> None:
    """Note that a file was used now."""
    try:
        os.utime(path)
    except OSError:
        _log.debug("%s went away while it was read", path)


def trim(folder: Path, limit_bytes: int) -> None:
    """Remove the files used least recently, until the others (in all subfolders) have at most `limit_bytes`; and the temporary
    files that dead processes left."""
    now = time.time()
    files: list[tuple[float, int, Path]] = []
    for path in folder.rglob("*"):
        try:
            status = path.stat()
            if not path.is_file():
                continue
            if path.suffix in (".tmp", ".part"):
                if now - status.st_mtime > STALE_SECONDS:
                    _remove(path)
                continue
        except OSError:
            continue
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
