"""The errors that running a model can raise, beside those of ptxgen.errors. All derive from PtxGenError."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from pathlib import Path

from ptxgen.errors import ArgumentError, PtxGenError

_SHORT = reprlib.Repr()
_SHORT.maxstring = 80


class ModelError(PtxGenError):
    """A model (file, configuration, vocabulary, template, logits) that cannot be used: file, what, value, allowed."""

    def __init__(self, message: str, path: Path | str | None = None) -> None:
        self.path = path
        super().__init__(message if path is None else f"{path}: {message}")


class UnsupportedModel(ModelError):
    """A good model of which something is not computed here. It says what, and which model near it runs."""


class GrammarError(ArgumentError):
    """A grammar that no answer can follow, or that takes too much to follow: the fault of what was asked, as every
    ArgumentError is, also where it shows in the middle of an answer."""


class SamplingError(ArgumentError):
    """Settings of a sampler that leave no token to choose. setting: the one that does."""

    def __init__(self, message: str, setting: str) -> None:
        self.setting = setting
        super().__init__(message)


class FetchError(PtxGenError):
    """A model that cannot be fetched: what was asked for, why, and what to do."""


def shown(value: object) -> str:
    """What a stranger's file says, for a message: it may hold megabytes, and codes that a terminal obeys. A text that can be
    printed is as it is, all else as Python writes it."""
    text = value if isinstance(value, str) and value.isprintable() else quoted(value)
    return text if len(text) <= 80 else text[:77] + "..."


def quoted(value: object) -> str:
    """As `shown`, with quotes around any text, in one line (NumPy writes arrays in several)."""
    return " ".join(_SHORT.repr(value).split())


class BundleError(PtxGenError):
    """A bundle (executor/bundle) that cannot be used, or that lacks what is asked of it: folder, what, what to do."""

    def __init__(self, message: str, folder: Path | str) -> None:
        self.folder = folder
        super().__init__(f"{folder}: {message}")


class DeviceError(PtxGenError):
    """A device that is not there, or that refused what was asked of it."""


class NoPeerAccess(DeviceError):
    """Two devices of which the kernels of one cannot use the memory of the other."""


class DeviceFailed(DeviceError):
    """A device that a fault has broken: it refuses everything but `free` and `close`. `cause` tells of the first fault."""

    def __init__(self, message: str, cause: str) -> None:
        self.cause = cause
        super().__init__(message)


class OutOfMemory(DeviceError):
    """Memory that a device does not have. Bytes: `requested` in one piece, `free` at that moment."""

    def __init__(self, message: str, requested: int, free: int) -> None:
        self.requested = requested
        self.free = free
        super().__init__(message)


class OutOfPages(PtxGenError):
    """Pages of a KV cache that its pool does not have: `requested`, `available`."""

    def __init__(self, message: str, requested: int, available: int) -> None:
        self.requested = requested
        self.available = available
        super().__init__(message)


class SharingError(PtxGenError, BufferError):
    """Memory that cannot be shared with another library in the way it asks for. (DLPack wants a BufferError here.)"""


class NoLength(ArgumentError, TypeError):
    """`len` of what has no dimensions. (Python wants a TypeError here.)"""


class MissingExtra(PtxGenError, ImportError):
    """What is in an extra that is not installed; the text says how that is done. (Python wants an ImportError here.)"""


class LaunchError(PtxGenError):
    """A launch whose arguments do not fit the kernel's signature, or do not hold what it reads; nothing was launched."""


class NumericalFault(PtxGenError):
    """The debug mode found a NaN or an infinity in what a kernel wrote. layer: None outside the layers; index: of the first one
    in the argument; count: how many there are."""

    def __init__(
        self, message: str, *, layer: int | None, operation: str, kernel: str, argument: str, index: tuple[int, ...], count: int
    ) -> None:
        self.layer = layer
        self.operation = operation
        self.kernel = kernel
        self.argument = argument
        self.index = index
        self.count = count
        super().__init__(message)


class SanitizerError(PtxGenError):
    """The emulator's sanitiser found faults in a launch; `findings` holds them."""

    def __init__(self, kernel: str, findings: Sequence[object]) -> None:
        self.findings = tuple(findings)
        count = len(self.findings)
        super().__init__("\n".join([f"{kernel}: {count} finding{'s' if count != 1 else ''}", *map(str, self.findings)]))
