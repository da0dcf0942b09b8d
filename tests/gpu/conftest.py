"""Devices: the GPU, for all tests of a file, and one that a test's parameters name, for that test alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from executor.device import Device, open_device


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    with open_device("cuda:0") as opened:
        yield opened


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with open_device(request.param) as opened:
        yield opened
