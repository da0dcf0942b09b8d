"""How the tests of kernels are compiled, and the order of those of the catalogue: those of a kernel one after the other, since
its text and what the emulator read of it are kept for a while."""

from __future__ import annotations

import pytest

from ptxgen.conformance.report import Check
from ptxgen.kernels.registry import KernelEntry


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly(request: pytest.FixtureRequest) -> None:
    """But for the catalogue, whose golden outputs are those of optimised code."""
    if request.path.stem != "test_catalogue":
        request.getfixturevalue("quick_kernels")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [i for i, item in enumerate(items) if item.path.stem == "test_catalogue" and _kernel(item)]
    first: dict[str, int] = {}
    for place in places:
        first.setdefault(_kernel(items[place]), place)
    ordered = sorted((items[place] for place in places), key=lambda item: first[_kernel(item)])
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def _kernel(item: pytest.Item) -> str:
    """The registered name of the kernel that a test is of; empty if it is of none."""
    callspec = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec is not None else ():
        if isinstance(value, Check):
            return value.subject.partition("(")[0]
        if isinstance(value, KernelEntry):
            return value.name
    return ""
