"""A tuning table: the kernels that were measured on one GPU, and which of them to use for a shape and so many rows. store.py
keeps the files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final

from executor.base.environment import PRECISIONS
from executor.choice.strategies import ERROR_LIMIT, Strategy, bit_free, default_strategy, has_form_for_rows, of_shape
from executor.device.gpu import GpuModel
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL, REPACKED, Format, RepackedFormat
from ptxgen.kernels.registry import entries_of, find
from ptxgen.target import Target

TITLE: Final = "ptxgen tuning table"
VERSION: Final = 1
ANY: Final = "any"
CLOCKS: Final = ("device", "host")


@dataclass(frozen=True)
class TuningEntry:
    """A kernel with its parameters for n rows of k weights (n None: any number) of a format, by its id.

    seconds: of one product by weights that no cache holds, by the clock of the device or, for the emulator, the host;
    bytes_per_second: of weights; error: of a dot product, as in ERROR_LIMIT; measured: the day; versions: of what made the
    machine code; note: what a reader should know; rows: of activations, all of which the time is for. Numbers are None where
    nothing was measured."""

    precision: str
    format: str
    k: int
    n: int | None
    kernel: str
    parameters: Mapping[str, Any] = field(hash=False)
    seconds: float | None = None
    bytes_per_second: float | None = None
    error: float | None = None
    clock: str = CLOCKS[0]
    measured: str = ""
    versions: str = ""
    note: str = ""
    rows: int = 1

    def make(self, n: int, rows: int = 1) -> KernelType:
        """The kernel for n rows of weights and one of activations; if it is one that takes several at once, as its field `m`
        says, for so many. ArgumentError if there is none of this name with these parameters."""
        entry = find(self.kernel)
        several = {"m": rows} if self.rows > 1 and "m" in entry.parameters else {}
        return entry.make(**{**self.parameters, "k": self.k, "n": n, **several})

    @property
    def same(self) -> tuple[object, ...]:
        """Equal for two measurements of the same thing, also if one is from before the kernel had some parameter."""
        defaults = {name: value for name, value in find(self.kernel).parameters.items() if type(value) in (int, bool)}
        parameters = tuple(sorted((defaults | dict(self.parameters)).items()))
        return self.precision, self.format, self.k, self.n, self.rows, self.kernel, parameters

    def counts_for(self, k: int, n: int, rows: int) -> bool:
        """Whether its time says something of n rows of k weights and so many rows of activations: it is of this shape, and for
        one row if there is one, else for several."""
        return self.k == k and self.n in (n, None) and (self.rows == 1) == (rows == 1)

    def most_seconds(self, rows: int) -> float:
        """How long its kernel takes for so many rows of activations, at most: for fewer than were measured as long, for more as
        many times as long as it has times the blocks. Infinite where nothing was measured."""
        return math.inf if self.seconds is None else -(-rows // self.rows) * self.seconds

    def distance(self, k: int, n: int) -> float:
        """How far its shape is from n rows of k: 0 is this very shape, 1 is twice as many of one."""
        return abs(math.log2(k / self.k)) + (0.0 if self.n is None else abs(math.log2(n / self.n)))


@dataclass(frozen=True)
class TuningTable:
    """The entries of one GPU (or of "any"). source: where they come from, for messages; shipped: they come with the package,
    and hold nothing that changes the bits of one row."""

    source: str
    gpu: GpuModel
    entries: tuple[TuningEntry, ...] = ()
    shipped: bool = False

    @cached_property
    def _by_format(self) -> Mapping[tuple[str, str], tuple[TuningEntry, ...]]:
        groups: dict[tuple[str, str], tuple[TuningEntry, ...]] = {}
        for entry in self.entries:
            key = entry.precision, entry.format
            groups[key] = (*groups.get(key, ()), entry)
        return groups

    def measures(self, format: Format, rows: int) -> bool:
        """Whether it has anything of weights of this format, of several rows of activations if `rows` are several."""
        groups = (self._by_format.get((precision, format.id), ()) for precision in PRECISIONS)
        return any((entry.rows > 1) == (rows > 1) for group in groups for entry in group)

    def measures_shape(self, precision: str, format: Format, k: int, n: int) -> bool:
        """Whether it has anything of one row for this very shape."""
        group = self._by_format.get((precision, format.id), ())
        return any(entry.rows == 1 and entry.k == k and entry.n in (n, None) for entry in group)

    def taken_for(self, format: RepackedFormat) -> TuningTable:
        """The entries of its native format, as if they were of this one: those whose kernels are registered for it, too."""
        return self._taken[format.id]

    @cached_property
    def _taken(self) -> Mapping[str, TuningTable]:
        return {
            format.id: replace(self, entries=tuple(made for entry in self.entries if (made := _taken_for(entry, format))))
            for format in REPACKED.values()
        }

    def running_on(self, target: Target) -> TuningTable:
        """The entries whose kernels run on a target."""
        entries = tuple(entry for entry in self.entries if entry.make(entry.n or 1, entry.rows).fits(target))
        return self if len(entries) == len(self.entries) else replace(self, entries=entries)

    def fastest(
        self, precision: str, format: Format, k: int, n: int, rows: int = 1, *, fits: Callable[[KernelType], bool] | None = None
    ) -> TuningEntry | None:
        """The fastest kernel measured for this shape whose error the precision allows; an entry for any n counts where there
        is none for this one.

        rows: of activations. One is decided by what was measured for one. Several are decided by what was measured for several:
        the least of `most_seconds` counts, so twice as many rows never take more than twice as long; and what was measured for
        a precision that allows less counts, too. fits: says which kernels count."""
        limit = ERROR_LIMIT[precision]
        measured = [precision] if rows == 1 else [one for one in PRECISIONS if ERROR_LIMIT[one] <= limit]
        allowed = [
            (entry.n is None, entry.most_seconds(rows), entry.rows, entry)
            for one in measured
            for entry in self._by_format.get((one, format.id), ())
            if entry.counts_for(k, n, rows) and entry.seconds is not None
            if entry.error is not None and entry.error <= limit
            if _can_be_made(entry, n, rows) and (fits is None or fits(entry.make(n, rows)))
        ]
        return min(allowed, key=lambda one: one[:3], default=(None, None, None, None))[3]

    def nearest(self, precision: str, format: Format, strategy: Strategy, k: int, n: int) -> TuningEntry | None:
        """The entry of this strategy for the nearest shape, the fastest of several: of its parameters, those that leave
        the bits alone may be used."""
        free = bit_free(strategy.kernel)
        bound = find(strategy.kernel).parameters | dict(strategy.parameters)
        fitting = [
            entry
            for entry in self._by_format.get((precision, format.id), ())
            if entry.kernel == strategy.kernel
            and entry.rows == 1
            and all(bound[name] == value for name, value in entry.parameters.items() if name not in free)
        ]
        return min(fitting, key=lambda entry: (entry.distance(k, n), entry.seconds or 0.0), default=None)

    def with_entry(self, entry: TuningEntry) -> TuningTable:
        """A table that has this entry, instead of an older one of the same thing."""
        others = tuple(other for other in self.entries if other.same != entry.same)
        return TuningTable(self.source, self.gpu, (*others, entry), self.shipped)

    def to_json(self) -> dict[str, Any]:
        """The table as JSON's values; of an entry, the fields that are not as they are by default."""
        defaults = {f.name: f.default for f in fields(TuningEntry)}
        entries = [
            {name: ANY if value is None else value for name, value in asdict(entry).items() if value != defaults[name]}
            for entry in self.entries
        ]
        return {"format": TITLE, "version": VERSION, "gpu": asdict(self.gpu), "entries": entries}

    @classmethod
    def from_json(cls, source: str, facts: object, *, shipped: bool = False) -> TuningTable:
        """Read what `to_json` writes. ArgumentError names the source, the entry, what is wrong and what is allowed."""
        if not isinstance(facts, dict) or facts.get("format") != TITLE:
            raise ArgumentError(f"{source}: is not a tuning table; it must say format {TITLE!r}")
        if facts.get("version") != VERSION:
            raise ArgumentError(f"{source}: has version {facts.get('version')!r} of a tuning table; known: {VERSION}")
        gpu = facts.get("gpu")
        kinds = {"name": str, "target": str, "multiprocessors": int}
        if not isinstance(gpu, dict) or {name: type(value) for name, value in gpu.items()} != kinds:
            raise ArgumentError(
                f"{source}: its gpu is {gpu!r}; it must have {', '.join(f'{n} ({t.__name__})' for n, t in kinds.items())}"
            )
        entries = facts.get("entries")
        if not isinstance(entries, list):
            raise ArgumentError(f"{source}: has no list of entries")
        read = tuple(_entry(f"{source}: entry {number}", one, shipped) for number, one in enumerate(entries, 1))
        return cls(source, GpuModel(**gpu), read, shipped)


