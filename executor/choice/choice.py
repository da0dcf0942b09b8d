"""Chooses the kernel that multiplies weights of a format by a vector, or by several: the one that the user names, else the
fastest that was measured on this GPU, else what every device uses. Measures nothing (executor/tune and executor/measure do)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from executor.base.arguments import described, instance, whole
from executor.base.environment import PRECISIONS, Settings, parse_variant, settings, variable
from executor.base.rules import RULES, USUAL, rule_named, rules_named
from executor.choice.cost import CostModel
from executor.choice.store import tables_for
from executor.choice.strategies import Strategy, bit_free, default_strategy, has_form_for_rows, of_shape, require_precision
from executor.choice.table import TuningEntry, TuningTable
from executor.choice.thresholds import TILE_RUN
from executor.device.gpu import EMULATOR, GpuModel
from executor.device.protocol import Device
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL, REPACKED, Format, RepackedFormat
from ptxgen.gpus.gpu import Gpu, of_product
from ptxgen.kernels.registry import KernelEntry, find
from ptxgen.target import Target

if TYPE_CHECKING:
    from executor.launch.modules import Modules


@dataclass(frozen=True)
class Choice:
    """A kernel that multiplies weights of one format and shape by one row of activations, or by as many as were asked for, and
    why it was chosen. entry: what was measured of it for this very shape, if anything was; expected: seconds by the cost model,
    where that chose."""

    kernel: KernelType
    reason: str
    entry: TuningEntry | None = None
    expected: float | None = None


@dataclass(frozen=True)
class GpuProfile:
    """How kernels are chosen on one GPU.

    precision: `accurate` (dot products right to 1e-5) or `fast` (activations rounded to one int8 plane). gemv: by the id of a
    weight format (`q4k`), the kernel of its GEMVs: `NAME:parameter=value,...`. tables: measurements on this GPU, in priority
    order. rules: those that are on (executor/base/rules.py). tile_run: rows of a sequence in a step from which they
    attend in tiles on tensor cores; 0: never. costs: of several rows; None on the emulator, which takes a few at a time.
    ArgumentError for an unknown name, and for a kernel named for blocks that are repacked."""

    precision: str = PRECISIONS[0]
    gemv: Mapping[str, str] = field(default_factory=dict, hash=False)
    tables: tuple[TuningTable, ...] = field(default=(), hash=False)
    rules: frozenset[str] = USUAL
    tile_run: int = TILE_RUN
    costs: CostModel | None = None

    def __post_init__(self) -> None:
        require_precision(self.precision)
        if not isinstance(self.gemv, Mapping):
            raise ArgumentError(f"gemv is {described(self.gemv)}; allowed: kernels by the ids of formats")
        ids = [format.id for format in ALL.values()]
        for id, variant in self.gemv.items():
            if id not in ids:
                raise ArgumentError(f"the profile names a GEMV for {id!r}, which is not a format; formats: {', '.join(ids)}")
            parse_variant(instance(f"the GEMV for {id}", variant, str))
        whole("tile_run", self.tile_run, 0)
        rules_named(instance("rules", self.rules, frozenset))
        for made in REPACKED.values() if self.allows("repack") else ():
            if made.native.id in self.gemv:
                raise ArgumentError(
                    f"the profile names a GEMV for {made.native.id!r}, but repacks {made.native}; name one for {made.id!r}"
                    f"{_source(made.native, self.gemv[made.native.id])}{RULES['repack'].variable.note()}"
                )

    @classmethod
    def for_device(cls, device: Device, own: TuningTable | None = None) -> Self:
        """`for_gpu` of this device's GPU, as the device describes it."""
        return cls.for_gpu(GpuModel.of(device), device.target, own, device.card)

    @classmethod
    def for_gpu(cls, gpu: GpuModel, target: Target, own: TuningTable | None = None, card: Gpu | None = None) -> Self:
        """What the environment says, and what was measured on a GPU of this model, whose kernels are for `target`. Each rule
        that the environment leaves open is as its row says for this target. own: instead of the user's table. card: the GPU
        described, which counts where it is no known product: all of one product choose alike."""
        environment = settings()
        tables = tuple(table.running_on(target) for table in tables_for(gpu, environment, own))
        emulated = gpu.name == EMULATOR
        usual = {name for name, rule in RULES.items() if rule.usually_on(target, emulated=emulated)}
        if any(made.native.id in environment.gemv for made in REPACKED.values()):
            usual.discard("repack")  # the environment names a kernel for the blocks of the file
        costs = None if emulated else CostModel(of_product(gpu.name) or card or gpu.card, target)
        precision, rules = environment.precision or PRECISIONS[0], _rules_in(environment.rules, usual)
        return cls(precision, _named_in(environment), tables, rules, costs=costs)

    @classmethod
    def for_modules(cls, modules: Modules) -> Self:
        """As `for_device`; but a bundle has the kernels of `from_environment` for the blocks of the file, at the precision that
        it was written with, in their plain form: of the environment's rules only those count that change bits."""
        if modules.bundle is None:
            return cls.for_device(modules.device)
        environment = settings()
        changing = {name: said for name, said in environment.rules.items() if not RULES[name].same_bits}
        return cls(modules.bundle.precision, _named_in(environment), rules=_rules_in(changing, USUAL))

    @classmethod
    def from_environment(cls) -> Self:
        """What the environment says, without any measurement: the kernels of a bundle, which runs on any GPU."""
        environment = settings()
        return cls(environment.precision or PRECISIONS[0], _named_in(environment), rules=_rules_in(environment.rules, USUAL))

    def allows(self, name: str) -> bool:
        """Whether this rule is on, and those without which it does nothing. ArgumentError for an unknown name."""
        return rule_named(name).name in self.rules and all(map(self.allows, RULES[name].only_with))

    def with_rules(self, *names: str) -> Self:
        """This profile with these rules on. ArgumentError for an unknown name."""
        return replace(self, rules=self.rules | rules_named(names))

    def without(self, *names: str) -> Self:
        """This profile with these rules off. ArgumentError for an unknown name."""
        return replace(self, rules=self.rules - rules_named(names))

    @property
    def with_outputs(self) -> Self:
        """This profile with a launch for each operation, so that each output is in memory: the same bits."""
        return self.without("persistent_layers", "deferred_norms", "swiglu_fusion", "plane_gathers")

    def has_dependent_launches(self, target: Target) -> bool:
        """Whether the launches of a step are dependent on this target. ArgumentError as of `require_on`."""
        self.require_on(target)
        return self.allows("dependent_launches")

    def require_on(self, target: Target) -> None:
        """ArgumentError where a rule that is on needs what the target lacks."""
        for rule in RULES.values():
            if rule.name in self.rules:
                rule.require_on(target)

    def at_load(self, format: Format, k: int) -> Format:
        """The format that the matrices of a model get when it is loaded, of the one that they have in the file: that one, too,
        where rows of k values are no whole blocks of another."""
        made = (one for one in REPACKED.values() if self.allows("repack") and one.native is format and k % one.block == 0)
        return next(made, format)

    def choose(self, format: Format, k: int, n: int, *, accurate: bool = False, rows: int = 1) -> Choice:
        """The kernel for n rows of k weights. accurate: none that reads one int8 plane, whatever the profile says. rows: of
        activations; several get a kernel that takes them all at once, or one of a single row, which is launched in its form
        for several (executor/layers/batched.py). Raises ArgumentError if the profile names a kernel that is not there, is for
        another format, has other parameters, or has no form with its bits although it must."""
        if (named := self._named(format, k, n, accurate=accurate)) is not None:
            return named
        precision = PRECISIONS[0] if accurate else self.precision
        if isinstance(format, RepackedFormat) and not self._has_own(precision, format, k, n, rows):
            return self._as_native(precision, format, k, n, rows)
        return (
            self._measured(precision, format, k, n, rows)
            or self._estimated(precision, format, k, n, rows)
            or self._usual(precision, format, k, n, rows)
        )

    def _has_own(self, precision: str, format: RepackedFormat, k: int, n: int, rows: int) -> bool:
        """Whether measurements of repacked weights decide: there are some for several rows, or one row of this very shape; or
        for one row none of the blocks that they were made of."""
        if rows > 1:
            return any(table.measures(format, rows) for table in self.tables)
        return any(table.measures_shape(precision, format, k, n) for table in self.tables) or not any(
            table.measures(format.native, 1) for table in self.tables
        )

    def _as_native(self, precision: str, format: RepackedFormat, k: int, n: int, rows: int) -> Choice:
        """For repacked weights without measurements that count: those of the blocks that they were made of decide, whose times
        are none of theirs."""
        alike = replace(self, tables=tuple(table.taken_for(format) for table in self.tables))
        choice = alike._measured(precision, format, k, n, rows)
        if choice is None and (estimated := self._estimated(precision, format, k, n, rows)):
            return estimated
        choice = choice or alike._usual(precision, format, k, n, rows)
        entry = choice.entry and replace(choice.entry, seconds=None, bytes_per_second=None)
        guess = f" (of {format.native}, whose kernels are taken for {format})" if self.tables else ""
        return Choice(choice.kernel, choice.reason + guess, entry)

    def _named(self, format: Format, k: int, n: int, *, accurate: bool) -> Choice | None:
        variant = self.gemv.get(format.id)
        if variant is None:
            return None
        entry, parameters = named_kernel(format, variant)
        try:
            kernel = entry.make(k=k, n=n, **parameters)
        except ArgumentError as error:
            raise ArgumentError(
                f"the profile names {variant} for {format.name}{_source(format, variant)}, of which there are {n} x {k}: "
                f"{error}"
            ) from error
        if accurate and reads_one_digit(kernel):
            return None
        if self.allows("batch_invariant") and not _same_for_any_rows(kernel):
            raise ArgumentError(
                f"{entry.name} has no form for several rows with the bits of one; the profile is batch_invariant"
                f"{_source(format, variant)}"
            )
        return Choice(kernel, f"the profile names {variant} for {format.name}")

    def _measured(self, precision: str, format: Format, k: int, n: int, rows: int) -> Choice | None:
        """The winner of the user's own measurements, which may have other bits than the default, and for several rows of those
        that are shipped; if `batch_invariant`, of one row that has a form for several."""
        if self.allows("batch_invariant"):
            return self._fastest(precision, format, k, n, fits=_same_for_any_rows)
        return self._fastest(precision, format, k, n, rows)

    def _estimated(self, precision: str, format: Format, k: int, n: int, rows: int) -> Choice | None:
        """For several rows of which nothing was measured: what the cost model expects to be fastest on this GPU."""
        if rows == 1 or self.costs is None or self.allows("batch_invariant"):
            return None
        found = self.costs.cheapest(format, k, n, rows, precision)
        if found is None:
            return None
        kernel, microseconds = found
        reason = f"{precision}: expected to be the fastest for {rows} rows on {self.costs.gpu.title} ({microseconds:.0f} us)"
        return Choice(kernel, reason, expected=microseconds * 1e-6)

    def _fastest(
        self, precision: str, format: Format, k: int, n: int, rows: int = 1, *, fits: Callable[[KernelType], bool] | None = None
    ) -> Choice | None:
        found: list[tuple[TuningEntry, TuningTable]] = []
        for table in self.tables:
            if table.shipped and rows == 1:  # of one row it has parameters that leave bits alone, for `_usual`
                continue
            entry = table.fastest(precision, format, k, n, rows, fits=fits)
            if entry is not None:
                found.append((entry, table))
                if entry.rows >= rows:  # a table behind may be better only where this one was measured for fewer
                    break
        if not found:
            return None
        entry, table = min(found, key=lambda one: one[0].most_seconds(rows))
        several = f" for {entry.rows} rows" if entry.rows > 1 else ""
        when = f" on {entry.measured}" if entry.measured else ""
        reason = f"{precision}: the fastest of what was measured{several} on {table.gpu.name}{when}"
        return Choice(entry.make(n, rows), reason, entry)

    def _usual(self, precision: str, format: Format, k: int, n: int, rows: int) -> Choice:
        """For several rows the fastest that was measured for one and has a form for several. Else what every device uses, with
        the parameters measured to be fast for the nearest shape."""
        if rows > 1 and (measured := self._fastest(precision, format, k, n, fits=has_form_for_rows)) is not None:
            return measured
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


