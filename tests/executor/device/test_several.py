"""Several devices as one: what each has of its own, what is refused, and the end of all when one fails."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from executor import CudaExecutor
from executor.base.errors import BundleError, DeviceError, DeviceFailed
from executor.device import Device, open_devices
from executor.device.emulated import EmulatedDevice
from executor.device.protocol import ReadOwn, copying
from executor.device.several import FIRST_ADDRESS, SeveralDevices
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from executor.memory.interop import as_buffer
from ptxgen.errors import ArgumentError
from ptxgen.kernels.collective.all_gather import AllGather
from ptxgen.types import F32, U32, U64
from tests.executor.device.fake_driver import FakeDriver, R
from tests.executor.device.late_driver import LateDriver
from tests.executor.launch.kernels import Scale

pytestmark = pytest.mark.usefixtures("shared_kernels")


@pytest.fixture
def three() -> Iterator[SeveralDevices]:
    with SeveralDevices([EmulatedDevice() for _ in range(3)]) as devices:
        yield devices


def of_ranks(devices: SeveralDevices, buffer: GpuBuffer) -> list[list[float]]:
    """What each rank has in an f32 buffer."""
    found = [np.empty(buffer.shape, np.float32) for _ in devices.devices]
    for device, pointer, array in zip(devices.devices, devices.peers(buffer.pointer), found, strict=True):
        device.download(pointer, array)
    return [array.reshape(-1).tolist() for array in found]


def own_numbers(devices: SeveralDevices, *arrays: Sequence[float]) -> GpuBuffer:
    """An array of each rank's."""
    buffer = GpuBuffer.empty(devices, F32, (len(arrays[0]),))
    parts = [np.array(array, np.float32) for array in arrays]
    devices.upload_from(buffer.pointer, buffer.nbytes, ReadOwn(lambda rank: copying(parts[rank])))
    return buffer


def gather_plan(devices: Device, x: GpuBuffer) -> Plan:
    """Of slices of two values."""
    ranks = devices.ranks
    y = GpuBuffer.zeros(devices, F32, (1, 2 * ranks))
    kernel = AllGather(n=2 * ranks, ranks=ranks)
    flags = GpuBuffer.zeros(devices, U32, (kernel.blocks, ranks))
    tables = {
        name: GpuBuffer.from_numpy(devices, np.array(devices.peers(buffer.pointer), np.uint64), U64)
        for name, buffer in (("ys", y), ("peers", flags))
    }
    return Launcher(devices, Modules(devices)).prepare(kernel, y=y, x=x.view(0, (1, 2)), flags=flags, **tables, rank=0)


def test_every_rank_has_memory_of_its_own_behind_one_address(three: SeveralDevices) -> None:
    buffer = own_numbers(three, [1, 2], [3, 4], [5, 6])
    assert buffer.pointer >= FIRST_ADDRESS
    assert len(set(three.peers(buffer.pointer))) == 3
    assert of_ranks(three, buffer) == [[1, 2], [3, 4], [5, 6]]
    assert buffer.to_numpy().tolist() == [1, 2]
    copy = GpuBuffer.zeros(three, F32, (2,))
    assert of_ranks(three, copy) == [[0, 0]] * 3
    three.copy(copy.pointer + 4, buffer.pointer, 4)
    assert of_ranks(three, copy) == [[0, 1], [0, 3], [0, 5]]
    copy.upload(np.array([7, 8], np.float32))
    assert of_ranks(three, copy) == [[7, 8]] * 3
    with pytest.raises(DeviceError, match="no live allocation holds"):
        three.copy(copy.pointer, buffer.pointer + 4, 8)


def test_memory_goes_back_on_all_of_them(three: SeveralDevices) -> None:
    buffer = GpuBuffer.empty(three, F32, (64,))
    assert [device.memory().allocated for device in three.devices] == [256] * 3
    buffer.free()
    assert [device.memory().allocated for device in three.devices] == [0] * 3