def _taken_for(entry: TuningEntry, format: RepackedFormat) -> TuningEntry | None:
    """An entry of the native format as one of the repacked; None where its kernel is not registered for that."""
    if entry.format != format.native.id:
        return None
    own = find(entry.kernel)
    same = (one for one in entries_of(own.type) if one.composition == own.composition)
    alike = (one.name for one in same if one.fixed.get("format") is format)
    name = next(alike, None)
    return None if name is None else replace(entry, format=format.id, kernel=name)


def _can_be_made(entry: TuningEntry, n: int, rows: int) -> bool:
    """Whether the kernel takes the entry's shape: a row may be too short for its settings."""
    try:
        entry.make(n, rows)
    except ArgumentError:
        return False
    return True


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_number(value: object) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < math.inf)  # type: ignore[operator]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_parameters(value: object) -> bool:
    return isinstance(value, dict) and all(type(one) in (int, bool) for one in value.values())


def _one_of(*names: str) -> tuple[Callable[[object], bool], str]:
    return names.__contains__, f"allowed: {', '.join(names)}"


_SIZE: Final = "it must be a whole number of at least 1"
_NUMBER: Final = (_is_number, "it must be a number of at least 0, or null")
_FORMATS: Final = {format.id: format for format in ALL.values()}
_ALLOWED: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "format": _one_of(*_FORMATS),
    "precision": _one_of(*PRECISIONS),
    "k": (_is_size, _SIZE),
    "n": (lambda value: value == ANY or _is_size(value), f"{_SIZE}, or any"),
    "rows": (_is_size, _SIZE),
    "kernel": (_is_text, "it must be the registered name of one (`ptxgen list`)"),
    "parameters": (_are_parameters, "it must be an object of whole numbers, true or false"),
    **dict.fromkeys(("seconds", "bytes_per_second", "error"), _NUMBER),
    "clock": _one_of(*CLOCKS),
    **dict.fromkeys(("measured", "versions", "note"), (_is_text, "it must be text")),
}
"""What each field of an entry may be; those that have no default must be there."""


