"""The errors that running a model can raise, beside those of ptxgen.errors. All derive from PtxGenError."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ptxgen.errors import PtxGenError


class ModelError(PtxGenError):
    """A model (file, configuration, vocabulary, template, logits) that cannot be used: file, what, value, allowed."""

    def __init__(self, message: str, path: Path | str | None = None) -> None:
        self.path = path
        super().__init__(message if path is None else f"{path}: {message}")


class BundleError(PtxGenError):
    """A bundle (executor/bundle) that cannot be used, or that lacks what is asked of it: folder, what, what to do."""

    def __init__(self, message: str, folder: Path | str) -> None:
        self.folder = folder
        super().__init__(f"{folder}: {message}")


class DeviceError(PtxGenError):
    """A device that is not there, or that refused what was asked of it."""


class LaunchError(PtxGenError):
    """A launch whose arguments do not fit the kernel's signature; nothing was launched."""


class SanitizerError(PtxGenError):
    """The emulator's sanitiser found faults in a launch; `findings` holds them."""

    def __init__(self, kernel: str, findings: Sequence[object]) -> None:
        self.findings = tuple(findings)
        count = len(self.findings)
        super().__init__("\n".join([f"{kernel}: {count} finding{'s' if count != 1 else ''}", *map(str, self.findings)]))
