"""Every kernel of the catalogue that one GPU runs by itself: within tolerance of its reference, and the very bits that the
emulator gives, unless the kernel says that these are not one and the same (KernelType.emulator_bits)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.device import Device
from executor.launch.launch import Launcher
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from tests.gpu.launching import launcher_on
from tests.ptxgen.kernels.catalogue import ALONE
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def launcher(gpu: Device) -> Launcher:
    return launcher_on(gpu)


@pytest.mark.parametrize("kernel", ALONE, ids=str)
def test_gpu_is_right_and_gives_the_bits_of_the_emulator(kernel: KernelType, launcher: Launcher) -> None:
    arguments = inputs(kernel)
    passed = {
        name: GpuBuffer.from_numpy(launcher.device, arguments[name], argument.dtype, name)
        if isinstance(argument, Array)
        else arguments[name]
        for name, argument in kernel.signature().items()
    }
    launcher(kernel, **passed)
    buffers = {name: value for name, value in passed.items() if isinstance(value, GpuBuffer)}
    results = {name: buffer.to_numpy() for name, buffer in buffers.items()}
    for buffer in buffers.values():
        buffer.free()
    assert_matches_reference(kernel, arguments, results)
    emulated, _ = emulate(kernel, arguments, sanitize=False)
    if kernel.emulator_bits:
        assert_same_bits(kernel, results, emulated)
    else:
        assert_matches_reference(kernel, arguments, emulated)
    for name, argument in kernel.signature().items():
        if isinstance(argument, Array) and argument.direction == "in":
            assert np.array_equal(results[name].view(np.uint8), arguments[name].view(np.uint8)), f"{name} was overwritten"


def assert_same_bits(kernel: KernelType, results: Mapping[str, NDArray[Any]], emulated: Mapping[str, NDArray[Any]]) -> None:
    for name, values in emulated.items():
        differ = np.flatnonzero((results[name].view(f"u{values.itemsize}") != values.view(f"u{values.itemsize}")).reshape(-1))
        first = int(differ[0]) if differ.size else 0
        assert not differ.size, (
            f"{kernel}: {differ.size} of {values.size} values of {name} differ, the first at {first}: "
            f"GPU {results[name].reshape(-1)[first]!r}, emulator {values.reshape(-1)[first]!r}"
        )
