"""What happens after a fault in a kernel, against a driver made of host memory. On a real GPU: tests/gpu/test_faults_gpu.py."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from executor.base.errors import DeviceError, DeviceFailed
from executor.device import open_device
from executor.device.cuda import CudaDevice
from executor.device.cuda_context import LISTED_LAUNCHES, STICKY
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, LayerOperation, Plan
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.types import F32
from tests.executor.device.fake_driver import FakeDriver, R
from tests.executor.launch.kernels import Accumulate, Scale, together_plan


def scale_plan(device: CudaDevice, name: str = "logits") -> Plan:
    y, x = GpuBuffer.empty(device, F32, (100,), name), GpuBuffer.zeros(device, F32, (100,), "hidden")
    return Launcher(device, Modules(device, limit_bytes=0)).prepare(Scale(n=100), y=y, x=x, factor=1.5, offset=9)


CALLS: dict[str, Callable[[CudaDevice], object]] = {
    "allocating": lambda device: device.alloc(64),
    "uploading": lambda device: device.upload(0, np.zeros(4, np.uint8)),
    "downloading": lambda device: device.download(0, np.zeros(4, np.uint8)),
    "filling memory": lambda device: device.fill(0, 4),
    "copying": lambda device: device.copy(0, 0, 4),
    "loading a kernel": lambda device: device.load("", "e", b""),
    "recording an event": lambda device: device.record(),
    "waiting": lambda device: device.synchronize(),
    "reading memory": lambda device: device.memory(),
}


@pytest.mark.parametrize("doing", CALLS)
def test_every_call_after_a_fault_is_refused_with_the_first_cause(driver: FakeDriver, doing: str) -> None:
    with CudaDevice() as device:
        scale_plan(device)()
        driver.fault(R.CUDA_ERROR_MISALIGNED_ADDRESS)
        with pytest.raises(DeviceFailed) as first:
            device.synchronize()
        with pytest.raises(DeviceFailed, match=f"has failed and refuses {doing}") as later:
            CALLS[doing](device)
    assert first.value.cause == later.value.cause
    assert "CUDA_ERROR_MISALIGNED_ADDRESS" in str(later.value)
    assert "test_scale(n=100) on y = logits f32[100], x = hidden f32[100]" in str(later.value)


@pytest.mark.parametrize("name", sorted(STICKY))
def test_every_sticky_answer_breaks_the_device(driver: FakeDriver, name: str) -> None:
    with CudaDevice() as device:
        driver.fault(getattr(R, name))
        with pytest.raises(DeviceFailed, match=name):
            device.synchronize()
        assert device.failed


def test_a_fault_may_show_in_the_launch_after_the_one_at_fault(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        guilty, innocent = scale_plan(device, "guilty"), scale_plan(device, "innocent")
        guilty()
        driver.fault()
        for _ in range(2):
            with pytest.raises(DeviceFailed, match=r"at fault is the one launch since the last wait: .* on y = guilty"):
                innocent()


def test_launches_that_were_waited_for_are_not_suspected(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        scale_plan(device, "dependent")()
        device.synchronize()
        scale_plan(device, "late")()
        driver.fault()
        with pytest.raises(DeviceFailed) as caught:
            device.synchronize()
    assert "late" in caught.value.cause
    assert "dependent" not in caught.value.cause


@pytest.mark.parametrize("in_a_graph", [False, True])
@pytest.mark.parametrize("waited", [False, True])
def test_a_fault_says_if_blocks_that_wait_for_each_other_may_have_given_up(
    driver: FakeDriver, in_a_graph: bool, waited: bool
) -> None:  # fmt: skip
    with CudaDevice() as device:
        plan = together_plan(device, blocks=2)
        launch = LaunchGraph(device, [plan]).replay if in_a_graph else plan
        launch()
        if waited:
            device.synchronize()
            scale_plan(device)()
        driver.fault(R.CUDA_ERROR_LAUNCH_FAILED)
        with pytest.raises(DeviceFailed) as caught:
            device.synchronize()
    assert ("wait for each other, and give up" in caught.value.cause) == (not waited)


def test_the_message_lists_some_of_many_launches_and_counts_all(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        plan = scale_plan(device)
        for _ in range(LISTED_LAUNCHES + 5):
            plan()
        driver.fault()
        with pytest.raises(DeviceFailed) as caught:
            device.synchronize()
    assert f"one of the {LISTED_LAUNCHES + 5} launches since the last wait" in caught.value.cause
    assert caught.value.cause.count("test_scale(n=100)") == LISTED_LAUNCHES
    assert "and 5 more" in caught.value.cause


def test_a_launch_that_the_driver_refuses_names_itself_and_harms_nothing(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        plan = scale_plan(device)
        driver.failing["cuLaunchKernel"] = R.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        words = r"launching test_scale\(n=100\) on y = logits f32\[100\], .* \(grid \(2, 1, 1\), .*: CUDA_ERROR_LAUNCH_OUT_OF"
        with pytest.raises(DeviceError, match=words) as caught:
            plan()
        assert not isinstance(caught.value, DeviceFailed)
        driver.failing.clear()
        plan()
        device.synchronize()
        assert len(driver.launches) == 1


def test_a_broken_device_takes_memory_and_kernels_back(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        buffer = GpuBuffer.empty(device, F32, (100,))
        kernel = Modules(device, limit_bytes=0).load(Scale(n=100))
        driver.fault()
        with pytest.raises(DeviceFailed):
            device.synchronize()
        buffer.free()
        device.unload(kernel)
        assert not buffer.alive


def test_after_a_fault_the_gpu_can_be_opened_again(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        GpuBuffer.from_numpy(device, np.zeros(1 << 20, np.float32))
        device.record()
        scale_plan(device)()
        driver.fault()
        with pytest.raises(DeviceFailed):
            device.synchronize()
    assert not any(driver.live.values())
    with CudaDevice() as again:
        scale_plan(again)()
        again.synchronize()
        assert GpuBuffer.from_numpy(again, np.arange(4, dtype=np.float32)).to_numpy().tolist() == [0, 1, 2, 3]
    assert driver.contexts == 2
    assert not any(driver.live.values())


def test_where_cuda_keeps_a_fault_until_the_process_ends_that_is_said_with_its_cause(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        scale_plan(device, "guilty")()
        driver.fault()
        with pytest.raises(DeviceFailed) as first:
            device.synchronize()
    driver.failing["cuDevicePrimaryCtxRetain"] = R.CUDA_ERROR_ILLEGAL_ADDRESS
    for spec in ("cuda:0", "auto"):  # "auto" does not go on with the emulator
        with pytest.raises(DeviceFailed, match=r"(?s)until the process ends: restart it; .* on y = guilty") as later:
            open_device(spec)
        assert later.value.cause == first.value.cause


def test_devices_on_one_gpu_fail_together_with_the_cause_of_the_guilty(driver: FakeDriver) -> None:
    with CudaDevice() as guilty, CudaDevice() as other:
        scale_plan(guilty)()
        driver.fault()
        with pytest.raises(DeviceFailed) as first:
            guilty.synchronize()
        with pytest.raises(DeviceFailed, match="has failed and refuses allocating") as second:
            other.alloc(64)
        assert second.value.cause == first.value.cause


def test_a_broken_gpu_is_not_opened_again_before_all_have_closed_it(driver: FakeDriver) -> None:
    with CudaDevice() as first:
        with CudaDevice() as second:
            driver.fault()
            with pytest.raises(DeviceFailed):
                second.synchronize()
        for spec in ("cuda:0", "auto"):
            with pytest.raises(DeviceFailed, match=r"1 that opened it before must be closed .* CUDA_ERROR_ILLEGAL_ADDRESS"):
                open_device(spec)
        first.close()
    with open_device("auto") as again:
        assert again.kind == "cuda"


def test_a_broken_device_that_nobody_holds_does_not_stand_in_the_way(driver: FakeDriver) -> None:
    device = CudaDevice()
    driver.fault()
    with pytest.raises(DeviceFailed):
        device.synchronize()
    del device
    gc.collect()
    with CudaDevice() as again:
        again.free(again.alloc(64))


def test_a_fault_on_one_gpu_leaves_another_alone(driver: FakeDriver) -> None:
    driver.gpus = 2
    with CudaDevice(0) as first, CudaDevice(1) as second:
        driver.fault()
        with pytest.raises(DeviceFailed):
            first.synchronize()
        driver.broken = None  # of GPU 0 alone
        second.free(second.alloc(64))
        with pytest.raises(DeviceFailed):
            first.alloc(64)


def test_closing_one_of_two_devices_on_a_gpu_leaves_the_other_working(driver: FakeDriver) -> None:
    with CudaDevice() as kept:
        with CudaDevice() as other:
            GpuBuffer.zeros(other, F32, (100,))
        plan = scale_plan(kept)
        plan()
        kept.synchronize()
    assert driver.contexts == 1
    assert not any(driver.live.values())


def test_memory_of_a_fault_does_not_stay_in_the_list_of_launches(driver: FakeDriver) -> None:
    """A million launches without a wait must not keep a million plans alive."""
    with CudaDevice() as device:
        launcher = Launcher(device, Modules(device, limit_bytes=0))
        total, x = GpuBuffer.zeros(device, F32, (100,)), GpuBuffer.zeros(device, F32, (100,))
        for _ in range(3000):
            launcher(Accumulate(n=100), total=total, x=x)
        gc.collect()
        assert sum(isinstance(thing, Plan) for thing in gc.get_objects()) <= 1100


def test_events_are_used_again(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        for _ in range(1000):
            start = device.record()
            device.elapsed(start, device.record())
        assert driver.live["event"] <= 3


def graph_of(device: CudaDevice, count: int = 3) -> LaunchGraph:
    y, x = GpuBuffer.empty(device, F32, (100,)), GpuBuffer.zeros(device, F32, (100,))
    launcher = Launcher(device, Modules(device, limit_bytes=0))
    kernel = Scale(n=100)
    return LaunchGraph(
        launcher.device,
        [launcher.prepare(kernel, LayerOperation(i, "scale"), y=y, x=x, factor=2.0, offset=i) for i in range(count)],
    )


def test_a_graph_under_suspicion_says_what_it_is_made_of(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        graph = graph_of(device)
        graph.replay()
        driver.fault()
        words = r"a graph of 3 launches, from layer 0 scale test_scale\(n=100\) to layer 2 scale test_scale\(n=100\)"
        with pytest.raises(DeviceFailed, match=f"the one launch since the last wait: {words}"):
            device.synchronize()
        with pytest.raises(DeviceFailed, match="has failed and refuses"):
            graph.replay()
        graph.close()


def test_a_fault_that_shows_when_a_graph_is_launched_breaks_the_device(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        graph = graph_of(device)
        driver.fault(R.CUDA_ERROR_LAUNCH_FAILED)
        with pytest.raises(DeviceFailed, match=r"launching a graph of 3 launches, .*CUDA_ERROR_LAUNCH_FAILED"):
            graph.replay()
        assert device.failed


def test_graphs_that_nobody_closed_go_with_their_device(driver: FakeDriver) -> None:
    """The context may live on, for another device on the GPU."""
    with CudaDevice():
        with CudaDevice() as device:
            graph_of(device).close()
            graph_of(device)
            assert (driver.live["graph"], driver.live["instance"]) == (1, 1)
        assert (driver.live["graph"], driver.live["instance"]) == (0, 0)
