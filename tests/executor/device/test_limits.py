"""PTXGEN_DEVICE_LIMITS: a larger GPU, or the emulator, runs the kernels of a smaller one within its limits."""

from __future__ import annotations

import numpy as np
import pytest

from executor.base.errors import DeviceError, LaunchError
from executor.choice.choice import GpuProfile
from executor.device import Device, open_device
from executor.device.cuda import CudaDevice
from executor.device.dry_run import DryRunDevice
from executor.device.emulated import EmulatedDevice
from executor.device.gpu import GpuModel
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError
from ptxgen.gpus.gpu import GPUS
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from ptxgen.types import F32
from tests.executor.device.fake_driver import FakeDriver
from tests.executor.launch.kernels import Scale, Turned, together_plan

RTX_4090 = GPUS["rtx4090"]
WANTED = 80 * 1024
"""Bytes of shared memory that sm_90 gives a block, and sm_75 does not."""


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_DEVICE_LIMITS", "rtx-4090")


@pytest.mark.usefixtures("limits")
def test_text_is_of_the_smaller_gpu_and_machine_code_of_the_real_one(driver: FakeDriver) -> None:
    kernel = Scale(n=100)
    text = emit(kernel, Target(89)).text
    with CudaDevice() as device:
        Modules(device).load(kernel)
        assert (str(device.target), str(device.code_target), device.card.multiprocessors) == ("sm_89", "sm_90", 128)
        assert device.name == "cuda:0 (NVIDIA GeForce RTX 4090 on Fake GPU)"
        assert driver.modules == [assemble(text, Target(90)).cubin] == [device.compile(text)]


@pytest.mark.usefixtures("limits")
def test_kernels_are_chosen_as_for_the_smaller_gpu(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        assert GpuModel.of(device) == GpuModel("NVIDIA GeForce RTX 4090 on Fake GPU", "sm_89", 128)
        assert DryRunDevice.like(device).card == device.card
        assert not GpuProfile.for_device(device).has_dependent_launches(device.target)
        with pytest.raises(ArgumentError, match="dependent_launches needs sm_90, this is sm_89"):
            GpuProfile.for_device(device).with_rules("dependent_launches").require_on(device.target)


@pytest.mark.parametrize("spec", ["cuda", "emulator"])
def test_a_block_that_asks_for_more_shared_memory_is_refused(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    kernel = Turned(n=WANTED // 4)
    emitted = emit(kernel, Target(89))
    text, entry = emitted.text, emitted.entry
    monkeypatch.setenv("PTXGEN_DEVICE_LIMITS", "t4")
    with open_device(spec) as device:
        with pytest.raises(
            DeviceError, match=rf"a block of {entry} has 819\d\d bytes .*T4 gives one 65536 at most \(env.*'t4'"
        ):
            device.load(text, entry, dynamic_shared=WANTED)
        assert not driver.modules or driver.live["module"] == 0
    monkeypatch.setenv("PTXGEN_DEVICE_LIMITS", "rtx4090")
    with open_device(spec) as device:
        device.load(text, entry, dynamic_shared=WANTED)


@pytest.mark.parametrize("spec", ["cuda", "emulator"])
def test_blocks_that_wait_for_each_other_fit_both_gpus(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    monkeypatch.setenv("PTXGEN_DEVICE_LIMITS", "orin")
    most = 16 * 16  # the blocks of a multiprocessor are fewer than those of the fake driver's
    with open_device(spec) as device:
        together_plan(device, most)
        with pytest.raises(LaunchError, match=rf"holds {most} at once"):
            together_plan(device, most + 1)


@pytest.mark.usefixtures("limits")
def test_the_emulator_runs_the_kernels_of_the_smaller_gpu() -> None:
    with open_device("emulator", sanitize=True) as device:
        assert device.name == "emulator (GeForce RTX 4090, sm_89, sanitizer)"
        assert (device.card, GpuModel.of(device)) == (RTX_4090, GpuModel("emulator", "sm_89", 0))
        assert _scaled(device) == 13.0
    with EmulatedDevice(Target(75)) as device:
        assert device.card is GPUS["t4"], "a target of one's own goes before the environment"
    with EmulatedDevice(card=GPUS["l4"]) as device:
        assert (device.target, device.card) == (Target(89), GPUS["l4"])


def _scaled(device: Device) -> float:
    y, x = GpuBuffer.empty(device, F32, (100,)), GpuBuffer.from_numpy(device, np.full(100, 5.0, np.float32))
    Launcher(device, Modules(device))(Scale(n=100), y=y, x=x, factor=2.0, offset=3)
    return float(y.to_numpy()[99])


def test_a_gpu_that_is_newer_or_has_more_is_an_error_and_no_fallback(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGEN_DEVICE_LIMITS", "rtx5090")
    with pytest.raises(ArgumentError, match=r"'rtx5090'; allowed: .* RTX 5090 is sm_120 .*Fake GPU is sm_90 with 232448"):
        open_device("auto")
    driver.capability, driver.shared_bytes = (12, 0), 100 * 1024
    with open_device("auto") as device:
        assert (device.target, device.card.multiprocessors) == (Target(120), 170)
    monkeypatch.setenv("PTXGEN_DEVICE_LIMITS", "a100")
    with pytest.raises(ArgumentError, match="A100 SXM 80 GB is sm_80 with 166912 bytes"):
        open_device("auto")


def test_an_unknown_gpu_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_DEVICE_LIMITS", "rtx4091")
    with pytest.raises(ArgumentError, match=r"_LIMITS is 'rtx4091'; allowed: .*did you mean rtx4090.*known: t4, a100"):
        open_device("emulator")
