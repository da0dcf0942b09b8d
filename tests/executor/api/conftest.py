"""The executor that tests of its parts start from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from executor import CudaExecutor


@pytest.fixture
def executor() -> Iterator[CudaExecutor]:
    with CudaExecutor("emulator") as opened:
        yield opened
