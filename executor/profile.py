"""Settings from the environment: the only module that reads environment variables. A value of 0 switches the thing off. And the
profile: which kernel is used for what."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS, Format
from ptxgen.kernels.kernel_type import KernelType
from ptxgen.kernels.registry import find

MIB = 1 << 20
GEMV_VARIABLE = "PTXGEN_GEMV_"
DIGITS = {"accurate": 3, "fast": 1}
"""Int8 digits of an activation, by precision. Three are f32's own level; two are off by 2e-5 (KernelType.accuracy)."""
PRECISIONS = tuple(DIGITS)
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


@dataclass(frozen=True)
class Choice:
    """A kernel that multiplies weights of one format and shape by a vector, and why it was chosen."""

    kernel: KernelType
    reason: str


@dataclass(frozen=True)
class GpuProfile:
    """Which kernels are used.

    precision: `accurate` (a dot product is right to 1e-5) or `fast` (activations rounded to one int8 digit). gemv: for a weight
    format, by its id (`q4k`, `q8_0`, ...), the registered name of the kernel that multiplies its weights by a vector, whatever
    the precision. ArgumentError for an unknown precision or format."""

    precision: str = "accurate"
    gemv: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ArgumentError(f"precision is {self.precision!r}; known: {', '.join(PRECISIONS)}")
        known = [format.id for format in FORMATS.values()]
        for id in self.gemv:
            if id not in known:
                raise ArgumentError(f"the profile names a GEMV for {id!r}, which is no format; formats: {', '.join(known)}")

    def choose(self, format: Format, k: int, n: int, *, accurate: bool = False) -> Choice:
        """The kernel for n rows of k weights. accurate: of the accurate precision, whatever the profile's is. Raises
        ArgumentError if the profile names a kernel that is not there or has other parameters."""
        named = self.gemv.get(format.id)
        if named is not None and not accurate:
            return Choice(find(named).make(k=k, n=n), f"the profile names {named} for {format.name}")
        precision = "accurate" if accurate else self.precision
        if not format.packed_width:
            return Choice(
                find(f"mwv_{format.id}_gemv").make(k=k, n=n), f"{format.name} has no integer codes, so f32 activations"
            )
        digits = DIGITS[precision]
        kernel = find(f"hw_dp4a_{format.id}_gemv").make(k=k, n=n, digits=digits)
        return Choice(kernel, f"{precision}: {digits} int8 digits of the activations")

    @classmethod
    def from_environment(cls) -> GpuProfile:
        """PTXGEN_GEMV_Q4K=NAME and the like, one for each format; 0 or nothing is the kernel that is used anyway."""
        named = {
            name.removeprefix(GEMV_VARIABLE).lower(): value.strip()
            for name, value in os.environ.items()
            if name.startswith(GEMV_VARIABLE)
        }
        return cls(gemv={id: value for id, value in named.items() if value not in ("", "0")})


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise ArgumentError(f"environment variable {name} is {text!r}; it must be a whole number, 0 for off")
    return int(text)
