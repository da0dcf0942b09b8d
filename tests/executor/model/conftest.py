"""An emulator for all tests of a file. Models run many kernels, and no test here looks at what is compiled: all share one cache
folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.device import Device, open_device


@pytest.fixture(autouse=True)
def own_cache(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(kernels))
    return kernels


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_device("emulator") as opened:
        yield opened
