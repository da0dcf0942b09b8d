"""The environment variables in one table, the fields of Settings: reading them, their errors, the help of `ptxrun` and
docs/settings.md derive from it. Nothing else in the package reads the environment."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import platformdirs

from executor.base.environment_values import GATHERINGS as GATHERINGS
from executor.base.environment_values import NCCL as NCCL
from executor.base.environment_values import PEER as PEER
from executor.base.environment_values import PRECISIONS as PRECISIONS
from executor.base.environment_values import file, folder, gathering, key, known_gpu, number, precision, variant
from executor.base.environment_values import is_on as is_on
from executor.base.environment_values import parse_variant as parse_variant
from executor.base.environment_variable import FORMAT, EnvironmentVariable, format_ids, switch
from executor.base.rules import RENAMED, RULES
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from ptxgen.gpus.gpu import Gpu

PREFIX: Final = "PTXGEN_"
FOR_TESTS: Final = "PTXGEN_TEST_"
"""Variables of this repository's tests, which mean nothing here."""
MIB: Final = 1 << 20
MOST_WORKERS: Final = 1024
"""Threads: more than any machine has use for, and fewer than it cannot start."""
CACHE_LIMIT_MB: Final = 512
"""Room for the kernels of some dozens of models: a cubin has 5 to 50 KB, an emulator object 20 to 200 KB."""


class _Source(NamedTuple):
    """Where the value of a setting comes from: the variables, and what reads them."""

    variables: tuple[EnvironmentVariable[Any], ...]
    read: Callable[[], Any]


def _from(*variables: EnvironmentVariable[Any], read: Callable[[], Any] | None = None) -> Mapping[str, _Source]:
    """The metadata of a field whose value is that of one variable, or what `read` makes of several."""
    return {"source": _Source(variables, read or variables[0].read)}


_GEMV: Final = EnvironmentVariable[str | None](
    f"PTXGEN_GEMV_{FORMAT}",
    "the kernel that multiplies weights of a format (Q4K, Q8_0, ...) by a vector",
    "NAME or NAME:parameter=value,...; 0 for the profile's choice",
    "chosen by the profile",
    lambda: None,
    None,
    variant,
)


def _named_kernels() -> Mapping[str, str]:
    return {id: named for id in format_ids() if (named := _GEMV.read(id)) is not None}


def _said_rules() -> Mapping[str, bool]:
    return {name: said for name, rule in RULES.items() if (said := rule.variable.read()) is not None}


