"""Settings from the environment: the only module that reads environment variables. A value of 0 switches the thing off."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ptxgen.errors import ArgumentError

MIB = 1 << 20
DEFAULT_CACHE_LIMIT_MB = 512
"""Room for the kernels of some dozens of models: a cubin has 5 to 50 KB, an emulator object 20 to 200 KB."""


@dataclass(frozen=True)
class Settings:
    """cache_dir: where compiled kernels are kept, None for nowhere; workers: threads of the emulator."""

    cache_dir: Path | None
    cache_limit_bytes: int
    emulator_workers: int


def settings() -> Settings:
    """What the environment says now.

    PTXGEN_CACHE_DIR: a folder (default: the user's cache folder); 0 keeps nothing on disk.
    PTXGEN_CACHE_LIMIT_MB: size at which the oldest entries go, in MiB; 0 keeps nothing on disk.
    PTXGEN_EMULATOR_WORKERS: threads (default: the CPUs of this process); 0 runs without a thread pool.
    Raises ArgumentError for a value that is not a number.
    """
    limit = _number("PTXGEN_CACHE_LIMIT_MB", DEFAULT_CACHE_LIMIT_MB) * MIB
    folder = os.environ.get("PTXGEN_CACHE_DIR", "") or platformdirs.user_cache_dir("ptxgen", appauthor=False)
    return Settings(
        cache_dir=None if folder == "0" or limit == 0 else Path(folder).expanduser(),
        cache_limit_bytes=limit,
        emulator_workers=max(1, _number("PTXGEN_EMULATOR_WORKERS", len(os.sched_getaffinity(0)))),
    )


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise ArgumentError(f"environment variable {name} is {text!r}; it must be a whole number, 0 for off")
    return int(text)
