"""Which tests are essential, that is run by the README's test command within BUDGET, and which are slow (`-m slow`).

A test is slow if it is marked so, because it takes more than two seconds of a processor; if it is one case of many: of a
test over all kernels the cases of one kernel a strategy and one a format are essential, each at its smallest shape, of a test
over all formats that of Q4_K, and of a test over whole models those of Q4_K; or if it stands in slow.txt, because it took more
than LONG when `pytest --record-slow` wrote that file. So no case is listed by hand. Every file has essential tests."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

BUDGET = 300
"""Seconds that the README's test command may take on two processors of a machine for CI; .ci/run sees to it."""
LONG = 0.15
"""Processor seconds on a machine for development, set-up and children included: neighbours do not count."""
RECORDED = Path(__file__).with_name("slow.txt")


def is_slow(item: pytest.Item) -> bool:
    """Whether a test is slow for its parameters, or was when it was recorded."""
    callspec = getattr(item, "callspec", None)
    return item.nodeid in recorded() or (callspec is not None and not all(map(is_essential, callspec.params.values())))


@cache
def recorded() -> frozenset[str]:
    """The ids of the tests in slow.txt."""
    return frozenset(RECORDED.read_text().splitlines()) if RECORDED.exists() else frozenset()


def processor_seconds() -> float:
    """What this process and the children that have ended took of the processors."""
    return sum(os.times()[:4])


def record(seconds: Mapping[str, float]) -> None:
    """Write slow.txt anew for the tests that ran, by id with what they took; of a file that has only long ones, the quickest is
    left out."""
    files: dict[str, list[str]] = {}
    for test in sorted(seconds, key=seconds.__getitem__):
        files.setdefault(test.partition("::")[0], []).append(test)
    long = {test for tests in files.values() for test in tests[1:] if seconds[test] > LONG}
    RECORDED.write_text("".join(f"{test}\n" for test in sorted(long | (recorded() - set(seconds)))))


def by_file(seconds: Mapping[str, float], most: int = 30) -> list[str]:
    """What all tests took of the processors, and the files that took most, a line each; `seconds` is by the tests' ids."""
    files: defaultdict[str, float] = defaultdict(float)
    for test, taken in seconds.items():
        files[test.partition("::")[0]] += taken
    heaviest = sorted(files, key=files.__getitem__, reverse=True)[:most]
    lines = [("all files", sum(seconds.values())), *((file, files[file]) for file in heaviest)]
    return [f"{taken:8.1f} s  {what}" for what, taken in lines]


def files_without_essential(items: Iterable[pytest.Item]) -> list[str]:
    """The files of which every test is slow."""
    essential: dict[str, bool] = {}
    for item in items:
        path = item.nodeid.partition("::")[0]
        essential[path] = essential.get(path, False) or item.get_closest_marker("slow") is None
    return [path for path, any_essential in essential.items() if not any_essential]


def is_essential(value: object) -> bool:
    """Whether a case with this parameter is essential, for all that is known of the parameter."""
    from ptxgen.conformance.report import Check
    from ptxgen.dsl.kernel_type import KernelType
    from ptxgen.formats import Format
    from ptxgen.kernels.registry import KernelEntry
    from tests.executor.model.variants import Variant
    from tests.ptxgen.kernels.catalogue import REPRESENTATIVES

    if isinstance(value, Check):
        return value.subject in _subjects() and value.name != "tails"
    if isinstance(value, KernelEntry | KernelType):
        return value.name in REPRESENTATIVES
    if isinstance(value, Variant):
        return value.name.endswith("-Q4_K")
    if isinstance(value, Format | str):
        return str(value) not in _not_essential_names()
    return True


@cache
def _subjects() -> frozenset[str]:
    """The subjects of checks that are essential: names, and kernels with their smallest shape."""
    from ptxgen.conformance.type_checks import smallest
    from ptxgen.kernels.registry import find
    from tests.ptxgen.kernels.catalogue import REPRESENTATIVES

    return frozenset([*REPRESENTATIVES, *(str(smallest(find(name))) for name in REPRESENTATIVES)])


@cache
def _not_essential_names() -> frozenset[str]:
    """The names of all formats but Q4_K, and of all kernels that represent no others."""
    from ptxgen.formats import ALL
    from ptxgen.kernels.registry import entries
    from tests.ptxgen.kernels.catalogue import REPRESENTATIVES

    formats = (format for format in ALL.values() if format.name != "Q4_K")
    return frozenset([*(name for format in formats for name in (format.name, format.id)), *(set(entries()) - REPRESENTATIVES)])