@dataclass(frozen=True)
class Settings:
    """The values of all variables but the key of `ptxrun serve`; each field is a row of the table."""

    cache_dir: Path | None = field(
        metadata=_from(
            EnvironmentVariable[Path | None](
                "PTXGEN_CACHE_DIR",
                "where compiled kernels, tuning tables and fetched models are kept",
                "a folder; 0 keeps nothing",
                "the user's cache folder",
                lambda: Path(platformdirs.user_cache_dir("ptxgen", appauthor=False)),
                None,
                folder,
            )
        )
    )
    model_dir: Path | None = field(
        metadata=_from(
            EnvironmentVariable[Path | None](
                "PTXGEN_MODEL_DIR",
                "folder of models that are fetched by name",
                "a folder; 0 for the default",
                "`models` in the cache folder",
                lambda: None,
                None,
                folder,
            )
        )
    )
    cache_limit_bytes: int = field(
        metadata=_from(
            EnvironmentVariable[int](
                "PTXGEN_CACHE_LIMIT_MB",
                "size of the cache of compiled kernels; the least recently used are removed",
                "a whole number of MiB; 0 keeps no kernels",
                str(CACHE_LIMIT_MB),
                lambda: CACHE_LIMIT_MB * MIB,
                0,
                lambda text: number(text) * MIB,
            )
        )
    )
    emulator_workers: int = field(
        metadata=_from(
            EnvironmentVariable[int](
                "PTXGEN_EMULATOR_WORKERS",
                "threads of the emulator",
                f"a whole number up to {MOST_WORKERS}; 0 runs without a thread pool",
                "the CPUs of the process",
                lambda: len(os.sched_getaffinity(0)),
                1,
                lambda text: max(1, number(text, MOST_WORKERS)),
            )
        )
    )
    emulator_seconds: int | None = field(
        metadata=_from(
            EnvironmentVariable[int | None](
                "PTXGEN_EMULATOR_SECONDS",
                "time limit of one launch on the emulator",
                "a whole number of seconds; 0 for no limit",
                "no limit",
                lambda: None,
                None,
                number,
            )
        )
    )
    precision: str | None = field(
        metadata=_from(
            EnvironmentVariable[str | None](
                "PTXGEN_PRECISION",
                "precision of activations, unless an option sets it",
                f"{' or '.join(PRECISIONS)}; 0 for the default",
                PRECISIONS[0],
                lambda: None,
                None,
                precision,
            )
        )
    )
    gemv: Mapping[str, str] = field(metadata=_from(_GEMV, read=_named_kernels))
    tuning: Path | bool = field(
        metadata=_from(
            EnvironmentVariable[Path | bool](
                "PTXGEN_TUNING",
                "the tuning table that `ptxrun tune` writes and models use",
                "a file; 1 for the default; 0 uses no table, not even the shipped ones",
                "a file for each GPU in the cache folder",
                lambda: True,
                False,
                lambda text: is_on(text) or file(text),
            )
        )
    )
    rules: Mapping[str, bool] = field(metadata=_from(*(rule.variable for rule in RULES.values()), read=_said_rules))
    gathers: str | int | None = field(
        metadata=_from(
            EnvironmentVariable[str | int | None](
                "PTXGEN_GATHERS",
                "the all-gather backend of several GPUs: kernels of this package over peer access, or NCCL",
                f"{' or '.join(GATHERINGS)}, or a whole number: NCCL from that many gathered bytes; 0 for the default",
                "peer where all GPUs reach each other, else nccl",
                lambda: None,
                None,
                gathering,
            )
        )
    )
    device_limits: Gpu | None = field(
        metadata=_from(
            EnvironmentVariable["Gpu | None"](
                "PTXGEN_DEVICE_LIMITS",
                "makes a larger GPU, or the emulator, run the kernels of this one within its limits",
                "a known GPU, as `rtx-4090`; 0 for none",
                "none",
                lambda: None,
                None,
                known_gpu,
            )
        )
    )
    debug: bool = field(
        metadata=_from(switch("GPU_DEBUG", "checks the output of each kernel for NaN and infinity, and reports the first"))
    )


_SOURCES: Final[Mapping[str, _Source]] = {one.name: one.metadata["source"] for one in fields(Settings)}

API_KEY: Final = EnvironmentVariable[str | None](
    "PTXGEN_API_KEY",
    "the key that clients of `ptxrun serve` must send, unless --api-key-file is given",
    "printable ASCII without spaces; 0 for none",
    "none: any client that reaches the server may send requests",
    lambda: None,
    None,
    key,
    secret=True,
)
"""Not one of the Settings: it is a secret."""

VARIABLES: Final = (*(one for source in _SOURCES.values() for one in source.variables), API_KEY)


def variable(setting: str) -> EnvironmentVariable[Any]:
    """The variable, or the first of them, of a field of Settings."""
    return _SOURCES[setting].variables[0]


def settings() -> Settings:
    """The values now. ArgumentError for one that is not allowed, and for an unknown variable that looks like ours."""
    _check_names()
    return Settings(**{name: source.read() for name, source in _SOURCES.items()})


def _check_names() -> None:
    names = [name for variable in VARIABLES for name in variable.names]
    renamed = {f"{PREFIX}{old.upper()}": f"{PREFIX}{new.upper()}" for old, new in RENAMED.items()}
    for name in os.environ:
        if name.startswith(PREFIX) and not name.startswith(FOR_TESTS) and name not in names:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.75)
            hint = f"near: {', '.join(near)}" if near else f"known: {', '.join(variable.name for variable in VARIABLES)}"
            raise ArgumentError(
                f"there is no environment variable {name}; {f'it is {renamed[name]} now' if name in renamed else hint}"
            )


def help_text() -> str:
    """The variables as click prints them under a command's options."""
    lines = [f"  {v.name}\n      {v.does}\n      {v.allowed} (default: {v.default})" for v in VARIABLES]
    return "\b\nEnvironment variables; 0 or false switch a thing off:\n" + "\n".join(lines)


def markdown() -> str:
    """The variables as the table of docs/settings.md."""
    rows = ["| variable | what it does | allowed | default |", "|---|---|---|---|"]
    return "\n".join([*rows, *(f"| `{v.name}` | {v.does} | {v.allowed} | {v.default} |" for v in VARIABLES)])
