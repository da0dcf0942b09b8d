"""Finds kernel types by name: ours, and those of other packages (entry-point group `ptxgen.kernels`). A package that is broken
is set aside with the reason; all others work."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, overload

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.parts import KernelPart, composed, fixed_parts, parameters_of, summary
from ptxgen.errors import ArgumentError
from ptxgen.formats.format import Format
from ptxgen.printable import did_you_mean, printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

K = TypeVar("K", bound=type[KernelType])
Composition = tuple[type[KernelType], tuple[type[KernelPart], ...], frozenset[str]]

GROUP: Final = "ptxgen.kernels"
"""The entry-point group in which a package names the modules that register its kernels."""

_log = logging.getLogger(__name__)


class Given(NamedTuple):
    """In `register`: a field that kernels of this name have and users set, where other names of the class leave it None.
    default: what it is where the user does not say."""

    default: Any = MISSING


GIVEN: Final = Given()


@dataclass(frozen=True)
class KernelEntry:
    """A registered name: a class, the fields that the name fixes (`q4k_gemv` fixes the format of a GEMV), and those that it has
    and other names of the class have not (`batched_rmsnorm` has m), with their defaults."""

    name: str
    type: type[KernelType]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first line of the class's docstring, and what the parts that the name fixes add to it."""
        return summary(self.type, fixed_parts(self.type, self.fixed))

    @property
    def parameters(self) -> dict[str, Any]:
        """The shape fields a user sets, with their defaults (MISSING where there is none)."""
        own = parameters_of(self.type, self.fixed)
        return {name: self.given.get(name, default) for name, default in own.items()}

    @property
    def composition(self) -> Composition:
        """The class, the parts that the name fixes and the fields that it has: names that differ in a format or in m have the
        same."""
        return self.type, tuple(fixed_parts(self.type, self.fixed)), frozenset(self.given) - {"m"}

    def make(self, **shape: Any) -> KernelType:
        """The kernel of this shape. Raises ArgumentError for unknown, missing or impossible values."""
        parameters = self.parameters
        for name in shape:
            if name not in parameters:
                raise ArgumentError(f"{self.name} has no parameter {name!r}; it has {', '.join(parameters) or 'none'}")
        missing = [name for name, default in parameters.items() if default is MISSING and name not in shape]
        if missing:
            raise ArgumentError(f"{self.name} needs {', '.join(missing)}")
        shape = {name: default for name, default in self.given.items() if default is not MISSING} | shape
        if none := [name for name in self.given if shape[name] is None]:
            raise ArgumentError(f"{self.name}: {none[0]} must not be None")
        kernel = composed(self.type, self.fixed, shape)
        try:
            kernel.signature()
        except ArgumentError as error:
            raise ArgumentError(f"{kernel}: {error}") from error
        return kernel

    def cases(self) -> Iterator[KernelType]:
        """The sample shapes of the class under this name: where other names have other fields, those that are called so."""
        all_forms = self.type.cases(**self.fixed)
        if self.given or None in self.fixed.values():
            all_forms = (kernel for kernel in all_forms if kernel.name == self.name)
        return all_forms if self._common else _smallest(all_forms)

    @property
    def _common(self) -> bool:
        """Whether it has all sample shapes: of a format that is not common one shows that the strategy decodes it."""
        format = self.fixed.get("format")
        return format.common if isinstance(format, Format) else True


def _smallest(kernels: Iterable[Any]) -> Iterator[KernelType]:
    """The kernel that moves the fewest bytes, of those with several blocks of weights in a row."""
    yield min((one for one in kernels if one.k > one.format.block), key=lambda one: one.work().bytes)


@dataclass(frozen=True)
class Broken:
    """An entry point that does not load: its name, the package that has it, what it points at, and why it does not."""

    name: str
    package: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"entry point {self.name} = {self.value} of {self.package}: {self.reason}"


_entries: dict[str, KernelEntry] = {}
_broken: list[Broken] = []
_loading: list[EntryPoint] = []


@overload
def register(cls: K, /) -> K: ...
@overload
def register(**fixed: Iterable[Any]) -> Callable[[K], K]: ...
def register(cls: K | None = None, /, **fixed: Iterable[Any]) -> K | Callable[[K], K]:
    """Class decorator above `@dataclass(frozen=True)`: make a kernel type known under its `name`, or, with the values that a
    field may have (`@register(format=[Q4_K, Q6_K])`), under the name that each of them gives it. With several such fields each
    combination has a name. `@register(m=[None, GIVEN])` makes two names: one of kernels without m, one of kernels with any.
    Decorators can be stacked. Raises ArgumentError for a class that is no whole kernel type or a name that is taken: by another
    class, or by the same one with other values."""

    def decorate(cls: K) -> K:
        for values in product(*fixed.values()):
            by_name = dict(zip(fixed, values, strict=True))
            given = {name: value.default for name, value in by_name.items() if isinstance(value, Given)}
            _add(cls, {name: value for name, value in by_name.items() if name not in given}, given)
        return cls

    return decorate if cls is None else decorate(cls)


