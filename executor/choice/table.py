"""A tuning table: what was measured of kernels on one GPU, and what follows for a shape. Where tables are kept is store.py's
business."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Final, NoReturn

from executor.choice.strategies import ERROR_LIMIT, PRECISIONS, Strategy, bit_free, default_strategy
from executor.device.gpu import Gpu
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS, Format
from ptxgen.kernels.registry import find

TITLE: Final = "ptxgen tuning table"
VERSION: Final = 1
ANY: Final = "any"
CLOCKS: Final = ("device", "host")


@dataclass(frozen=True)
class Entry:
    """A kernel with its parameters for n rows of k weights (n None: any number) of a format, by its id.

    seconds: of one launch on weights that no cache holds, by the clock of the device or, for the emulator, the host;
    bytes_per_second: of weights; error: of a dot product, as in ERROR_LIMIT; measured: the day; versions: of what made the
    machine code; note: what a reader should know. Numbers are None where nothing was measured."""

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

    def make(self, n: int) -> KernelType:
        return find(self.kernel).make(k=self.k, n=n, **self.parameters)

    @property
    def same(self) -> tuple[object, ...]:
        """Equal for two measurements of the same thing."""
        return self.precision, self.format, self.k, self.n, self.kernel, tuple(sorted(self.parameters.items()))

    def distance(self, k: int, n: int) -> float:
        """How far its shape is from n rows of k: 0 is this very shape, 1 is twice as many of one."""
        return abs(math.log2(k / self.k)) + (0.0 if self.n is None else abs(math.log2(n / self.n)))


@dataclass(frozen=True)
class Table:
    """The entries of one GPU (or of "any"). source: where they come from, for messages; shipped: they come with the package,
    and hold nothing that changes bits."""

    source: str
    gpu: Gpu
    entries: tuple[Entry, ...] = ()
    shipped: bool = False

    @cached_property
    def _by_format(self) -> Mapping[tuple[str, str], tuple[Entry, ...]]:
        found: dict[tuple[str, str], tuple[Entry, ...]] = {}
        for entry in self.entries:
            key = entry.precision, entry.format
            found[key] = (*found.get(key, ()), entry)
        return found

    def fastest(self, precision: str, format: Format, k: int, n: int) -> Entry | None:
        """The fastest kernel measured for this shape whose error the precision allows; an entry for any n counts where there
        is none for this one."""
        limit = ERROR_LIMIT[precision]
        allowed = [
            (entry.n is None, entry.seconds, entry)
            for entry in self._by_format.get((precision, format.id), ())
            if entry.k == k and entry.n in (n, None) and entry.seconds is not None
            if entry.error is not None and entry.error <= limit
        ]
        return min(allowed, key=lambda one: one[:2], default=(None, None, None))[2]

    def nearest(self, precision: str, format: Format, strategy: Strategy, k: int, n: int) -> Entry | None:
        """The entry of this strategy for the nearest shape, the fastest of several: of its parameters, those that leave
        the bits alone may be used."""
        free = bit_free(strategy.kernel)
        bound = find(strategy.kernel).parameters | dict(strategy.parameters)
        fitting = [
            entry
            for entry in self._by_format.get((precision, format.id), ())
            if entry.kernel == strategy.kernel
            and all(bound[name] == value for name, value in entry.parameters.items() if name not in free)
        ]
        return min(fitting, key=lambda entry: (entry.distance(k, n), entry.seconds or 0.0), default=None)

    def with_entry(self, entry: Entry) -> Table:
        """A table that has this entry, instead of an older one of the same thing."""
        others = tuple(other for other in self.entries if other.same != entry.same)
        return Table(self.source, self.gpu, (*others, entry), self.shipped)

    def to_json(self) -> dict[str, Any]:
        said = [_said(entry) for entry in self.entries]
        return {"format": TITLE, "version": VERSION, "gpu": asdict(self.gpu), "entries": said}

    @classmethod
    def from_json(cls, source: str, said: object, *, shipped: bool = False) -> Table:
        """Read what `to_json` says. ArgumentError names the source, the entry, what is wrong and what is allowed."""
        if not isinstance(said, dict) or said.get("format") != TITLE:
            raise ArgumentError(f"{source}: is no tuning table; it must say format {TITLE!r}")
        if said.get("version") != VERSION:
            raise ArgumentError(f"{source}: has version {said.get('version')!r} of a tuning table; known: {VERSION}")
        gpu = said.get("gpu")
        kinds = {"name": str, "target": str, "multiprocessors": int}
        if not isinstance(gpu, dict) or {name: type(value) for name, value in gpu.items()} != kinds:
            raise ArgumentError(
                f"{source}: its gpu is {gpu!r}; it must have {', '.join(f'{n} ({t.__name__})' for n, t in kinds.items())}"
            )
        entries = said.get("entries")
        if not isinstance(entries, list):
            raise ArgumentError(f"{source}: has no list of entries")
        made = tuple(_Reader(source, number, one, shipped).entry() for number, one in enumerate(entries, 1))
        return cls(source, Gpu(**gpu), made, shipped)


def _said(entry: Entry) -> dict[str, Any]:
    """What is not as it would be without a word."""
    silent = {f.name: f.default for f in fields(Entry)}
    return {name: ANY if value is None else value for name, value in asdict(entry).items() if value != silent[name]}


@dataclass(frozen=True)
class _Reader:
    """Checks one entry of a file."""

    source: str
    number: int
    said: object
    shipped: bool

    def entry(self) -> Entry:
        said = self.said
        if not isinstance(said, dict):
            self._fail(f"is {said!r}; it must be an object")
        known = {f.name for f in fields(Entry)}
        if unknown := sorted(set(said) - known):
            self._fail(f"has {unknown[0]!r}; known: {', '.join(sorted(known))}")
        formats = {format.id: format for format in FORMATS.values()}
        format = formats[self._one_of("format", tuple(formats))]
        precision = self._one_of("precision", PRECISIONS)
        k = self._size("k")
        n = None if said.get("n") == ANY else self._size("n")
        kernel, parameters = said.get("kernel"), said.get("parameters")
        if not isinstance(kernel, str):
            self._fail(f"has kernel {kernel!r}; it must be the registered name of one (`ptxgen list`)")
        if not isinstance(parameters, dict) or not all(type(value) in (int, bool) for value in parameters.values()):
            self._fail(f"has parameters {parameters!r}; it must be an object of whole numbers, true or false")
        seconds, rate, error = (self._number(name) for name in ("seconds", "bytes_per_second", "error"))
        words = {name: self._word(name) for name in ("measured", "versions", "note")}
        clock = self._one_of("clock", CLOCKS) if "clock" in said else CLOCKS[0]
        entry = Entry(precision, format.id, k, n, kernel, parameters, seconds, rate, error, clock, **words)
        try:
            made = entry.make(n or 1)
        except ArgumentError as fault:
            self._fail(str(fault))
        if getattr(made, "format", format) != format:
            self._fail(f"names {kernel} for {format.name}, but that is for {made.format}")  # type: ignore[attr-defined]
        if self.shipped:
            self._check_bits(entry, format)
        return entry

    def _check_bits(self, entry: Entry, format: Format) -> None:
        default = default_strategy(format, entry.precision).kernel
        if entry.kernel != default:
            self._fail(f"names {entry.kernel}; a shipped table may only name what is used anyway, {default}")
        for name in entry.parameters:
            if name not in bit_free(default):
                self._fail(f"sets {name}, which changes the bits; allowed: {', '.join(bit_free(default)) or 'none'}")

    def _field(self, name: str) -> Any:
        assert isinstance(self.said, dict)
        if name not in self.said:
            self._fail(f"has no {name}")
        return self.said[name]

    def _one_of(self, name: str, allowed: Sequence[str]) -> str:
        value = self._field(name)
        if value not in allowed:
            self._fail(f"has {name} {value!r}; allowed: {', '.join(allowed)}")
        return str(value)

    def _size(self, name: str) -> int:
        value = self._field(name)
        if type(value) is not int or value < 1:
            self._fail(f"has {name} {value!r}; it must be a whole number of at least 1{', or any' if name == 'n' else ''}")
        return int(value)

    def _number(self, name: str) -> float | None:
        assert isinstance(self.said, dict)
        value = self.said.get(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            self._fail(f"has {name} {value!r}; it must be a number of at least 0, or null")
        return float(value)

    def _word(self, name: str) -> str:
        assert isinstance(self.said, dict)
        value = self.said.get(name, "")
        if not isinstance(value, str):
            self._fail(f"has {name} {value!r}; it must be text")
        return value

    def _fail(self, message: str) -> NoReturn:
        raise ArgumentError(f"{self.source}: entry {self.number} {message}")
