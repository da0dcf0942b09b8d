"""Kernels run on the emulated device through the launcher: right results, kept code, and findings as errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from executor.base.errors import SanitizerError
from executor.device import Device, open_device
from executor.device.emulated import EmulatedDevice
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import DeviceAllocation, GpuBuffer
from ptxgen.errors import ArgumentError
from ptxgen.target import Target
from ptxgen.types import F32
from tests.executor.launch.kernels import Accumulate, Alone, ReadsBeyond, Scale


def launcher_on(device: Device) -> Launcher:
    return Launcher(device, Modules(device))


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize("n", [1, 64, 100])
def test_a_kernel_computes_its_reference(sanitize: bool, n: int) -> None:
    kernel = Scale(n=n)
    arguments = kernel.inputs(np.random.default_rng(n))
    with open_device("emulator", sanitize=sanitize) as device:
        y, x = GpuBuffer.empty(device, F32, (n,)), GpuBuffer.from_numpy(device, arguments["x"])
        launcher_on(device)(kernel, **{**arguments, "x": x, "y": y})
        error = np.abs(y.to_numpy() - kernel.reference(**arguments)["y"])
        assert (error <= kernel.tolerance(**arguments)["y"]).all()


def test_the_emulator_runs_a_kernel_for_one_gpu_alone_as_that_gpu() -> None:
    kernel = Alone(n=5)
    arguments = kernel.inputs(np.random.default_rng(0))
    with EmulatedDevice(Target(90)) as device:
        y, x = GpuBuffer.empty(device, F32, (5,)), GpuBuffer.from_numpy(device, arguments["x"])
        launcher_on(device)(kernel, **{**arguments, "x": x, "y": y})
        np.testing.assert_allclose(y.to_numpy(), kernel.reference(**arguments)["y"], rtol=1e-6)
    with EmulatedDevice(Target(100)) as device, pytest.raises(ArgumentError, match="is written for sm_90a alone"):
        Modules(device).load(kernel)


def test_a_plan_runs_again_with_what_is_in_the_buffers_then(emulator: Device) -> None:
    total, x = GpuBuffer.zeros(emulator, F32, (100,)), GpuBuffer.from_numpy(emulator, np.ones(100, np.float32))
    plan = launcher_on(emulator).prepare(Accumulate(n=100), total=total, x=x)
    for _ in range(3):
        plan()
    np.testing.assert_array_equal(total.to_numpy(), np.full(100, 3, np.float32))
    assert total.version == 4  # zeros, and three launches


def test_compiled_code_is_found_on_disk_by_the_next_device(own_cache: Path) -> None:
    for hits in (0, 1):
        with EmulatedDevice() as device:
            modules = Modules(device)
            modules.load(Scale(n=100))
            assert (modules.counts.disk_hits, modules.counts.misses) == (hits, 1 - hits)


def test_damaged_code_is_built_again(own_cache: Path) -> None:
    for _ in range(2):
        with EmulatedDevice() as device:
            modules = Modules(device)
            modules.load(Scale(n=100))
            assert modules.counts.misses == 1
        (path,) = [path for path in own_cache.rglob("*") if path.is_file()]
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def test_the_emulators_code_is_bounded_too(own_cache: Path) -> None:
    with EmulatedDevice() as device:
        Modules(device).load(Scale(n=1))
        size = sum(path.stat().st_size for path in own_cache.rglob("*") if path.is_file())
        modules = Modules(device, limit_bytes=2 * size + size // 2)
        modules.preload([Scale(n=n) for n in range(2, 7)])
    assert sum(path.stat().st_size for path in own_cache.rglob("*") if path.is_file()) <= 2 * size + size // 2


def test_a_read_beyond_a_buffer_is_an_error_that_names_buffer_and_authors_line() -> None:
    with open_device("emulator", sanitize=True) as device:
        y, x = GpuBuffer.empty(device, F32, (100,)), GpuBuffer.zeros(device, F32, (100,), "the activations")
        with pytest.raises(SanitizerError) as caught:
            launcher_on(device)(ReadsBeyond(n=100), y=y, x=x, factor=1.0, offset=0)
        (finding,) = caught.value.findings
        assert str(caught.value).startswith("test_reads_beyond(n=100) on y = buffer f32[100], x = the activations")
        assert "the activations" in str(finding)
        assert "kernels.py:" in str(finding)
        assert "thread (35,0,0) of block (1,0,0)" in str(finding)


def test_a_read_of_what_nothing_wrote_is_an_error_until_it_is_uploaded() -> None:
    with open_device("emulator", sanitize=True) as device:
        total, x = GpuBuffer.zeros(device, F32, (100,)), GpuBuffer.empty(device, F32, (100,), "x")
        plan = launcher_on(device).prepare(Accumulate(n=100), total=total, x=x)
        with pytest.raises(SanitizerError, match="nothing wrote"):
            plan()
        x.upload(np.ones(100, np.float32))
        plan()


def test_a_write_to_placed_memory_is_an_error() -> None:
    with open_device("emulator", sanitize=True) as device:
        pointer = device.alloc_read_only(400, lambda start, into: into.fill(0), "weights")
        assert pointer is not None
        total = GpuBuffer(DeviceAllocation(device, pointer, 400), pointer, F32, (100,))
        with pytest.raises(SanitizerError, match="read-only"):
            launcher_on(device)(Accumulate(n=100), total=total, x=GpuBuffer.zeros(device, F32, (100,)))


def test_warp_order_does_not_change_a_right_kernel() -> None:
    results = []
    for seed in (None, 1, 2):
        with EmulatedDevice(seed=seed) as device:
            y, x = GpuBuffer.empty(device, F32, (1000,)), GpuBuffer.from_numpy(device, np.arange(1000, dtype=np.float32))
            launcher_on(device)(Scale(n=1000), y=y, x=x, factor=0.3, offset=1)
            results.append(y.to_numpy().tobytes())
    assert len(set(results)) == 1