def named_kernel(format: Format, variant: str) -> tuple[KernelEntry, dict[str, int | bool]]:
    """The kernel that somebody names for a format, and its parameters. ArgumentError for one that is not there, is for another
    format or takes no matrix of n rows of k, and for a parameter that it has not, or that the matrix gives it."""
    name, parameters = parse_variant(variant)
    entry = find(name)
    own = entry.fixed.get("format", format)
    if own != format:  # checked before `make`, whose errors about k would hide that it is the wrong kernel
        raise ArgumentError(f"{name} is for {own}; the profile names it for {format}")
    if given := sorted(parameters.keys() & {"k", "n"}):
        raise ArgumentError(f"the matrix gives {name} its k and n; leave {' and '.join(given)} out")
    known = entry.parameters
    for parameter in ("k", "n", *parameters):
        if parameter not in known:
            raise ArgumentError(f"{name} has no parameter {parameter!r}; it has {', '.join(known) or 'none'}")
    return entry, parameters


def _named_in(environment: Settings) -> Mapping[str, str]:
    """The kernels that the environment names, by the ids of formats. ArgumentError with the variable, as of named_kernel."""
    for id, variant in environment.gemv.items():
        try:
            named_kernel(next(format for format in ALL.values() if format.id == id), variant)
        except ArgumentError as error:
            raise variable("gemv").refused(str(error), id) from error
    return environment.gemv