def _entry(place: str, facts: object, shipped: bool) -> TuningEntry:
    """An entry of a file; `place` is where it stands, for messages."""
    if not isinstance(facts, dict):
        raise ArgumentError(f"{place} is {facts!r}; it must be an object")
    if unknown := sorted(set(facts) - set(_ALLOWED)):
        raise ArgumentError(f"{place} has {unknown[0]!r}; known: {', '.join(sorted(_ALLOWED))}")
    required = [f.name for f in fields(TuningEntry) if f.default is MISSING]
    for name, (is_allowed, allowed) in _ALLOWED.items():
        if name not in facts and name in required:
            raise ArgumentError(f"{place} has no {name}")
        if name in facts and not is_allowed(facts[name]):
            raise ArgumentError(f"{place} has {name} {facts[name]!r}; {allowed}")
    entry = TuningEntry(**facts | {"n": None if facts["n"] == ANY else facts["n"]})
    format = _FORMATS[entry.format]
    if "m" in entry.parameters:
        raise ArgumentError(f"{place} sets m; how many rows of activations there are is said by rows")
    if entry.n is None and (settings := [name for name in of_shape(entry.kernel) if name in entry.parameters]):
        raise ArgumentError(f"{place} sets {settings[0]} for any n; it is of one shape")
    try:
        kernel = entry.make(entry.n or 1, entry.rows)
    except ArgumentError as fault:
        raise ArgumentError(f"{place} {fault}") from fault
    if entry.rows > 1 and not (hasattr(kernel, "m") or has_form_for_rows(kernel)):
        raise ArgumentError(f"{place} names {entry.kernel} for {entry.rows} rows, which has no form for several")
    if getattr(kernel, "format", format) != format:
        raise ArgumentError(f"{place} names {entry.kernel} for {format.name}, but that is for {kernel.format}")  # type: ignore[attr-defined]
    if shipped and entry.rows == 1:
        _check_bits(place, entry, default_strategy(format, entry.precision).kernel)
    return entry


def _check_bits(place: str, entry: TuningEntry, default: str) -> None:
    """A shipped table must leave the results of one row of activations as they are without it."""
    if entry.kernel != default:
        raise ArgumentError(f"{place} names {entry.kernel}; a shipped table may only name what is used anyway, {default}")
    for name in entry.parameters:
        if name not in (free := bit_free(default)):
            raise ArgumentError(f"{place} sets {name}, which changes the bits; allowed: {', '.join(free) or 'none'}")
