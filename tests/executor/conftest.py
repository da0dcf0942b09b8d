"""The emulator as a device, closed at the end of the test; a cache folder of the test's own, never the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.device import Device
from executor.device.emulated import EmulatedDevice


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def emulator() -> Iterator[Device]:
    with EmulatedDevice() as device:
        yield device