def _rules_in(said: Mapping[str, bool], usual: Collection[str]) -> frozenset[str]:
    """The rules that are on: those said to be, else the usual ones."""
    return frozenset(name for name in RULES if said.get(name, name in usual))


def _source(format: Format, variant: str) -> str:
    """Where it is the environment that names it, the variable."""
    return variable("gemv").note(format.id, variant)


def reads_one_digit(kernel: KernelType) -> bool:
    """Whether a kernel multiplies activations that were rounded to one int8 plane: what an outlier does harm to."""
    return kernel.activation_planes == 1


def _same_for_any_rows(kernel: KernelType) -> bool:
    return has_form_for_rows(kernel, alike=True)


def _adapted(strategy: Strategy, entry: TuningEntry, table: TuningTable, k: int, n: int, *, exact: bool) -> Choice:
    names = set(bit_free(strategy.kernel)) - set(() if exact else of_shape(strategy.kernel))
    free = {name: value for name, value in entry.parameters.items() if name in names}
    shape = "" if exact else f" for {entry.k} x {'any' if entry.n is None else entry.n}, the nearest shape"
    note = f" ({entry.note})" if entry.note else ""
    reason = f"{strategy.reason}; parameters measured on {table.gpu.name}{shape}{note}"
    return Choice(strategy.make(k, n, **free), reason, entry if exact else None)
