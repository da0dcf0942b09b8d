"""Devices: the emulator, closed at the end of the test, and a CUDA driver without a GPU. Cache folders: a test has its own,
never the user's, or shares one with tests that load the same kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.device import Device
from executor.device.emulated import EmulatedDevice
from tests.executor.device.fake_driver import FakeDriver


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Instead of CUDA's."""
    fake = FakeDriver()
    monkeypatch.setattr("executor.device.cuda.driver", lambda: fake)
    return fake


@pytest.fixture
def emulator() -> Iterator[Device]:
    with EmulatedDevice() as device:
        yield device