def test_what_one_has_no_room_for_none_has(three: SeveralDevices, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(nbytes: int, name: str = "") -> int:
        raise three.devices[2].no_room(nbytes, name)

    monkeypatch.setattr(three.devices[2], "alloc", full)
    with pytest.raises(DeviceError, match="no room for 256 bytes"):
        GpuBuffer.empty(three, F32, (64,))
    assert not any(device.memory().allocated for device in three.devices)
    assert not three.cause


def test_a_kernel_runs_on_each_with_its_own_memory(three: SeveralDevices) -> None:
    x, y = own_numbers(three, [1], [2], [3]), GpuBuffer.zeros(three, F32, (1,))
    plan = Launcher(three, Modules(three)).prepare(Scale(n=1), y=y, x=x, factor=2.0, offset=1)
    plan()
    assert of_ranks(three, y) == [[3], [5], [7]]
    plan(factor=3.0)
    assert of_ranks(three, y) == [[4], [7], [10]]
    graph = LaunchGraph(three, [plan])
    y.fill(0)
    graph.replay()
    assert of_ranks(three, y) == [[4], [7], [10]]
    graph.close()


def test_a_gather_is_one_launch_of_all(three: SeveralDevices) -> None:
    plan = gather_plan(three, own_numbers(three, [1, 2], [3, 4], [5, 6]))
    y = plan.arguments["y"]
    for launch in (plan, LaunchGraph(three, [plan]).replay):
        y.fill(0)
        launch()
        assert of_ranks(three, y) == [[1, 2, 3, 4, 5, 6]] * 3


def test_they_belong_to_one_thread(three: SeveralDevices) -> None:
    seen: list[object] = []

    def use() -> None:
        try:
            GpuBuffer.zeros(three, F32, (1,))
        except DeviceError as error:
            seen.append(str(error))
        three.owner.take_over()
        seen.append(GpuBuffer.zeros(three, F32, (1,)).to_numpy().tolist())

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "3 devices" in str(seen[0])
    assert "belongs to thread" in str(seen[0])
    assert seen[1] == [0]
    three.owner.take_over()


def test_a_fault_of_one_is_the_end_of_all(three: SeveralDevices, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = GpuBuffer.zeros(three, F32, (1,)), GpuBuffer.zeros(three, F32, (1,))
    plan = Launcher(three, Modules(three)).prepare(Scale(n=1), y=y, x=x, factor=2.0, offset=1)
    monkeypatch.setattr(three.devices[1], "launch", lambda *_: 1 // 0)
    with pytest.raises(DeviceFailed) as failed:
        plan()
    assert str(failed.value).startswith(f"launching {plan} failed on {three.name}: rank 1 (emulator (sm_90)): integer division")
    assert "; rank 2 (emulator (sm_90)): has ended all that it was given\nall that was on them is lost" in str(failed.value)
    monkeypatch.undo()
    for use in (plan, y.to_numpy, three.synchronize, lambda: GpuBuffer.zeros(three, F32, (1,))):
        with pytest.raises(DeviceFailed, match=r"3 devices .* have failed and refuse \w+.*; rank 1 .* integer division"):
            use()
    y.free()


def test_what_another_library_has_is_on_one_device(three: SeveralDevices) -> None:
    buffer = GpuBuffer.zeros(three, F32, (1,))
    with pytest.raises(DeviceError, match="have no arrays for other libraries; that takes an executor on one device"):
        buffer.__dlpack__()
    with pytest.raises(DeviceError, match="have no writes of other libraries"):
        buffer.touch()
    with pytest.raises(ArgumentError, match=r"x \(numpy.ndarray\) is in one memory, and 3 devices .* have one each"):
        as_buffer(three, np.zeros(1, np.float32), name="x")


def test_devices_are_named_one_by_one() -> None:
    for names, said in (
        ([], r"devices is \[\]; allowed: a list of 1 to 8"),
        (["emulator"] * 9, "allowed: a list of 1 to 8"),
        ("emulator", "devices is 'emulator'; allowed: a list"),
        (["emulator", "auto"], "devices names auto; name each of several"),
        (["cuda:1", "cuda:0", "cuda"], "devices names cuda:0 twice; each rank needs a GPU of its own"),
    ):
        with pytest.raises(ArgumentError, match=said):
            open_devices(names)
    with open_devices(["emulator"]) as device:
        assert isinstance(device, EmulatedDevice)


def test_what_is_for_one_device_is_refused_for_several() -> None:
    for given in ({"device": "emulator"}, {"stream": 0}, {"bundle": "folder"}):
        with pytest.raises((ArgumentError, BundleError)):
            CudaExecutor(devices=["emulator", "emulator"], **given)


def test_gpus_reach_each_other_or_are_refused(driver: FakeDriver) -> None:
    driver.gpus = 2
    with open_devices(["cuda:0", "cuda:1"]) as devices:
        assert isinstance(devices, SeveralDevices)
        assert driver.reached == [("context 0", "context 1"), ("context 1", "context 0")]
        x, y = GpuBuffer.zeros(devices, F32, (1,)), GpuBuffer.zeros(devices, F32, (1,))
        Launcher(devices, Modules(devices))(Scale(n=1), y=y, x=x, factor=2.0, offset=1)
        assert len(driver.launches) == 2
    assert not any(driver.live.values())
    driver.apart = {(1, 0)}
    with pytest.raises(DeviceError, match="no peer access between"):
        open_devices(["cuda:0", "cuda:1"])
    assert not any(driver.live.values())


def test_what_is_filled_is_so_on_all_before_any_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateDriver(seed=1, late=0.02)
    late.gpus = 2
    monkeypatch.setattr("executor.device.cuda.driver", lambda: late)
    with open_devices(["cuda:0", "cuda:1"]) as devices:
        flags = GpuBuffer.empty(devices, U32, (64,))
        for byte in (7, 0):
            flags.fill(byte)
            for pointer in devices.peers(flags.pointer):
                assert ctypes.string_at(pointer, flags.nbytes) == bytes([byte]) * flags.nbytes


def test_graphs_that_wait_for_each_other_are_on_their_gpus_before_they_are_launched(driver: FakeDriver) -> None:
    driver.gpus = 2
    with open_devices(["cuda:0", "cuda:1"]) as devices:
        graph = LaunchGraph(devices, [gather_plan(devices, GpuBuffer.zeros(devices, F32, (2,)))])
        assert driver.uploaded == ["context 0", "context 1"]
        x = GpuBuffer.zeros(devices, F32, (1,))
        y = GpuBuffer.zeros(devices, F32, (1,))
        alone = Launcher(devices, Modules(devices)).prepare(Scale(n=1), y=y, x=x, factor=2.0, offset=1)
        LaunchGraph(devices, [alone]).close()
        assert len(driver.uploaded) == 2
        graph.close()


def test_a_gpu_that_fails_is_named(driver: FakeDriver) -> None:
    driver.gpus = 2
    with open_devices(["cuda:0", "cuda:1"]) as devices:
        driver.failing["cuStreamSynchronize"] = R.CUDA_ERROR_ILLEGAL_ADDRESS
        with pytest.raises(DeviceFailed, match=r"rank 0 .*ILLEGAL_ADDRESS.*; rank 1 .*ILLEGAL_ADDRESS"):
            devices.synchronize()
        driver.failing.clear()
        with pytest.raises(DeviceFailed, match="have failed and refuse allocating"):
            GpuBuffer.zeros(devices, F32, (1,))


def test_unlike_devices_are_refused(driver: FakeDriver) -> None:
    with pytest.raises(ArgumentError, match="another kind of device than"):
        open_devices(["cuda:0", "emulator"])
    assert not any(driver.live.values())
