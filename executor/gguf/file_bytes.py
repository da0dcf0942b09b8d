"""The bytes of a large file, read and never mapped: where a file becomes shorter, a mapping ends the process and an
ordinary read fails."""

from __future__ import annotations

import os
import stat
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import ModelError


class FileBytes:
    """An open regular file of `size` bytes, until it is closed or the last reference has gone."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError for a file that cannot be opened, is not regular, or is empty."""
        self.path = path
        try:
            # Not blocking: a pipe would otherwise wait for a writer; it is refused below, like all that is not a file.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ModelError("there is no such file", path) from None
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot be opened: {getattr(error, 'strerror', None) or error}", path) from None
        self._close = weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        if stat.S_ISDIR(status.st_mode):
            raise ModelError("this is a directory, not a GGUF file", path)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError("this is not a regular file", path)
        if self.size == 0:
            raise ModelError("the file is empty", path)

    def read_into(self, offset: int, into: NDArray[np.uint8], what: str) -> None:
        """Fill an array with the bytes from `offset` on; several threads may do so at once. Raises ModelError, which says
        `what` could not be read: the file is closed, the system refuses, or it has become shorter."""
        if not self._close.alive:
            raise ModelError(f"the file is closed; {what} cannot be read", self.path)
        done = 0
        while done < into.size:
            try:
                count = os.preadv(self._descriptor, [into[done:].data], offset + done)
            except OSError as error:
                raise ModelError(f"{what} cannot be read: {error.strerror}", self.path) from error
            if count == 0:
                raise ModelError(f"{what} cannot be read: the file has become shorter since it was opened", self.path)
            done += count

    def close(self) -> None:
        """Let go of the file; a second time does nothing."""
        self._close()
