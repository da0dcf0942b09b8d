"""Chooses the kernel that multiplies weights of a format by a vector, or by several: the one that the user names, else the
fastest that was measured on this GPU, else what every device uses. Measures nothing (executor/tune and executor/measure do)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final, Self

from executor.base.arguments import described, instance, whole
from executor.base.environment import (
    EARLY_LAUNCHES,
    GEMV,
    PRECISIONS,
    REPACK,
    WEIGHT_RINGS,
    Settings,
    parse_variant,
    settings,
)
from executor.choice.store import tables_for
from executor.choice.strategies import Strategy, bit_free, default_strategy, has_form_for_rows, of_shape, require_precision
from executor.choice.table import TuningEntry, TuningTable
from executor.device.gpu import GpuModel
from executor.device.protocol import Device
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.launch_config import EARLY_SM, RING_SHARED
from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL, REPACKED, Format, RepackedFormat
from ptxgen.kernels.registry import KernelEntry, find
from ptxgen.target import Target

if TYPE_CHECKING:
    from executor.launch.modules import Modules

TILE_RUN = 32
"""Rows from which tiles are predicted to be faster on an H200 at any depth (benchmarks/LOG.md)."""


@dataclass(frozen=True)
class Choice:
    """A kernel that multiplies weights of one format and shape by one row of activations, or by as many as were asked for, and
    why it was chosen. entry: what was measured of it for this very shape, if anything was."""

    kernel: KernelType
    reason: str
    entry: TuningEntry | None = None


@dataclass(frozen=True)
class Fusions:
    """What the product of one row with a matrix may be one launch with. joined: products with other matrices; normed: its part
    of a norm, before it or behind; gated: of gate and up, what the one makes of the other. gathered: ranks may
    gather digits of what it reads, or has made for others that read these. ringed: its kernel may pipeline weights.
    sent: what it reads ranks may send each other, for it to wait for, so that no launch ends with what is gathered."""

    joined: bool = False
    normed: bool = False
    gated: bool = False
    gathered: bool = False
    ringed: bool = False
    sent: bool = False


NONE: Final = Fusions()


@dataclass(frozen=True)
class GpuProfile:
    """How kernels are chosen on one GPU; nothing here is measured, it is what was measured before.

    precision: `accurate` (a dot product is right to 1e-5) or `fast` (activations rounded to one int8 digit). gemv: for a weight
    format, by its id (`q4k`, `q8_0`, ...), the kernel that multiplies its weights by a vector, whatever the precision: `NAME`
    or `NAME:parameter=value,...`. tables: what was measured on this GPU, the most telling first. batch_invariant: a row of
    activations has the same bits whatever others go with it: one kernel does for any number of rows, in its form for several.
    tile_run: so many rows of one sequence in a step, and more, attend in tiles by tensor cores, fewer each on its own; 0: all
    on their own. repack: matrices of a model get the blocks of a format that is simpler to read (`at_load`) when it is loaded,
    later changes do nothing: same bits. merged_attention: a row over pages that is on its own attends in one launch, whose last
    block puts together what the others found, and not in two: same bits. rotating_attention: where the token of a single
    sequence attends, the same launch rotates its queries and keys and keeps keys and values, if there is a kernel for heads of
    the model's kind (rotating_attention.py), from sm_90 on: same bits.
    early_launches: the launches of a step start before the one before them has ended, and wait by themselves (programmatic
    dependent launch, `starts_early`): same bits. joined_products: the products of one row with q, k and v, and with gate and
    up, go in one launch where their kernels can be joined: same bits. fused_norms: a row's norm is no launch where the products
    before it and behind it can do it between them: same bits. gated_products: its products with gate and up, and what the one
    makes of the other, are one launch where their kernels can be: same bits. gathered_digits: devices that share a model gather
    the digits of a row where these are what is read, and no f32 values: same bits. sent_parts: these digits are sent to the
    products that read them, which wait for them (compose.receive_parts), where all who read them can, on two devices and with
    weight_rings: same bits. weight_rings: the weights that a row is multiplied by are copied ahead into shared memory, from
    before the launch before has ended on, where there is a kernel that does so and is faster (compose.pipeline_weights):
    same bits. persistent_layers: one row goes from the attention of a layer to that of the next by one launch whose blocks stay
    and wait for each other (executor/layers/persistent.py), where its matrices have hw_dp4a: same bits.
    ArgumentError for an unknown precision or format, and for a GEMV that is named for blocks that are repacked."""

    precision: str = PRECISIONS[0]
    gemv: Mapping[str, str] = field(default_factory=dict, hash=False)
    tables: tuple[TuningTable, ...] = field(default=(), hash=False)
    batch_invariant: bool = False
    tile_run: int = TILE_RUN
    repack: bool = False
    merged_attention: bool = False
    rotating_attention: bool = False
    early_launches: bool = False
    joined_products: bool = False
    fused_norms: bool = False
    gated_products: bool = False
    gathered_digits: bool = True
    sent_parts: bool = True
    weight_rings: bool = False
    persistent_layers: bool = False

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
        for switch in fields(self):
            if isinstance(switch.default, bool):
                instance(switch.name, getattr(self, switch.name), bool)
        for made in REPACKED.values() if self.repack else ():
            if made.native.id in self.gemv:
                raise ArgumentError(
                    f"the profile names a GEMV for {made.native.id!r}, but repacks {made.native}; name one for {made.id!r}"
                    f"{_source(made.native, self.gemv[made.native.id])}{REPACK.note()}"
                )

    @classmethod
    def for_device(cls, device: Device, own: TuningTable | None = None) -> Self:
        """`for_gpu` of this device's GPU."""
        return cls.for_gpu(GpuModel.of(device), device.target, own)

    @classmethod
    def for_gpu(cls, gpu: GpuModel, target: Target, own: TuningTable | None = None) -> Self:
        """What the environment says, and what was measured on a GPU of this model, whose kernels are for `target`. Switches
        that the environment may leave open are on then if it is one from sm_90 on whose generation has a shipped table. own:
        instead of the user's table."""
        environment = settings()
        tables = tuple(table.running_on(target) for table in tables_for(gpu, environment, own))
        faster = target.sm >= EARLY_SM and any(table.shipped for table in tables)
        return cls._said(environment, tables, faster=faster, roomy=target.max_shared >= RING_SHARED)

    @classmethod
    def for_modules(cls, modules: Modules) -> Self:
        """As `for_device`; but a bundle has the kernels of `from_environment` for the blocks of the file, at the precision that
        it was written with, in their plain form: nothing is repacked, merged, joined or started early, whatever the
        environment says."""
        if modules.bundle is None:
            return cls.for_device(modules.device)
        environment = settings()
        return cls(modules.bundle.precision, _named_in(environment), batch_invariant=environment.batch_invariant)

    @classmethod
    def from_environment(cls) -> Self:
        """What the environment says, without any measurement: the kernels of a bundle, which runs on any GPU. What it leaves
        open is off."""
        return cls._said(settings(), (), faster=False, roomy=False)

    @classmethod
    def _said(cls, environment: Settings, tables: tuple[TuningTable, ...], *, faster: bool, roomy: bool) -> Self:
        """What the environment says. Switches that it leaves open are on where that is faster; weights are repacked then only
        if it names no kernel for their blocks, and have rings only where a block has room for them."""
        unnamed = not any(made.native.id in environment.gemv for made in REPACKED.values())

        def on(said: bool | None, likely: bool = faster) -> bool:
            return likely if said is None else said

        return cls(
            environment.precision or PRECISIONS[0],
            _named_in(environment),
            tables,
            batch_invariant=environment.batch_invariant,
            repack=on(environment.repack, faster and unnamed),
            merged_attention=on(environment.merged_attention),
            rotating_attention=on(environment.rotating_attention),
            early_launches=on(environment.early_launches),
            joined_products=on(environment.joined_products),
            fused_norms=on(environment.fused_norms),
            gated_products=on(environment.gated_products),
            weight_rings=on(environment.weight_rings, faster and roomy),
            persistent_layers=environment.persistent_layers,
        )

    @property
    def with_outputs(self) -> Self:
        """This one with a launch for each operation whose output somebody wants to look at: the same bits."""
        return replace(self, persistent_layers=False, fused_norms=False, gated_products=False, gathered_digits=False)

    @property
    def fusions(self) -> Fusions:
        """What the product of one row with a matrix may be one launch with."""
        return Fusions(
            self.joined_products,
            self.fused_norms,
            self.gated_products,
            self.gathered_digits,
            ringed=self.weight_rings,
            sent=self.sent_parts and self.weight_rings,
        )

    def starts_early(self, target: Target) -> bool:
        """Whether the launches of a step start early on this target. ArgumentError as of `require_on`."""
        self.require_on(target)
        return self.early_launches

    def require_on(self, target: Target) -> None:
        """ArgumentError where launches should start early and the target cannot, or weights have rings for which it has no
        room."""
        if self.early_launches and target.sm < EARLY_SM:
            raise ArgumentError(
                f"the profile's early_launches needs sm_{EARLY_SM}, this is {target}; leave it off{EARLY_LAUNCHES.note()}"
            )
        if self.weight_rings and (target.sm < EARLY_SM or target.max_shared < RING_SHARED):
            raise ArgumentError(
                f"the profile's weight_rings needs sm_{EARLY_SM} or newer and {RING_SHARED} bytes of shared memory a block, "
                f"this is {target} with {target.max_shared}; leave it off{WEIGHT_RINGS.note()}"
            )

    def at_load(self, format: Format, k: int) -> Format:
        """The format that the matrices of a model get when it is loaded, of the one that they have in the file: that one, too,
        where rows of k values are no whole blocks of another."""
        made = (one for one in REPACKED.values() if self.repack and one.native is format and k % one.block == 0)
        return next(made, format)

    def choose(self, format: Format, k: int, n: int, *, accurate: bool = False, rows: int = 1) -> Choice:
        """The kernel for n rows of k weights. accurate: none that reads one int8 digit, whatever the profile says. rows: of
        activations; several get a kernel that takes them all at once, or one of a single row, which is launched in its form
        for several (executor/layers/batched.py). Raises ArgumentError if the profile names a kernel that is not there, is for
        another format, has other parameters, or has no form with its bits although it must."""
        if (named := self._named(format, k, n, accurate=accurate)) is not None:
            return named
        precision = PRECISIONS[0] if accurate else self.precision
        if isinstance(format, RepackedFormat) and not self._has_own(precision, format, k, n, rows):
            return self._as_native(precision, format, k, n, rows)
        return self._measured(precision, format, k, n, rows) or self._usual(precision, format, k, n)

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
        choice = alike._measured(precision, format, k, n, rows) or alike._usual(precision, format, k, n)
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
        if self.batch_invariant and not _same_for_any_rows(kernel):
            raise ArgumentError(
                f"{entry.name} has no form for several rows with the bits of one; the profile is batch_invariant"
                f"{_source(format, variant)}"
            )
        return Choice(kernel, f"the profile names {variant} for {format.name}")

    def _measured(self, precision: str, format: Format, k: int, n: int, rows: int) -> Choice | None:
        """The winner of the user's own measurements, which may have other bits than the default, and for several rows of those
        that are shipped, of the nearest shape if need be. Where nothing was measured for several rows, and always if
        `batch_invariant`, the fastest for one row that has a form for several."""
        if self.batch_invariant:
            return self._fastest(precision, format, k, n, fits=_same_for_any_rows)
        measured = self._fastest(precision, format, k, n, rows)
        if measured is None and rows > 1:
            near = self._nearest_for_rows(precision, format, k, n, rows)
            return near or self._fastest(precision, format, k, n, fits=has_form_for_rows)
        return measured

    def _nearest_for_rows(self, precision: str, format: Format, k: int, n: int, rows: int) -> Choice | None:
        for table in self.tables:
            entry = table.nearest_for_rows(precision, format, k, n, rows)
            if entry is not None:
                shape = f"{entry.k} x {'any' if entry.n is None else entry.n}"
                reason = f"{precision}: the fastest on {table.gpu.name} for {entry.rows} rows and {shape}, the nearest measured"
                return Choice(entry.moved(k, n).make(n, rows), reason)
        return None

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
            raise GEMV.refused(str(error), id) from error
    return environment.gemv


def _source(format: Format, variant: str) -> str:
    """Where it is the environment that names it, the variable."""
    return GEMV.note(format.id, variant)


def reads_one_digit(kernel: KernelType) -> bool:
    """Whether a kernel multiplies activations that were rounded to one int8 digit: what an outlier does harm to."""
    return kernel.activation_digits == 1


def _same_for_any_rows(kernel: KernelType) -> bool:
    return has_form_for_rows(kernel, alike=True)


def _adapted(strategy: Strategy, entry: TuningEntry, table: TuningTable, k: int, n: int, *, exact: bool) -> Choice:
    names = set(bit_free(strategy.kernel)) - set(() if exact else of_shape(strategy.kernel))
    free = {name: value for name, value in entry.parameters.items() if name in names}
    shape = "" if exact else f" for {entry.k} x {'any' if entry.n is None else entry.n}, the nearest shape"
    note = f" ({entry.note})" if entry.note else ""
    reason = f"{strategy.reason}; parameters measured on {table.gpu.name}{shape}{note}"
    return Choice(strategy.make(k, n, **free), reason, entry if exact else None)
