"""The emulated device keeps to its memory, and tells when it is used wrongly. (What it shares with a GPU:
tests/gpu/test_device.py.)"""

from __future__ import annotations

import numpy as np
import pytest

from executor.base.errors import DeviceError, LaunchError
from executor.device import Device, open_device
from executor.device.emulated import EmulatedDevice
from executor.device.parameters import ParameterBlock
from ptxgen.emulator import EmulationError
from ptxgen.errors import ArgumentError
from tests.ptxgen.emulator.ptx import kernel as endless


def test_what_is_placed_is_read_once_and_cannot_be_overwritten(emulator: Device) -> None:
    array = np.arange(64, dtype=np.uint8)
    pointer = emulator.alloc_read_only(64, lambda start, into: np.copyto(into, array[start : start + into.size]))
    assert pointer is not None
    array[0] = 99
    back = np.ones(4, np.uint8)
    emulator.download(pointer, back)
    assert back.tolist() == [0, 1, 2, 3]
    with pytest.raises(DeviceError, match="read-only"):
        emulator.upload(pointer, back)
    with pytest.raises(DeviceError, match="read-only"):
        emulator.fill(pointer, 4)
    emulator.free(pointer)
    assert emulator.memory().allocated == 0


def test_what_cannot_be_read_leaves_no_memory(emulator: Device) -> None:
    def fail(start: int, into: object) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        emulator.alloc_read_only(64, fail)
    assert emulator.memory().allocated == 0


@pytest.mark.parametrize("shift", [-1, 1, 10**6])
def test_a_copy_outside_of_what_was_allocated_is_refused(emulator: Device, shift: int) -> None:
    pointer = emulator.alloc(64)
    with pytest.raises(DeviceError, match="no live allocation holds"):
        emulator.upload(pointer + shift, np.zeros(64, np.uint8))
    with pytest.raises(DeviceError, match="no live allocation holds"):
        emulator.fill(pointer, 65)


def test_a_copy_within_the_device(emulator: Device) -> None:
    a, b = emulator.alloc(8), emulator.alloc(8)
    emulator.upload(a, np.arange(8, dtype=np.uint8))
    emulator.fill(b, 8, 7)
    emulator.copy(b + 2, a + 4, 3)
    back = np.empty(8, np.uint8)
    emulator.download(b, back)
    assert back.tolist() == [7, 7, 4, 5, 6, 7, 7, 7]


def test_freeing_what_is_not_allocated_is_an_error(emulator: Device) -> None:
    pointer = emulator.alloc(64)
    emulator.free(pointer)
    for wrong in (pointer, pointer + 1, 0):
        with pytest.raises(DeviceError, match="not allocated"):
            emulator.free(wrong)


@pytest.mark.parametrize("nbytes", [0, -5, 1 << 60])
def test_an_impossible_size_is_refused(emulator: Device, nbytes: int) -> None:
    with pytest.raises(DeviceError, match=str(nbytes)):
        emulator.alloc(nbytes)


def test_a_closed_device_refuses_everything_but_close() -> None:
    device = EmulatedDevice()
    pointer = device.alloc(64)
    device.close()
    device.close()
    for use in (lambda: device.alloc(1), lambda: device.free(pointer), device.synchronize, device.record):
        with pytest.raises(DeviceError, match="is closed"):
            use()


def test_time_passes_between_events(emulator: Device) -> None:
    start = emulator.record()
    assert emulator.elapsed(start, emulator.record()) >= 0


def test_open_device_by_name() -> None:
    with open_device("emulator") as device:
        assert (device.kind, str(device.target), device.reason) == ("emulator", "sm_90", "asked for")
        assert device.describe()["workers"] >= 1


@pytest.mark.parametrize("spec", ["gpu", "cuda:", "cuda:-1", "cuda:x", "emulator:0", ""])
def test_an_unknown_device_name_is_refused(spec: str) -> None:
    with pytest.raises(ArgumentError, match="use auto, cuda, cuda:N or emulator"):
        open_device(spec)


def test_the_sanitizer_is_the_emulators() -> None:
    with pytest.raises(ArgumentError, match="only the emulator has a sanitiser"):
        open_device("cuda:0", sanitize=True)


def test_a_machine_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise DeviceError("no NVIDIA driver on this machine (Failed to dlopen libcuda.so.1)")

    monkeypatch.setattr("executor.device.cuda.driver", no_driver)
    with pytest.raises(DeviceError, match="no NVIDIA driver"):
        open_device("cuda:0")
    with open_device("auto") as device:
        assert device.kind == "emulator"
        assert "no NVIDIA driver" in device.reason


def test_the_device_is_checked_before_the_array(emulator: Device) -> None:
    """A strided array is a ValueError, of a copy that could be done."""
    pointer, strided = emulator.alloc(64), np.zeros(16, np.uint8)[::2]
    emulator.owner.capturing = True
    for copy in (emulator.upload, emulator.download):
        with pytest.raises(LaunchError, match="outside the capture"):
            copy(pointer, strided)
    emulator.owner.capturing = False
    emulator.close()
    for copy in (emulator.upload, emulator.download):
        with pytest.raises(DeviceError, match="is closed"):
            copy(pointer, strided)


def test_a_download_that_is_refused_has_not_waited(emulator: Device) -> None:
    waits, pointer = emulator.waits, emulator.alloc(64)
    with pytest.raises(DeviceError, match="no live allocation holds"):
        emulator.download(pointer, np.empty(65, np.uint8))
    with pytest.raises(ValueError, match="C-contiguous"):
        emulator.download(pointer, np.empty(64, np.uint8)[::2])
    assert emulator.waits == waits
    emulator.download(pointer, np.empty(64, np.uint8))
    assert emulator.waits == waits + 1


@pytest.mark.slow
def test_a_launch_has_the_time_that_the_environment_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_EMULATOR_SECONDS", "1")
    stores = "st.volatile.shared.u32 [cell], %r1;\n" * 50
    text = endless(f"mov.u32 %r1, %tid.x;\nL1:\n{stores}bra L1;", shared=".shared .align 4 .b32 cell;")
    with EmulatedDevice() as device:
        kernel, _ = device.load(text, "k")
        with pytest.raises(EmulationError, match=r"timeout: k, .* was still running after 1\.\d s; its limit is seconds=1,"):
            device.launch(kernel, (1, 1, 1), (1024, 1, 1), ParameterBlock({}))
