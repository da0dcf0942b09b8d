"""Memory, graphs and kernels that nobody has any more go back to the device, on whatever thread the last reference went."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from executor import CudaExecutor, GpuBuffer
from executor.base.errors import DeviceFailed, OutOfMemory
from executor.device import Device
from executor.device.cuda import CudaDevice
from executor.device.emulated import EmulatedDevice
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.layers.calls import Recorder
from executor.layers.graph.values import StepValue
from executor.layers.sequence import LayerSequence
from executor.memory.buffers import free_on_error
from executor.memory.workspace import Workspace
from executor.model.generation import LanguageModel
from ptxgen.types import F32
from tests.executor.device.fake_driver import FakeDriver
from tests.executor.launch.kernels import Accumulate
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")


@pytest.fixture(params=["emulator", "cuda"])
def device(request: pytest.FixtureRequest, driver: FakeDriver) -> Iterator[Device]:
    with EmulatedDevice() if request.param == "emulator" else CudaDevice() as made:
        yield made


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What goes in the test goes with its last reference, not when the garbage collector finds a cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_buffer_that_nobody_has_is_freed(device: Device) -> None:
    for _ in range(5):
        GpuBuffer.empty(device, F32, (1000,))
    assert device.memory().allocated == 0


def test_a_view_keeps_the_memory(device: Device) -> None:
    view = GpuBuffer.empty(device, F32, (1000,)).view(400, (10,))
    assert device.memory().allocated == 4000
    del view
    assert device.memory().allocated == 0


def test_what_was_freed_by_hand_is_not_freed_again(device: Device) -> None:
    buffer = GpuBuffer.empty(device, F32, (1000,))
    pointer = buffer.pointer
    buffer.free()
    kept = [GpuBuffer.empty(device, F32, (1000,)) for _ in range(20)]  # one of them may lie where the freed one lay
    del buffer
    gc.collect()
    assert device.memory().allocated == 20 * 4000
    assert all(one.alive for one in kept), pointer


def test_a_drop_that_comes_late_frees_nobody_elses_memory(device: Device) -> None:
    """The loading that fails frees at once; the buffers of it go when its exception does."""
    held: list[GpuBuffer] = []

    def load() -> None:
        with free_on_error(device):
            held.append(GpuBuffer.empty(device, F32, (1000,)))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        load()
    assert device.memory().allocated == 0
    later = [GpuBuffer.empty(device, F32, (1000,)) for _ in range(20)]
    held.clear()
    gc.collect()
    assert device.memory().allocated == 20 * 4000
    assert all(device.allocations.ticket(one.pointer) for one in later)


def test_it_may_go_on_any_thread_in_the_middle_of_anything(device: Device) -> None:
    buffers = [GpuBuffer.empty(device, F32, (100,)) for _ in range(50)]
    thread = threading.Thread(target=buffers.clear)
    thread.start()
    thread.join()
    assert device.memory().allocated == 0


def test_it_may_go_after_its_device(device: Device) -> None:
    buffer = GpuBuffer.empty(device, F32, (100,))
    device.close()
    del buffer
    gc.collect()


def test_a_plan_keeps_what_it_launches_on(emulator: Device) -> None:
    total = GpuBuffer.zeros(emulator, F32, (100,))
    plan = Launcher(emulator, Modules(emulator)).prepare(
        Accumulate(n=100), total=total, x=GpuBuffer.from_numpy(emulator, np.ones(100, np.float32))
    )
    junk = GpuBuffer.from_numpy(emulator, np.full(100, 9, np.float32))
    plan()
    assert total.to_numpy().tolist() == [1] * 100
    assert junk.alive


def test_an_array_keeps_the_memory_of_a_dropped_buffer(emulator: Device) -> None:
    array = np.from_dlpack(GpuBuffer.from_numpy(emulator, np.arange(1000, dtype=np.float32)))  # type: ignore[arg-type]
    assert emulator.memory().allocated == 0
    junk = [GpuBuffer.from_numpy(emulator, np.zeros(1000, np.float32)) for _ in range(20)]
    np.testing.assert_array_equal(array, np.arange(1000))
    assert len(junk) == 20


def test_a_result_that_is_dropped_frees_its_memory_and_loses_nobodys() -> None:
    with CudaExecutor("emulator") as executor:
        raw = np.random.default_rng(0).integers(0, 64, (256, 144), np.uint8)
        executor.load_weight("w", raw, "Q4_K", (256, 256))
        x = executor.buffer(np.ones(256, np.float32))
        kept = executor.q4k_gemv_cached_async("w", x, 256, 256)
        expected, taken = kept.to_numpy(), executor.device.memory().allocated
        for _ in range(30):
            executor.q4k_gemv_cached_async("w", x, 256, 256)
        assert executor.device.memory().allocated == taken
        np.testing.assert_array_equal(kept.to_numpy(), expected)


def test_launches_that_nobody_waited_for_do_not_make_memory_run_out(driver: FakeDriver) -> None:
    driver.free_bytes = driver.total_bytes = 2_000
    with CudaDevice() as device:
        launcher = Launcher(device, Modules(device))
        x = GpuBuffer.empty(device, F32, (100,))
        for _ in range(100):
            launcher(Accumulate(n=100), total=GpuBuffer.empty(device, F32, (100,)), x=x)


def drop_a_device() -> None:
    """With memory, in a cycle as devices always are."""
    device = CudaDevice()
    buffer = GpuBuffer.from_numpy(device, np.zeros(400, np.float32))
    assert buffer.to_numpy().size == 400
    del device, buffer
    gc.collect()


def test_a_gpu_that_nobody_closed_is_closed_when_the_next_is_opened(driver: FakeDriver) -> None:
    drop_a_device()
    assert driver.live["memory"] == driver.live["context"] == 1
    with CudaDevice():
        assert driver.live["context"] == driver.live["stream"] == 1
        assert driver.live["memory"] == driver.live["pinned"] == 0
    assert not +driver.live


def test_a_gpu_that_nobody_closed_is_closed_when_another_allocates_on_whatever_thread(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        thread = threading.Thread(target=drop_a_device)
        thread.start()
        thread.join()
        kept = GpuBuffer.zeros(device, F32, (100,))
        assert (driver.live["memory"], driver.live["context"]) == (1, 1)
        assert not kept.to_numpy().any()
    assert not +driver.live


def test_a_full_gpu_takes_back_what_only_the_collector_has(driver: FakeDriver, no_collector: None) -> None:
    driver.free_bytes = driver.total_bytes = 2_000
    CudaDevice().alloc(1_600)
    with CudaDevice() as device:
        cycle: list[object] = [GpuBuffer.empty(device, F32, (100,))]
        cycle.append(cycle)
        del cycle
        assert GpuBuffer.empty(device, F32, (500,)).nbytes == driver.total_bytes
        held = GpuBuffer.empty(device, F32, (300,))
        with pytest.raises(OutOfMemory):
            GpuBuffer.empty(device, F32, (300,))
        assert held.alive


def test_a_broken_gpu_that_nobody_closed_can_be_opened_again(driver: FakeDriver) -> None:
    def fault() -> None:
        device = CudaDevice()
        driver.fault()
        with pytest.raises(DeviceFailed):
            device.synchronize()

    fault()
    gc.collect()
    with CudaDevice() as device:
        assert GpuBuffer.zeros(device, F32, (100,)).alive
    assert not +driver.live


ENDS = """
import numpy as np
from executor import CudaExecutor
executor = CudaExecutor("emulator")
x = executor.zeros(4)
part, array, cycle = x.view(0, (2,)), np.from_dlpack(x), [x]
cycle.append(cycle)
"""


def test_a_process_may_end_with_whatever_it_has() -> None:
    ended = subprocess.run([sys.executable, "-X", "dev", "-c", ENDS], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_graph_that_nobody_has_is_given_back(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        launcher = Launcher(device, Modules(device))
        x, total = (GpuBuffer.empty(device, F32, (100,)) for _ in range(2))
        for _ in range(3):
            LaunchGraph(launcher.device, [launcher.prepare(Accumulate(n=100), total=total, x=x)])
        device.synchronize()
        assert driver.live["graph"] == driver.live["instance"] == 0


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("shared", [True, False])
def test_a_model_that_nobody_closed_gives_all_back(shared: bool, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types=Q.Q4_K, layers=1, hidden=256, heads=4, ff=256, context=16)
    with EmulatedDevice() as device:
        modules = Modules(device) if shared else None
        for _ in range(2):
            model = LanguageModel.load(path, device, modules=modules)
            model.logits([1, 2])
            assert device.memory().allocated > 0
            del model
            assert device.memory().allocated == 0


@pytest.mark.usefixtures("no_collector")
def test_a_sequence_that_nobody_has_gives_all_back_at_once(device: Device) -> None:
    sequence = LayerSequence(device, Workspace(device), layers=1, heads=1, kv_heads=1, head_dim=32, max_len=4)
    assert device.memory().allocated > 0
    del sequence
    assert device.memory().allocated == 0


@pytest.mark.usefixtures("no_collector")
def test_a_recorder_that_nobody_has_gives_its_workspace_back_at_once(device: Device) -> None:
    workspace = Workspace(device)
    recorder = Recorder(workspace)
    recorder.source("attn_q", StepValue.of(workspace.buffer("x", (256,))), 1)
    assert device.memory().allocated > 0
    del workspace, recorder
    assert device.memory().allocated == 0
