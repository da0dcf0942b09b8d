"""What a device is, how kernels are chosen on it and why, and what would help. Measures nothing and loads no model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from executor.base.disk_cache import ENTRIES
from executor.base.environment import Settings, settings, variable
from executor.base.errors import DeviceError
from executor.base.rules import RULES, Rule
from executor.choice.choice import GpuProfile
from executor.choice.store import own_path
from executor.choice.table import TuningTable
from executor.device.cuda_gpu import gpus_there
from executor.device.gpu import GpuModel
from executor.device.protocol import Device
from ptxgen import __version__
from ptxgen.target import Target

LEAST_DRIVER: Final = 13
"""The major version of CUDA of the drivers that take all texts (ptxgen.target.NEWEST_PTX)."""
LEAST_FREE: Final = 0.5
"""Of a GPU's memory: with less free, other programs use it."""
TUNE: Final = "`ptxrun tune MODEL`"


@dataclass(frozen=True)
class RuleState:
    """Whether a rule is on, and why."""

    name: str
    on: bool
    why: str


@dataclass(frozen=True)
class TableFacts:
    """A tuning table: the GPU it is of, its entries, the first and last day of measuring ("" where none is said), and how many
    entries are of other versions of the package, the assembler or the driver."""

    source: str
    gpu: str
    shipped: bool
    entries: int
    first: str
    last: str
    other_versions: int


@dataclass(frozen=True)
class KernelCache:
    """Compiled kernels on disk: folder None where none are kept."""

    folder: str | None
    kernels: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Diagnosis:
    """driver: what is wrong with it, None if nothing is. gpus: all that it shows. device, free_bytes: of the one that was
    opened. limits: the product whose limits it has, None for its own."""

    version: str
    driver: str | None
    gpus: list[dict[str, Any]]
    device: dict[str, Any]
    free_bytes: int
    limits: str | None
    precision: str
    rules: list[RuleState]
    measured: list[TableFacts]
    kernels: KernelCache
    first_load: list[str]
    suggestions: list[str]

    def facts(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def diagnose(device: Device) -> Diagnosis:
    """Of an open device. ArgumentError for a setting or a table that is not allowed."""
    environment, profile = settings(), GpuProfile.for_device(device)
    driver, gpus = None, []
    try:
        gpus = [facts.facts() for facts in gpus_there()]
    except DeviceError as error:
        driver = str(error)
    measured = [_measured(table, device) for table in profile.tables]
    kernels = _kernels(environment, device)
    device_facts = {"reason": device.reason} | device.describe()
    limits = environment.device_limits.title if environment.device_limits is not None else None
    rules = [_state(rule, profile, device.target) for rule in RULES.values()]
    loading = [*_first_load(device, profile, environment, kernels)]
    helping = [*_suggestions(device, environment, rules, measured, driver)]
    return Diagnosis(
        __version__, driver, gpus, device_facts, device.memory().free, limits, profile.precision, rules, measured, kernels,
        loading, helping,
    )  # fmt: skip


def _state(rule: Rule, profile: GpuProfile, target: Target) -> RuleState:
    said, lacks = rule.variable.read(), rule.lacks(target)
    missing = [name for name in rule.only_with if not profile.allows(name)]
    if lacks:
        why = lacks.removeprefix(f"{rule.name} ")
    elif said is not None:
        why = f"{rule.variable.name} says so"
    elif missing and rule.name in profile.rules:
        why = f"does nothing without {', '.join(missing)}"
    else:
        why = f"default: {rule.usually.value}"
    return RuleState(rule.name, profile.allows(rule.name) and not lacks, why)


def _measured(table: TuningTable, device: Device) -> TableFacts:
    days = sorted(entry.measured for entry in table.entries if entry.measured)
    other = sum(bool(entry.versions) and not entry.versions.endswith(device.build) for entry in table.entries)
    first, last = (days[0], days[-1]) if days else ("", "")
    return TableFacts(table.source, table.gpu.name, table.shipped, len(table.entries), first, last, other)


def _kernels(environment: Settings, device: Device) -> KernelCache:
    if environment.cache_dir is None or not environment.cache_limit_bytes:
        return KernelCache(None)
    folder = environment.cache_dir / "kernels" / device.kind
    files = [path for path in folder.rglob("*") if path.suffix in ENTRIES]
    return KernelCache(str(folder), len(files), sum(path.stat().st_size for path in files))


def _first_load(device: Device, profile: GpuProfile, environment: Settings, kernels: KernelCache) -> Iterator[str]:
    compiler = device.describe().get("assembler", "LLVM")
    kept = f", but the {kernels.kernels} that are kept in {kernels.folder}" if kernels.folder else ", and keeps none"
    yield f"compiles its kernels by {compiler}{kept}"
    if profile.allows("repack"):
        yield "repacks Q6_K and Q8_0 matrices"
    own = [table for table in profile.tables if not table.shipped]
    path = own_path(GpuModel.of(device), environment)
    if own:
        yield f"takes the kernels that {TUNE} kept in {own[0].source}"
    elif device.kind == "cuda" and path is not None:
        yield f"has no measurements of yours: there is no {path}"
    if shipped := [table.gpu.name for table in profile.tables if table.shipped]:
        yield f"takes settings that were measured on {', '.join(dict.fromkeys(shipped))}"
    if profile.costs is not None:
        yield f"where nothing was measured, takes for several rows what is expected to be fastest on {profile.costs.gpu.title}"


def _suggestions(
    device: Device, environment: Settings, rules: list[RuleState], measured: list[TableFacts], driver: str | None
) -> Iterator[str]:
    facts, memory = device.describe(), device.memory()
    if driver is not None:
        yield f"no GPU can be used: {driver}"
    elif device.kind == "emulator" and device.reason != "asked for":
        yield f"kernels run on the emulator, slowly: {device.reason}"
    if device.kind == "cuda" and int(facts["cuda_driver"].partition(".")[0]) < LEAST_DRIVER:
        yield f"the driver is of CUDA {facts['cuda_driver']}; one of {LEAST_DRIVER}.0 or newer compiles every text"
    if device.kind == "cuda" and memory.free < LEAST_FREE * memory.total:
        yield f"{memory.free >> 20} of {memory.total >> 20} MiB are free: `nvidia-smi` shows which programs have the others"
    if device.kind == "cuda" and not any(table.entries for table in measured if not table.shipped):
        yield f"{TUNE} measures what is fastest for a model on this GPU"
    for table in measured:
        if table.other_versions and not table.shipped:
            yield f"{table.other_versions} entries of {table.source} are of other versions: `ptxrun tune MODEL --again`"
    if environment.cache_dir is None or not environment.cache_limit_bytes:
        yield "PTXGEN_CACHE_DIR or PTXGEN_CACHE_LIMIT_MB is off: every start compiles all kernels"
    if environment.tuning is False:
        yield f"{variable('tuning').name} is off: no measurement is used, not even shipped ones"
    if environment.debug:
        yield f"{variable('debug').name} is on: every kernel is waited for and checked"
    if environment.device_limits is not None:
        title = environment.device_limits.title
        yield f"{variable('device_limits').name} is set: speeds are neither this device's nor those of a {title}"
    for rule in rules:
        if not rule.on and environment.rules.get(rule.name) is False and RULES[rule.name].same_bits:
            yield f"{RULES[rule.name].variable.name} switches off what changes no bits"