class _NotFixed:
    """A field whose value, even if it has a default, a name must not depend on."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, kernel: object, owner: type) -> Any:
        raise AttributeError(f"`name` must not depend on `{self._name}`, a field that register does not fix")


@cache
def _with_only(cls: type[KernelType], fixed: frozenset[str]) -> type[KernelType]:
    """The class without the values of other fields than these."""
    if isinstance(getattr(cls, "name", None), str):
        return cls  # it depends on none
    return type(cls.__name__, (cls,), {f.name: _NotFixed() for f in fields(cls) if f.name not in fixed})


def name_of(cls: type[KernelType], **fixed: Any) -> str:
    """The name of a kernel type whose fields have these values. ArgumentError if its name depends on other fields, too."""
    kernel = object.__new__(_with_only(cls, frozenset(fixed)))  # what is known is the name's fields, not the shape
    for field_name, value in fixed.items():
        object.__setattr__(kernel, field_name, value)
    try:
        name = kernel.name
    except AttributeError as error:
        raise ArgumentError(f"{cls.__qualname__}: to register one name, {error}") from error
    if not isinstance(name, str):
        raise ArgumentError(f"{cls.__qualname__}: `name` must be a str, got {name!r}")
    return name


def _add(cls: type[KernelType], fixed: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    _require_whole(cls)
    name = name_of(cls, **fixed, **dict.fromkeys(given, GIVEN))
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise ArgumentError(f"{name!r} cannot be the name of a PTX entry; letters, digits and _ are allowed")
    if not _is_own(cls):
        _load_own()  # so that another package's kernel which is imported first cannot take one of our names
    taken = _entries.get(name)
    if taken is not None and (taken.type is not cls or (taken.fixed, taken.given) != (fixed, given)):
        values = " and".join(f" {field_name}={value!r}" for field_name, value in taken.fixed.items() if value is not None)
        other = f"{taken.type.__module__}.{taken.type.__qualname__}{values and ' with'}{values}"
        raise ArgumentError(f"kernel name {name!r} is taken by {other}")
    _entries[name] = KernelEntry(name, cls, fixed, given)


def _require_whole(cls: type[KernelType]) -> None:
    if not (isinstance(cls, type) and issubclass(cls, KernelType)):
        raise ArgumentError(f"{cls!r} is not a subclass of ptxgen.dsl.kernel_type.KernelType")
    if "__dataclass_params__" not in vars(cls):
        raise ArgumentError(f"{cls.__qualname__} is not a dataclass yet; write @dataclass(frozen=True) under @register")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise ArgumentError(f"{cls.__qualname__} does not say {', '.join(missing)}")
    if not isinstance(getattr(cls, "family", None), str):
        raise ArgumentError(f"{cls.__qualname__} has no family; give it the class attribute `family`, a str")


def _is_own(cls: type) -> bool:
    return cls.__module__.startswith("ptxgen.")


def entries() -> dict[str, KernelEntry]:
    """Every registered kernel by name, in alphabetical order."""
    _discover()
    return dict(sorted(_entries.items()))


def broken() -> tuple[Broken, ...]:
    """The entry points of other packages that do not load."""
    _discover()
    return tuple(_broken)


def find(name: str) -> KernelEntry:
    """The entry of this name; ArgumentError with near names if there is none. Other packages are imported only if the name is
    none of ours, so that a slow or broken one is not in the way."""
    _load_own()
    if name not in _entries:
        _discover()
    if name not in _entries:
        hint = did_you_mean(name, _entries, "see `ptxgen list`")
        faults = "".join(f"\n  not loaded: {fault}" for fault in _broken)
        raise ArgumentError(f"no kernel is called {name!r}; {hint}{faults}")
    return _entries[name]


def entries_of(cls: type[KernelType]) -> list[KernelEntry]:
    """The entries of this class; one made for it if nobody registered it."""
    return [entry for entry in entries().values() if entry.type is cls] or [KernelEntry(name_of(cls), cls)]


@cache
def _load_own() -> None:
    import ptxgen.kernels as package

    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)


@cache
def _waiting() -> list[EntryPoint]:
    """The entry points of other packages that are not loaded yet."""
    from ptxgen import plugins  # late: it takes a tenth of the time of an import, and our kernels need none of it

    return plugins.points(GROUP)


def _discover() -> None:
    _load_own()
    while not _loading and (waiting := _waiting()):  # a module that asks while it is loaded sees what is there so far
        load(waiting.pop(0))


def load(point: EntryPoint) -> None:
    """Load an entry point. If that fails in any way, nothing that it registered stays, and `broken` has it with the reason."""
    from ptxgen import plugins

    before = dict(_entries)
    _loading.append(point)
    try:
        plugins.load(point, lambda loaded: _require_kernels(loaded, before))
    except plugins.PluginError as error:
        _entries.clear()
        _entries.update(before)
        fault = Broken(printable(point.name), plugins.package(point), printable(point.value), str(error))
        _broken.append(fault)
        _log.debug("%s", fault)  # who lists kernels, or does not find one, names it
    finally:
        _loading.remove(point)


def _require_kernels(loaded: Any, before: Mapping[str, KernelEntry]) -> None:
    module = inspect.getmodule(loaded)
    inside = getattr(module, "__name__", "")
    if not any(entry.type is loaded or f"{entry.type.__module__}.".startswith(f"{inside}.") for entry in _entries.values()):
        raise ArgumentError("it registers no kernel; decorate a KernelType with @register from ptxgen.kernels.registry")
    for name, entry in _entries.items():
        if name not in before:
            str((entry.summary, entry.parameters))  # what cannot be listed would harm whoever lists it
