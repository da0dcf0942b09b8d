"""The stream of an executor, and the host that waits for it."""

from __future__ import annotations

import pytest

from executor import CudaExecutor, LaunchError
from executor.base.errors import DeviceFailed
from tests.executor.device.fake_driver import FakeDriver


def test_a_gpus_stream_is_a_handle_and_is_waited_for(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuStreamCreate", lambda flags: (driver.CUresult.CUDA_SUCCESS, 4711))
    with CudaExecutor("cuda:0") as executor:
        assert executor.stream == 4711
        waits = executor.device.waits
        executor.synchronize()
        assert executor.device.waits == waits + 1


def test_the_emulator_has_none_and_a_capture_cannot_wait(executor: CudaExecutor) -> None:
    assert executor.stream is None
    executor.synchronize()
    with pytest.raises(LaunchError, match="the host waits for the device, which cannot be captured"), executor.capture():
        executor.synchronize()


def test_a_fault_is_told_by_who_waits(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    with CudaExecutor("cuda:0") as executor:
        status = driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        monkeypatch.setattr(driver, "cuStreamSynchronize", lambda stream: (status,))
        with pytest.raises(DeviceFailed):
            executor.synchronize()
