"""The fixture that every fuzzer takes. A failure shows the options that run its case alone, as output of the teardown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.cases import Cases

MARGIN_SECONDS = 300.0
"""What a fuzzer may take beyond the time in which it begins cases, before it counts as hanging."""


SECONDS = {"short": 1.0, "long": 8.0}
"""How long each fuzzer begins cases unless --fuzz-seconds says so. Both take the same cases, the long one more of them."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seconds: float = config.getoption("--fuzz-seconds") or max(SECONDS.values())
    for item in items:
        if "cases" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(seconds + MARGIN_SECONDS))


@pytest.fixture(params=["short", pytest.param("long", marks=pytest.mark.slow)])
def cases(request: pytest.FixtureRequest) -> Iterator[Cases]:
    option = request.config.getoption
    seconds = option("--fuzz-seconds") or SECONDS[request.param]
    made = Cases(request.node.originalname, option("--fuzz-seed"), seconds, option("--fuzz-case"))
    yield made
    print(f"{request.node.nodeid}: the last case again: {made.again()}")
