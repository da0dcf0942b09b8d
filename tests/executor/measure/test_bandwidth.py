"""The bandwidth of a GPU is measured once and kept; nothing is measured of the emulator. What is measured: tests/gpu."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.base.errors import DeviceError
from executor.device.cuda import CudaDevice
from executor.device.emulated import EmulatedDevice
from executor.device.protocol import Device
from executor.measure import bandwidth
from ptxgen.errors import ArgumentError
from tests.executor.device.fake_driver import FakeDriver


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Devices that were measured so far: each for 4 TB/s."""
    monkeypatch.setattr("executor.device.cuda.driver", FakeDriver)
    devices: list[str] = []

    def measure(device: Device) -> float:
        devices.append(device.name)
        return 4e12

    monkeypatch.setattr(bandwidth, "_measured", measure)
    return devices


def test_a_gpu_is_measured_once_with_each_driver(measured: list[str], own_cache: Path) -> None:
    with CudaDevice() as device:
        assert bandwidth.known_bandwidth(device) is None
        assert [bandwidth.bandwidth(device) for _ in range(3)] == [4e12] * 3
        assert len(measured) == 1
        assert bandwidth.known_bandwidth(device) == 4e12
        device.driver_version += 10
        bandwidth.bandwidth(device)
        assert len(measured) == 2


def test_with_nothing_kept_on_disk_it_is_measured_each_time(measured: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", "0")
    with CudaDevice() as device:
        bandwidth.bandwidth(device)
        bandwidth.bandwidth(device)
    assert len(measured) == 2


def test_a_damaged_file_is_named(measured: list[str], own_cache: Path) -> None:
    own_cache.mkdir()
    (own_cache / "bandwidth.json").write_text('{"NVIDIA H200": "fast"}')
    with CudaDevice() as device, pytest.raises(ArgumentError, match=r"bandwidth.json is not a file of bandwidths"):
        bandwidth.bandwidth(device)


def test_the_emulator_has_no_bandwidth() -> None:
    with EmulatedDevice() as device:
        assert bandwidth.known_bandwidth(device) is None
        with pytest.raises(DeviceError, match="has no memory of its own"):
            bandwidth.bandwidth(device)
