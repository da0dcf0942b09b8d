"""Which checks there are for what is asked, what came out of them, and how that is said."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing import get_context
from typing import Any, Final

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import Nonconformity, PtxGenError
from ptxgen.kernels.registry import KernelEntry, entries, entries_of, find

Subject = str | type[KernelType] | KernelEntry | KernelType
"""A registered name, a class, an entry of the registry, or one kernel with its shape."""


@dataclass(frozen=True)
class Check:
    """One check of one kernel or registered name, not run yet. Calling it raises whatever is wrong."""

    subject: str
    name: str
    run: Callable[[], None] = field(compare=False, repr=False)

    def __call__(self) -> None:
        self.run()

    def __str__(self) -> str:
        return f"{self.subject}-{self.name}"


@dataclass(frozen=True)
class Result:
    """What came out of a check. `reason` is empty if it passed."""

    subject: str
    check: str
    reason: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.reason

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'FAILED'}  {self.subject}  {self.check}"


@dataclass(frozen=True)
class Report:
    """The results, in the order of the checks, and the seconds that they took in all: less than those of each together, where
    several ran at once."""

    results: tuple[Result, ...]
    seconds: float

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results of the checks that did not pass."""
        return tuple(result for result in self.results if not result.passed)

    @property
    def passed(self) -> bool:
        """Whether there were checks, and all passed."""
        return bool(self.results) and not self.failures

    def __str__(self) -> str:
        """A line a check, then the reason of each failure, then the sum."""
        return "\n".join([*map(str, self.results), *self.explanations(), "", self.sum])

    def explanations(self) -> Iterator[str]:
        """The lines that say why each failure is one."""
        for result in self.failures:
            yield from ("", f"{result.subject}  {result.check}", *(f"  {line}" for line in result.reason.splitlines()))

    @property
    def sum(self) -> str:
        """How many failed and passed, and the seconds they took."""
        failed = f"{len(self.failures)} failed, " if self.failures else ""
        return f"{failed}{len(self.results) - len(self.failures)} passed in {self.seconds:.1f} s"

    def raise_failures(self) -> None:
        """Raise Nonconformity with this report if anything failed."""
        if not self.passed:
            raise Nonconformity(str(self))


def check(*subjects: Subject) -> Report:
    """Run every check of these kernels; of all registered ones if none is named. An error of a check is its result, not raised;
    ArgumentError for a name that nobody registered."""
    start = time.perf_counter()
    results = tuple(result(one) for one in planned(*subjects))
    return Report(results, time.perf_counter() - start)


def planned(*subjects: Subject) -> Iterator[Check]:
    """The checks of these kernels (all registered ones if none is named), a kernel's checks one after the other. A type that
    cannot even name its sample shapes has one check, which fails with the reason."""
    for subject in subjects or entries().values():
        if isinstance(subject, KernelType):
            yield from _of_shape(subject)
            continue
        for entry in _entries_of(subject):
            yield from _of_entry(entry)


def _entries_of(subject: str | type[KernelType] | KernelEntry) -> list[KernelEntry]:
    if isinstance(subject, KernelEntry):
        return [subject]
    return [find(subject)] if isinstance(subject, str) else entries_of(subject)


def _of_entry(entry: KernelEntry) -> Iterator[Check]:
    from ptxgen.conformance.type_checks import TYPE_CHECKS

    try:
        kernels = list(dict.fromkeys(entry.cases()))
    except Exception:  # whatever the author's code raises: it is the check's result
        yield Check(entry.name, "cases", lambda: TYPE_CHECKS["cases"](entry))
        return
    for name, one in TYPE_CHECKS.items():
        yield Check(entry.name, name, _bound(one, entry))
    for kernel in kernels:
        yield from _of_shape(kernel)


def _of_shape(kernel: KernelType) -> Iterator[Check]:
    from ptxgen.conformance.shape_checks import SHAPE_CHECKS

    for name, one in SHAPE_CHECKS.items():
        yield Check(str(kernel), name, _bound(one, kernel))


def _bound(function: Callable[[Any], None], subject: Any) -> Callable[[], None]:
    return lambda: function(subject)


def result(one: Check) -> Result:
    """Run a check."""
    start = time.perf_counter()
    try:
        one()
        reason = ""
    except Exception as error:  # a stranger's code may raise anything, and the other checks go on
        reason = explained(error)
    return Result(one.subject, one.name, reason, time.perf_counter() - start)


_MOST_PROCESSES: Final = 16  # each takes some 200 MB


def side_by_side(checks: Iterable[Check]) -> Iterator[Result]:
    """Run the checks in as many processes as there are processors, the results in the order of the checks. All checks of a
    kernel are made by one process, which writes its text once. For commands: the processes are forks of this one. PtxGenError
    if one of them is ended from outside, or by what it runs."""
    groups = [list(group) for _, group in groupby(checks, key=lambda one: one.subject)]
    processes = min(len(os.sched_getaffinity(0)), len(groups), _MOST_PROCESSES)
    if processes < 2:
        yield from (result(one) for group in groups for one in group)
        return
    with ProcessPoolExecutor(processes, get_context("fork"), _inherit, (groups,)) as pool:  # a fork is given them unpickled
        try:
            for results in pool.map(_results, range(len(groups))):
                yield from results
        except BrokenProcessPool as error:
            raise PtxGenError(
                "a process that ran checks was ended, by a fault in machine code or for want of memory; name fewer kernels to "
                "see whose check it was"
            ) from error


_inherited: Sequence[Sequence[Check]] = ()
"""What a process of `side_by_side` may be asked to run."""


def _inherit(groups: Sequence[Sequence[Check]]) -> None:
    global _inherited
    _inherited = groups


def _results(number: int) -> list[Result]:
    return [result(one) for one in _inherited[number]]


def explained(error: BaseException) -> str:
    """What an error says; one that is not the package's own with its type and the line that raised it."""
    notes: Iterable[str] = getattr(error, "__notes__", ())
    if isinstance(error, PtxGenError):
        return "\n".join([str(error), *notes])
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"  {frames[-1].filename}:{frames[-1].lineno}  {frames[-1].line}"] if frames else []
    return "\n".join([f"{type(error).__name__}: {error}", *where, *notes])
