"""The checks of a registered name, beyond those of its sample shapes: which shapes it names, takes and refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from ptxgen.conformance.execution import emitted
from ptxgen.conformance.shape_checks import emulator, set_fields, signature, targets
from ptxgen.dsl.arguments import Array, is_whole
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.parts import with_parameters
from ptxgen.errors import ArgumentError, Nonconformity, PtxGenError
from ptxgen.kernels.registry import KernelEntry
from ptxgen.target import Target

SMALLEST = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PRIMES = (37, 31, 13, 7)
WRONG = (0, -1, 2.5, "four")


def cases(entry: KernelEntry) -> None:
    """Sample shapes are there, each once, carry the registered name, and can be made from their parameters."""
    kernels = list(entry.cases())
    if not kernels:
        raise Nonconformity("cases() names no shape")
    for kernel in kernels:
        if kernel.name != entry.name:
            raise Nonconformity(f"cases() has {kernel}, which is not called {entry.name}")
        if kernels.count(kernel) > 1:
            raise Nonconformity(f"cases() has {kernel} twice")
        shape = {name: value for name, value in set_fields(kernel).items() if name in entry.parameters}
        if entry.make(**shape) != kernel:
            raise Nonconformity(f"{kernel} is not equal to a kernel made from its own fields")


def refusals(entry: KernelEntry) -> None:
    """Impossible shapes are ArgumentErrors: a whole number of 0 or below may have a meaning, a fraction or a word cannot."""
    kernel = smallest(entry)
    for name in whole_fields(entry, kernel):
        for value in WRONG:
            changed = _changed(kernel, name, value)
            if changed is None:
                continue
            if not isinstance(value, int):
                raise Nonconformity(f"{name}={value!r} is accepted; {_cure(name)}")
            try:
                signature(changed)
            except Exception as error:  # whatever the author's code makes of such a number
                reason = str(error) if isinstance(error, PtxGenError) else f"{type(error).__name__}: {error}"
                raise Nonconformity(f"{name}={value!r} is accepted, but {reason}; {_cure(name)}") from error


def _cure(name: str) -> str:
    return f'refuse it in __post_init__: require(self, "{name}") of ptxgen.kernels.shape says what is allowed'


def tails(entry: KernelEntry, only: Collection[str] = ()) -> None:
    """Each size that may be prime, or smaller than in any sample shape, is tried so: tails are where kernels break. A shape
    that the emulator cannot tell from one that it has run, or from the smallest sample shape, is not run again. `only`: the
    fields to try, all if none is named."""
    run = [smallest(entry)]
    for kernel in _untried(entry, only):
        try:
            signature(kernel)
            if not any(_runs_alike(kernel, other) for other in run):
                emulator(kernel)
                run.append(kernel)
        except Exception as error:
            error.add_note(f"with the shape {kernel}, which cases() does not have")
            raise


def _runs_alike(one: KernelType, other: KernelType) -> bool:
    """Whether two kernels differ only in what is for assemblers: how many blocks a multiprocessor must hold, and registers."""
    ours, theirs = (replace(kernel.launch(), resident=1, most_registers=0) for kernel in (one, other))
    if ours != theirs or one.signature() != other.signature():
        return False
    return all(_program(one, target) == _program(other, target) for target in targets(one))


def _program(kernel: KernelType, target: Target) -> str:
    return re.sub(r"^(//|\.minnctapersm |\.maxnreg ).*\n", "", emitted(kernel, target).text, flags=re.MULTILINE)


def _untried(entry: KernelEntry, only: Collection[str]) -> Iterator[KernelType]:
    kernel = smallest(entry)
    for name in whole_fields(entry, kernel):
        if only and name not in only:
            continue
        tried = {set_fields(case)[name] for case in entry.cases()}
        if not tried & {1, *PRIMES} and not any(map(_is_prime, tried)):
            yield from _first_taken(kernel, name, PRIMES)
        yield from _first_taken(kernel, name, [value for value in SMALLEST if value < min(tried)])


def _first_taken(kernel: KernelType, name: str, values: Any) -> Iterator[KernelType]:
    yield from [changed for changed in (_changed(kernel, name, value) for value in values) if changed is not None][:1]


def _changed(kernel: KernelType, name: str, value: Any) -> KernelType | None:
    """The kernel with one field changed, None if its type or its signature refuses that."""
    try:
        changed = with_parameters(kernel, **{name: value})
        changed.signature()
    except ArgumentError:
        return None
    except Exception as error:
        raise Nonconformity(f"{name}={value!r} raises {type(error).__name__} ({error}); {_cure(name)}") from error
    return changed


def smallest(entry: KernelEntry) -> KernelType:
    """The sample shape with the smallest arrays."""
    return min(entry.cases(), key=array_bytes)


def array_bytes(kernel: KernelType) -> int:
    """Bytes of all arrays of the signature."""
    return sum(argument.nbytes for argument in kernel.signature().values() if isinstance(argument, Array))


def whole_fields(entry: KernelEntry, kernel: KernelType) -> list[str]:
    """The fields of the shape that are whole numbers."""
    shape = {name: value for name, value in set_fields(kernel).items() if name in entry.parameters}
    return [name for name, value in shape.items() if is_whole(value)]


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


TYPE_CHECKS: dict[str, Callable[[KernelEntry], None]] = {"cases": cases, "refusals": refusals, "tails": tails}
