"""Every way to call a kernel wrongly is refused before anything is launched, and says what was wrong."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from executor.base.errors import LaunchError
from executor.launch.launch import Launcher, LaunchRecord
from executor.memory.buffers import DeviceAllocation, GpuBuffer
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.types import F32, U8, U32
from tests.executor.launch.fake import NoModules, RememberingDevice
from tests.executor.launch.kernels import Accumulate, Scale

KERNEL = Scale(n=100)


@pytest.fixture
def device() -> Iterator[RememberingDevice]:
    with RememberingDevice() as device:
        yield device


@pytest.fixture
def launcher(device: RememberingDevice) -> Launcher:
    return Launcher(device, NoModules())


@pytest.fixture
def good(device: RememberingDevice) -> dict[str, Any]:
    """Arguments that fit KERNEL."""
    return {
        "y": GpuBuffer.empty(device, F32, (100,), "out"),
        "x": GpuBuffer.zeros(device, F32, (100,), "input"),
        "factor": 2.5,
        "offset": 7,
    }


def refused(launcher: Launcher, kernel: Scale, arguments: dict[str, Any]) -> str:
    """The message of the LaunchError, after making sure that nothing was launched."""
    with pytest.raises(LaunchError) as caught:
        launcher(kernel, **arguments)
    assert isinstance(launcher.device, RememberingDevice)
    assert launcher.device.launches == []
    return str(caught.value)


def test_a_launch_passes_geometry_and_packed_arguments_in_signature_order(launcher: Launcher, good: dict[str, Any]) -> None:
    launcher(KERNEL, **dict(reversed(good.items())))
    assert isinstance(launcher.device, RememberingDevice)
    packed = struct.pack("<QQfI", good["y"].pointer, good["x"].pointer, 2.5, 7)
    assert launcher.device.launches == [("test_scale", (2, 1, 1), (64, 1, 1), packed)]


def test_a_launch_raises_the_version_of_what_it_writes_only(launcher: Launcher, good: dict[str, Any]) -> None:
    before = good["x"].version
    view = good["y"].view(0, (50,))
    launcher(KERNEL, **good)
    assert (good["y"].version, view.version, good["x"].version) == (1, 1, before)


def test_an_unknown_argument_names_the_nearest(launcher: Launcher, good: dict[str, Any]) -> None:
    good["facter"] = good.pop("factor")
    assert "no argument facter; did you mean factor?" in refused(launcher, KERNEL, good)


def test_missing_arguments_are_all_named(launcher: Launcher, good: dict[str, Any]) -> None:
    del good["x"], good["offset"]
    assert "needs x (f32[100]), offset (u32)" in refused(launcher, KERNEL, good)


def test_a_wrong_shape_is_named_with_the_right_one(launcher: Launcher, device: RememberingDevice, good: dict[str, Any]) -> None:
    good["x"] = GpuBuffer.zeros(device, F32, (10, 10))
    assert "test_scale(n=100): argument x is f32[10, 10]; must be f32[100]" in refused(launcher, KERNEL, good)


def test_a_wrong_dtype_is_refused(launcher: Launcher, device: RememberingDevice, good: dict[str, Any]) -> None:
    good["x"] = GpuBuffer.zeros(device, U32, (100,))
    assert "argument x is u32[100]; must be f32[100]" in refused(launcher, KERNEL, good)


def test_a_host_array_is_refused_with_advice(launcher: Launcher, good: dict[str, Any]) -> None:
    good["x"] = np.zeros(100, np.float32)
    assert "argument x is a ndarray; must be a GpuBuffer f32[100]" in refused(launcher, KERNEL, good)


def test_a_buffer_of_another_device_is_refused(launcher: Launcher, good: dict[str, Any]) -> None:
    with RememberingDevice() as other:
        good["x"] = GpuBuffer.zeros(other, F32, (100,))
        assert "argument x is another executor's, on emulator" in refused(launcher, KERNEL, good)


def test_a_freed_buffer_is_refused(launcher: Launcher, good: dict[str, Any]) -> None:
    good["x"].free()
    assert "argument x (input f32[100]) was freed" in refused(launcher, KERNEL, good)


def test_a_null_pointer_is_refused(launcher: Launcher, device: RememberingDevice, good: dict[str, Any]) -> None:
    good["x"] = GpuBuffer(DeviceAllocation(device, 0, 400), 0, F32, (100,))
    assert "argument x is a null pointer" in refused(launcher, KERNEL, good)


def test_memory_that_ends_too_early_is_refused(launcher: Launcher, device: RememberingDevice, good: dict[str, Any]) -> None:
    good["x"] = GpuBuffer(DeviceAllocation(device, 4096, 399), 4096, F32, (100,))
    assert "argument x needs 400 bytes, but its memory ends after 399" in refused(launcher, KERNEL, good)


def test_a_misaligned_view_is_refused(launcher: Launcher, device: RememberingDevice, good: dict[str, Any]) -> None:
    good["x"] = GpuBuffer.zeros(device, U8, (408,)).view(4, (100,), F32)
    assert "must be on a 16-byte boundary" in refused(launcher, KERNEL, good)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("offset", -1, "-1; must be from 0 to 1000"),
        ("offset", 1001, "1001; must be from 0 to 1000"),
        ("offset", 1.0, "a float; must be an integer"),
        ("offset", True, "a bool; must be an integer"),
        ("offset", None, "a NoneType; must be an integer"),
        ("factor", math.nan, "NaN"),
        ("factor", "2", "a str; must be a number"),
        ("factor", 1e39, "1e+39, which f32 cannot hold"),
        ("factor", 10**400, "which f32 cannot hold"),
    ],
)
def test_a_scalar_that_does_not_fit_is_refused(
    launcher: Launcher, good: dict[str, Any], name: str, value: Any, reason: str
) -> None:
    message = refused(launcher, KERNEL, {**good, name: value})
    assert f"argument {name}" in message
    assert reason in message


def test_a_buffer_for_a_scalar_is_refused(launcher: Launcher, good: dict[str, Any]) -> None:
    assert "argument factor (f32) is the buffer" in refused(launcher, KERNEL, {**good, "factor": good["x"]})


def test_numpy_scalars_are_numbers(launcher: Launcher, good: dict[str, Any]) -> None:
    launcher(KERNEL, **{**good, "factor": np.float32(0.1), "offset": np.uint32(5)})
    assert isinstance(launcher.device, RememberingDevice)
    assert launcher.device.launches[0][3][16:] == struct.pack("<fI", 0.1, 5)


def test_an_output_that_is_an_input_too_is_refused(launcher: Launcher, good: dict[str, Any]) -> None:
    good["x"] = good["y"]
    assert "overlap in memory; y is written" in refused(launcher, KERNEL, good)


def test_an_output_that_overlaps_an_input_by_one_element_is_refused(
    launcher: Launcher, device: RememberingDevice, good: dict[str, Any]
) -> None:
    whole = GpuBuffer.zeros(device, U8, (800,))
    good["y"], good["x"] = whole.view(400, (100,), F32), whole.view(16, (100,), F32)
    assert "arguments x (in) and y (out) overlap" in refused(launcher, KERNEL, good)


def test_neighbours_in_one_allocation_do_not_overlap(
    launcher: Launcher, device: RememberingDevice, good: dict[str, Any]
) -> None:
    whole = GpuBuffer.zeros(device, U8, (800,))
    launcher(KERNEL, **{**good, "y": whole.view(400, (100,), F32), "x": whole.view(0, (100,), F32)})


def test_inputs_may_share_memory_but_an_updated_argument_may_not(launcher: Launcher, good: dict[str, Any]) -> None:
    message = refused(launcher, Accumulate(n=100), {"total": good["x"], "x": good["x"]})
    assert "total (inout)" in message


def test_a_grid_beyond_the_limit_is_refused(launcher: Launcher, good: dict[str, Any]) -> None:
    @dataclass(frozen=True)
    class Tall(Scale):
        def launch(self) -> LaunchConfig:
            return LaunchConfig(grid=(1, 65536), block=64)

    @dataclass(frozen=True)
    class Crowded(Scale):
        def launch(self) -> LaunchConfig:
            return LaunchConfig(grid=1, block=(64, 32))

    assert "grid (1, 65536, 1) is out of range" in refused(launcher, Tall(n=100), good)
    assert "2048 threads; at most 1024" in refused(launcher, Crowded(n=100), good)


def test_a_plan_takes_new_scalars_and_keeps_them(launcher: Launcher, good: dict[str, Any]) -> None:
    plan = launcher.prepare(KERNEL, **good)
    plan()
    plan(offset=9)
    plan()
    assert isinstance(launcher.device, RememberingDevice)
    assert [struct.unpack("<I", packed[20:])[0] for *_, packed in launcher.device.launches] == [7, 9, 9]


@pytest.mark.parametrize(
    ("scalars", "reason"),
    [
        ({"offset": 5000}, "must be from 0 to 1000"),
        ({"x": 5}, "x is not a scalar of this kernel"),
        ({"positon": 5}, "its scalars: factor, offset"),
        ({"factor": 1.0, "offset": -1}, "must be from 0"),
    ],
)
def test_a_plan_checks_new_scalars_and_changes_none_if_one_is_wrong(
    launcher: Launcher, good: dict[str, Any], scalars: dict[str, Any], reason: str
) -> None:
    plan = launcher.prepare(KERNEL, **good)
    with pytest.raises(LaunchError, match=reason):
        plan(**scalars)
    plan()
    assert isinstance(launcher.device, RememberingDevice)
    assert [packed[16:] for *_, packed in launcher.device.launches] == [struct.pack("<fI", 2.5, 7)]


def test_a_plan_notices_that_a_buffer_was_freed(launcher: Launcher, device: RememberingDevice, good: dict[str, Any]) -> None:
    plan = launcher.prepare(KERNEL, **good)
    GpuBuffer.empty(device, F32, (4,)).free()
    plan()
    good["y"].free()
    with pytest.raises(LaunchError, match=r"argument y .* was freed"):
        plan()


def test_observers_see_each_launch_with_its_scalars(launcher: Launcher, good: dict[str, Any]) -> None:
    seen: list[LaunchRecord] = []
    launcher.observers.append(seen.append)
    plan = launcher.prepare(KERNEL, **good)
    plan()
    plan(offset=8)
    assert [record.arguments["offset"] for record in seen] == [7, 8]
    assert (seen[0].kernel, seen[0].grid, seen[0].arguments["x"]) == (KERNEL, (2, 1, 1), good["x"])


def test_launching_a_plan_again_takes_microseconds(launcher: Launcher, good: dict[str, Any]) -> None:
    plan = launcher.prepare(KERNEL, **good)
    plan()
    best = math.inf
    for _ in range(20):
        start = time.process_time()
        for offset in range(100):
            plan(offset=offset)
        best = min(best, (time.process_time() - start) / 100)
    assert best < 30e-6  # about 3 us on an idle machine; the budget of a launch is 15
