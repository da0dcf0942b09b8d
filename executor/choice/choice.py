"""Chooses the kernel that multiplies weights of a format by a vector: the one that the user names, else the fastest that was
measured on this GPU, else what every device uses. Measures nothing (executor/tune and executor/measure do)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from executor.base.arguments import described, instance
from executor.base.environment import PRECISIONS, parse_variant, settings
from executor.choice.store import tables_for
from executor.choice.strategies import Strategy, bit_free, default_strategy, require_precision
from executor.choice.table import TuningEntry, TuningTable
from executor.device.gpu import GpuModel
from executor.device.protocol import Device
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS, Format
from ptxgen.kernels.registry import find

if TYPE_CHECKING:
    from executor.launch.modules import Modules


@dataclass(frozen=True)
class Choice:
    """A kernel that multiplies weights of one format and shape by a vector, and why it was chosen. entry: what was measured of
    it for this very shape, if anything was."""

    kernel: KernelType
    reason: str
    entry: TuningEntry | None = None


@dataclass(frozen=True)
class GpuProfile:
    """How kernels are chosen on one GPU; nothing here is measured, it is what was measured before.

    precision: `accurate` (a dot product is right to 1e-5) or `fast` (activations rounded to one int8 digit). gemv: for a weight
    format, by its id (`q4k`, `q8_0`, ...), the kernel that multiplies its weights by a vector, whatever the precision: `NAME`
    or `NAME:parameter=value,...`. tables: what was measured on this GPU, the most telling first. ArgumentError for an unknown
    precision or format."""

    precision: str = PRECISIONS[0]
    gemv: Mapping[str, str] = field(default_factory=dict, hash=False)
    tables: tuple[TuningTable, ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        require_precision(self.precision)
        if not isinstance(self.gemv, Mapping):
            raise ArgumentError(f"gemv is {described(self.gemv)}; allowed: kernels by the ids of formats")
        ids = [format.id for format in FORMATS.values()]
        for id, variant in self.gemv.items():
            if id not in ids:
                raise ArgumentError(f"the profile names a GEMV for {id!r}, which is not a format; formats: {', '.join(ids)}")
            parse_variant(instance(f"the GEMV for {id}", variant, str))

    @classmethod
    def for_device(cls, device: Device) -> Self:
        """What the environment says, and what was measured on this device's GPU."""
        return replace(cls.from_environment(), tables=tables_for(GpuModel.of(device), settings()))

    @classmethod
    def for_modules(cls, modules: Modules) -> Self:
        """As `for_device`; but a bundle has the kernels of `from_environment`, at the precision that it was written with."""
        if modules.bundle is None:
            return cls.for_device(modules.device)
        return replace(cls.from_environment(), precision=modules.bundle.precision)

    @classmethod
    def from_environment(cls) -> Self:
        """What the environment says, without any measurement: the kernels of a bundle, which runs on any GPU."""
        environment = settings()
        return cls(environment.precision or PRECISIONS[0], environment.gemv)

    def choose(self, format: Format, k: int, n: int, *, accurate: bool = False) -> Choice:
        """The kernel for n rows of k weights. accurate: none that reads one int8 digit, whatever the profile says. Raises
        ArgumentError if the profile names a kernel that is not there, is for another format or has other parameters."""
        variant = self.gemv.get(format.id)
        if variant is not None:
            name, parameters = parse_variant(variant)
            entry = find(name)
            own = entry.fixed.get("format", format)
            if own != format:  # checked before `make`, whose errors about k would hide that it is the wrong kernel
                raise ArgumentError(f"{name} is for {own}; the profile names it for {format}")
            kernel = entry.make(k=k, n=n, **parameters)
            if not (accurate and reads_one_digit(kernel)):
                return Choice(kernel, f"the profile names {variant} for {format.name}")
        precision = PRECISIONS[0] if accurate else self.precision
        return self._fastest(precision, format, k, n) or self._usual(precision, format, k, n)

    def _fastest(self, precision: str, format: Format, k: int, n: int) -> Choice | None:
        """The winner of the user's own measurements, which may have other bits than the default."""
        for table in self.tables:
            if not table.shipped and (entry := table.fastest(precision, format, k, n)) is not None:
                when = f" on {entry.measured}" if entry.measured else ""
                return Choice(entry.make(n), f"{precision}: the fastest of what was measured on {table.gpu.name}{when}", entry)
        return None

    def _usual(self, precision: str, format: Format, k: int, n: int) -> Choice:
        """What every device uses, with the parameters measured to be fast for the nearest shape."""
        strategy = default_strategy(format, precision)
        near = [
            (entry.distance(k, n), at, entry)
            for at, table in enumerate(self.tables)
            if (entry := table.nearest(precision, format, strategy, k, n))
        ]
        if not near:
            return Choice(strategy.make(k, n), strategy.reason)
        distance, at, entry = min(near, key=lambda one: one[:2])
        return _adapted(strategy, entry, self.tables[at], k, n, exact=distance == 0.0)


def reads_one_digit(kernel: KernelType) -> bool:
    """Whether a kernel multiplies activations that were rounded to one int8 digit: what an outlier does harm to."""
    return kernel.activation_digits == 1


def _adapted(strategy: Strategy, entry: TuningEntry, table: TuningTable, k: int, n: int, *, exact: bool) -> Choice:
    free = {name: value for name, value in entry.parameters.items() if name in bit_free(strategy.kernel)}
    shape = "" if exact else f" for {entry.k} x {'any' if entry.n is None else entry.n}, the nearest shape"
    note = f" ({entry.note})" if entry.note else ""
    reason = f"{strategy.reason}; parameters measured on {table.gpu.name}{shape}{note}"
    return Choice(strategy.make(k, n, **free), reason, entry if exact else None)
