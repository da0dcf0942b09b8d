"""The fixture that every fuzzer takes. A failure shows the options that run its case alone, as output of the teardown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.cases import Cases

MARGIN_SECONDS = 300.0
"""What a fuzzer may take beyond the time in which it begins cases, before it counts as hanging."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seconds: float = config.getoption("--fuzz-seconds")
    for item in items:
        if "cases" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(seconds + MARGIN_SECONDS))


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Iterator[Cases]:
    option = request.config.getoption
    made = Cases(request.node.name, option("--fuzz-seed"), option("--fuzz-seconds"), option("--fuzz-case"))
    yield made
    print(f"{request.node.nodeid}: the last case again: {made.again()}")
