"""The environment variables in one table: reading them, their errors, the help of `ptxrun` and docs/settings.md derive from
it. Nothing else in the package reads the environment."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import platformdirs

from executor.base.environment_values import GATHERINGS as GATHERINGS
from executor.base.environment_values import NCCL as NCCL
from executor.base.environment_values import PEER as PEER
from executor.base.environment_values import PRECISIONS as PRECISIONS
from executor.base.environment_values import file, folder, gathering, is_off, key, number, on, precision, variant
from executor.base.environment_values import is_on as is_on
from executor.base.environment_values import parse_variant as parse_variant
from ptxgen.errors import ArgumentError

PREFIX: Final = "PTXGEN_"
FOR_TESTS: Final = "PTXGEN_TEST_"
"""Variables of this repository's tests, which mean nothing here."""
FORMAT: Final = "<FORMAT>"
MIB: Final = 1 << 20
MOST_WORKERS: Final = 1024
"""Threads: more than any machine has use for, and fewer than it cannot start."""
CACHE_LIMIT_MB: Final = 512
"""Room for the kernels of some dozens of models: a cubin has 5 to 50 KB, an emulator object 20 to 200 KB."""

T = TypeVar("T")


@dataclass(frozen=True)
class EnvironmentVariable(Generic[T]):
    """One variable, or one for each weight format where the name holds <FORMAT>.

    Not set or empty means `unset()`; 0 and false, in any case, mean `off`; `parse` turns any other text into a value and raises
    ValueError for one that is not allowed. `allowed` and `default` are texts for people. secret: no error shows its value."""

    name: str
    does: str
    allowed: str
    default: str
    unset: Callable[[], T]
    off: T
    parse: Callable[[str], T]
    secret: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it stands for."""
        return tuple(map(self._of, _format_ids())) if FORMAT in self.name else (self.name,)

    def read(self, id: str = "") -> T:
        """Its value now. ArgumentError, with variable, value and what is allowed, for a value that is not. id: as of
        `refused`."""
        text = os.environ.get(self._of(id), "").strip()
        if not text:
            return self.unset()
        if is_off(text):
            return self.off
        try:
            return self.parse(text)
        except ValueError as error:
            raise self.refused(str(error) if isinstance(error, ArgumentError) else "", id) from None

    def refused(self, why: str, id: str = "") -> ArgumentError:
        """The error for the value that it has now, which is not allowed; why: what is wrong with it, where that is known; id:
        of the format, where there is a variable for each."""
        name = self._of(id)
        value = "set to what is not shown" if self.secret else repr(os.environ.get(name, "").strip())
        return ArgumentError(f"environment variable {name} is {value}; allowed: {self.allowed}{f' ({why})' if why else ''}")

    def note(self, id: str = "", value: str = "") -> str:
        """For an error about what it asks for: that it does, in brackets; nothing where it is not set, or to another value. id:
        as of `refused`."""
        text = os.environ.get(self._of(id), "").strip()
        return f" (environment variable {self._of(id)} is {text!r})" if text and value in ("", text) else ""

    def _of(self, id: str) -> str:
        return self.name.replace(FORMAT, id.upper())


def _switch(name: str, does: str) -> EnvironmentVariable[bool]:
    """One that is off unless it is set."""
    return EnvironmentVariable(name, does, "1 or 0", "0", lambda: False, False, on)


def _switch_by_gpu(name: str, does: str, gpus: str = "from sm_90 on") -> EnvironmentVariable[bool | None]:
    """One that GpuProfile.for_device decides unless it is set."""
    default = f"1 on a GPU {gpus} whose generation has a shipped tuning table, else 0"
    return EnvironmentVariable(name, does, "1 or 0", default, lambda: None, False, on)


CACHE_DIR: Final = EnvironmentVariable[Path | None](
    "PTXGEN_CACHE_DIR",
    "where compiled kernels, tuning tables and fetched models are kept",
    "a folder; 0 keeps nothing",
    "the user's cache folder",
    lambda: Path(platformdirs.user_cache_dir("ptxgen", appauthor=False)),
    None,
    folder,
)
MODEL_DIR: Final = EnvironmentVariable[Path | None](
    "PTXGEN_MODEL_DIR",
    "folder of models that are fetched by name",
    "a folder; 0 for the default",
    "`models` in the cache folder",
    lambda: None,
    None,
    folder,
)
CACHE_LIMIT: Final = EnvironmentVariable[int](
    "PTXGEN_CACHE_LIMIT_MB",
    "size of the cache of compiled kernels; the least recently used are removed",
    "a whole number of MiB; 0 keeps no kernels",
    str(CACHE_LIMIT_MB),
    lambda: CACHE_LIMIT_MB,
    0,
    number,
)
WORKERS: Final = EnvironmentVariable[int](
    "PTXGEN_EMULATOR_WORKERS",
    "threads of the emulator",
    f"a whole number up to {MOST_WORKERS}; 0 runs without a thread pool",
    "the CPUs of the process",
    lambda: len(os.sched_getaffinity(0)),
    1,
    lambda text: number(text, MOST_WORKERS),
)
LAUNCH_SECONDS: Final = EnvironmentVariable[int | None](
    "PTXGEN_EMULATOR_SECONDS",
    "time limit of one launch on the emulator",
    "a whole number of seconds; 0 for no limit",
    "no limit",
    lambda: None,
    None,
    number,
)
PRECISION: Final = EnvironmentVariable[str | None](
    "PTXGEN_PRECISION",
    "precision of activations, unless an option sets it",
    f"{' or '.join(PRECISIONS)}; 0 for the default",
    PRECISIONS[0],
    lambda: None,
    None,
    precision,
)
GEMV: Final = EnvironmentVariable[str | None](
    f"PTXGEN_GEMV_{FORMAT}",
    "the kernel that multiplies weights of a format (Q4K, Q8_0, ...) by a vector",
    "NAME or NAME:parameter=value,...; 0 for the profile's choice",
    "chosen by the profile",
    lambda: None,
    None,
    variant,
)
TUNING: Final = EnvironmentVariable[Path | bool](
    "PTXGEN_TUNING",
    "the tuning table that `ptxrun tune` writes and models use",
    "a file; 1 for the default; 0 uses no table, not even the shipped ones",
    "a file for each GPU in the cache folder",
    lambda: True,
    False,
    lambda text: is_on(text) or file(text),
)
BATCH_INVARIANT: Final = _switch(
    "PTXGEN_BATCH_INVARIANT",
    "gives a token the same bits beside any other tokens, on every device",
)
REPACK: Final = _switch_by_gpu(
    "PTXGEN_REPACK",
    "repacks a model's Q6_K and Q8_0 matrices into aligned blocks at loading: fewer instructions, 6.7 % more bytes of Q6_K",
)
MERGED_ATTENTION: Final = _switch_by_gpu(
    "PTXGEN_MERGED_ATTENTION",
    "computes attention of a row on its own in one launch instead of two (sm_90 and later)",
)
ROTATING_ATTENTION: Final = _switch_by_gpu(
    "PTXGEN_ROTATING_ATTENTION",
    "fuses RoPE and the KV write into attention (sm_90 and later)",
)
EARLY_LAUNCHES: Final = _switch_by_gpu(
    "PTXGEN_EARLY_LAUNCHES",
    "starts each kernel of a step before its predecessor has ended: programmatic dependent launch (sm_90 and later)",
)
JOINED_PRODUCTS: Final = _switch_by_gpu(
    "PTXGEN_JOINED_PRODUCTS",
    "multiplies by q, k and v (also of different formats), and by gate and up, in one launch",
)
FUSED_NORMS: Final = _switch_by_gpu(
    "PTXGEN_FUSED_NORMS",
    "fuses RMSNorm into the neighbouring GEMVs",
)
GATED_PRODUCTS: Final = _switch_by_gpu(
    "PTXGEN_GATED_PRODUCTS",
    "fuses SwiGLU into the GEMV with gate and up, if their weights are of one format",
)
WEIGHT_RINGS: Final = _switch_by_gpu(
    "PTXGEN_WEIGHT_RINGS",
    "prefetches a GEMV's weights into shared memory before the previous kernel has ended",
    "of sm_90 or sm_100",
)
PERSISTENT_LAYERS: Final = _switch(
    "PTXGEN_PERSISTENT_LAYERS",
    "runs everything between the attention of one layer and the next in one persistent kernel",
)
GATHERS: Final = EnvironmentVariable[str | int | None](
    "PTXGEN_GATHERS",
    "the all-gather backend of several GPUs: kernels of this package over peer access, or NCCL",
    f"{' or '.join(GATHERINGS)}, or a whole number: NCCL from that many gathered bytes; 0 for the default",
    "peer where all GPUs reach each other, else nccl",
    lambda: None,
    None,
    gathering,
)
DEBUG: Final = _switch(
    "GPU_DEBUG",
    "checks the output of each kernel for NaN and infinity, and reports the first",
)
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
VARIABLES: Final[tuple[EnvironmentVariable[Any], ...]] = (
    CACHE_DIR,
    MODEL_DIR,
    CACHE_LIMIT,
    WORKERS,
    LAUNCH_SECONDS,
    PRECISION,
    GEMV,
    TUNING,
    BATCH_INVARIANT,
    REPACK,
    MERGED_ATTENTION,
    ROTATING_ATTENTION,
    EARLY_LAUNCHES,
    JOINED_PRODUCTS,
    FUSED_NORMS,
    GATED_PRODUCTS,
    WEIGHT_RINGS,
    PERSISTENT_LAYERS,
    GATHERS,
    DEBUG,
    API_KEY,
)


@dataclass(frozen=True)
class Settings:
    """The values of all variables but the key of `ptxrun serve`.

    cache_dir: where files are kept, None for nowhere; model_dir: where models are, None for the default; cache_limit_bytes: of
    compiled kernels, 0 keeps none; emulator_workers: threads; emulator_seconds: of a launch, None for no limit; precision: None
    if not set; gemv: kernels by format id; tuning: a table's file, True for the default, False for none; batch_invariant,
    repack, merged_attention, rotating_attention, early_launches, joined_products, fused_norms, gated_products, weight_rings,
    persistent_layers: as GpuProfile's, None if it depends on the GPU; gathers: `peer`, `nccl`, bytes from which NCCL gathers,
    None if not set; debug: look for NaN and infinity."""

    cache_dir: Path | None
    model_dir: Path | None
    cache_limit_bytes: int
    emulator_workers: int
    emulator_seconds: int | None
    precision: str | None
    gemv: Mapping[str, str]
    tuning: Path | bool
    batch_invariant: bool
    repack: bool | None
    merged_attention: bool | None
    rotating_attention: bool | None
    early_launches: bool | None
    joined_products: bool | None
    fused_norms: bool | None
    gated_products: bool | None
    weight_rings: bool | None
    persistent_layers: bool
    gathers: str | int | None
    debug: bool


def settings() -> Settings:
    """The values now. ArgumentError for one that is not allowed, and for an unknown variable that looks like ours."""
    _check_names()
    gemv = {id: GEMV.read(id) for id in _format_ids()}
    return Settings(
        cache_dir=CACHE_DIR.read(),
        model_dir=MODEL_DIR.read(),
        cache_limit_bytes=CACHE_LIMIT.read() * MIB,
        emulator_workers=max(1, WORKERS.read()),
        emulator_seconds=LAUNCH_SECONDS.read(),
        precision=PRECISION.read(),
        gemv={id: named for id, named in gemv.items() if named is not None},
        tuning=TUNING.read(),
        batch_invariant=BATCH_INVARIANT.read(),
        repack=REPACK.read(),
        merged_attention=MERGED_ATTENTION.read(),
        rotating_attention=ROTATING_ATTENTION.read(),
        early_launches=EARLY_LAUNCHES.read(),
        joined_products=JOINED_PRODUCTS.read(),
        fused_norms=FUSED_NORMS.read(),
        gated_products=GATED_PRODUCTS.read(),
        weight_rings=WEIGHT_RINGS.read(),
        persistent_layers=PERSISTENT_LAYERS.read(),
        gathers=GATHERS.read(),
        debug=DEBUG.read(),
    )


def _check_names() -> None:
    names = [name for variable in VARIABLES for name in variable.names]
    for name in os.environ:
        if name.startswith(PREFIX) and not name.startswith(FOR_TESTS) and name not in names:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.75)
            hint = f"near: {', '.join(near)}" if near else f"known: {', '.join(variable.name for variable in VARIABLES)}"
            raise ArgumentError(f"there is no environment variable {name}; {hint}")


def _format_ids() -> list[str]:
    from ptxgen.formats import ALL  # late, so that the commands start quickly

    return [format.id for format in ALL.values()]


def help_text() -> str:
    """The variables as click prints them under a command's options."""
    lines = [f"  {v.name}\n      {v.does}\n      {v.allowed} (default: {v.default})" for v in VARIABLES]
    return "\b\nEnvironment variables; 0 or false switch a thing off:\n" + "\n".join(lines)


def markdown() -> str:
    """The variables as the table of docs/settings.md."""
    rows = ["| variable | what it does | allowed | default |", "|---|---|---|---|"]
    return "\n".join([*rows, *(f"| `{v.name}` | {v.does} | {v.allowed} | {v.default} |" for v in VARIABLES)])
