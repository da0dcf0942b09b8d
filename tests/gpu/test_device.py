"""What every device must do, on the emulator and on a GPU; then what only a GPU does."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest

from executor.base.errors import DeviceError
from executor.device import Device, open_device
from executor.device.emulated import EmulatedDevice
from executor.device.parameters import ParameterBlock
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.toolchain.module import emit
from ptxgen.types import F32
from tests.executor.launch.kernels import Accumulate, Scale, Turned
from tests.gpu.launching import launcher_on

BOTH = ["emulator", pytest.param("cuda:0", marks=pytest.mark.gpu)]
GPU = [pytest.param("cuda:0", marks=pytest.mark.gpu)]
MIB = 1 << 20


@pytest.mark.parametrize("device", BOTH, indirect=True)
@pytest.mark.parametrize("nbytes", [1, 1000, 16 * MIB, 40 * MIB + 12345])
def test_what_was_uploaded_comes_back_and_progress_adds_up(device: Device, nbytes: int) -> None:
    array = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    expected = array.copy()
    copied: list[int] = []
    pointer = device.alloc(nbytes)
    device.upload(pointer, array, copied.append)
    array[:] = 0
    back = np.empty(nbytes, np.uint8)
    device.download(pointer, back)
    np.testing.assert_array_equal(back, expected)
    assert sum(copied) == nbytes


@pytest.mark.parametrize("device", BOTH, indirect=True)
@pytest.mark.parametrize("nbytes", [1, 1000, 16 * MIB, 40 * MIB + 12345])
def test_what_is_read_piece_by_piece_comes_back_and_progress_adds_up(device: Device, nbytes: int) -> None:
    array = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    copied: list[int] = []
    pointer = device.alloc(nbytes)
    device.upload_from(pointer, nbytes, lambda start, into: np.copyto(into, array[start : start + into.size]), copied.append)
    back = np.empty(nbytes, np.uint8)
    device.download(pointer, back)
    np.testing.assert_array_equal(back, array)
    assert sum(copied) == nbytes


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_a_large_upload_may_follow_another_at_once(device: Device) -> None:
    arrays = [np.full(20 * MIB, value, np.uint8) for value in (1, 2, 3)]
    pointers = [device.alloc(20 * MIB) for _ in arrays]
    for pointer, array in zip(pointers, arrays, strict=True):
        device.upload(pointer, array)
    for pointer, array in zip(pointers, arrays, strict=True):
        back = np.empty_like(array)
        device.download(pointer, back)
        np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_fill_and_copy_happen_in_order(device: Device) -> None:
    a, b = device.alloc(16), device.alloc(16)
    device.fill(a, 16, 7)
    device.fill(b, 16, 1)
    device.copy(b + 4, a, 8)
    back = np.empty(16, np.uint8)
    device.download(b, back)
    assert back.tolist() == [1] * 4 + [7] * 8 + [1] * 4


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_pointers_that_are_not_live_are_refused(device: Device) -> None:
    pointer = device.alloc(64)
    with pytest.raises(DeviceError, match="no live allocation holds"):
        device.upload(pointer + 1, np.zeros(64, np.uint8))
    device.free(pointer)
    with pytest.raises(DeviceError, match="not allocated"):
        device.free(pointer)
    with pytest.raises(DeviceError, match="no live allocation holds"):
        device.download(pointer, np.zeros(64, np.uint8))


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_a_size_that_no_machine_has_is_refused_and_the_device_lives(device: Device) -> None:
    with pytest.raises(DeviceError, match="no room"):
        device.alloc(1 << 50)
    device.free(device.alloc(64))


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_allocations_are_aligned_and_counted(device: Device) -> None:
    before = device.memory().allocated
    pointers = [device.alloc(size) for size in (1, 300, 1000)]
    assert all(pointer % 256 == 0 for pointer in pointers)
    assert device.memory().allocated - before == 1301
    assert 0 < device.memory().free <= device.memory().total


@pytest.mark.parametrize("device", BOTH, indirect=True)
@pytest.mark.parametrize("n", [1, 100, 100_003])
def test_a_kernel_has_the_same_bits_as_on_the_emulator(device: Device, n: int) -> None:
    kernel = Scale(n=n)
    x = np.random.default_rng(n).normal(size=n).astype(np.float32)

    def result(on: Device) -> bytes:
        y = GpuBuffer.empty(on, F32, (n,))
        launcher_on(on)(kernel, y=y, x=GpuBuffer.from_numpy(on, x), factor=1 / 3, offset=7)
        return y.to_numpy().tobytes()

    with EmulatedDevice() as emulator:
        assert result(device) == result(emulator)


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_a_plan_sees_uploads_and_new_scalars_in_order(device: Device) -> None:
    y, x = GpuBuffer.zeros(device, F32, (100,)), GpuBuffer.zeros(device, F32, (100,))
    plan = launcher_on(device).prepare(Scale(n=100), y=y, x=x, factor=2.0, offset=0)
    for turn in range(5):
        x.upload(np.full(100, turn, np.float32))
        plan(offset=turn * 10)
        np.testing.assert_array_equal(y.to_numpy(), np.full(100, 12 * turn, np.float32))


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_many_launches_run_in_order(device: Device) -> None:
    total, x = GpuBuffer.zeros(device, F32, (100,)), GpuBuffer.from_numpy(device, np.ones(100, np.float32))
    plan = launcher_on(device).prepare(Accumulate(n=100), total=total, x=x)
    start = device.record()
    for _ in range(1000):
        plan()
    seconds = device.elapsed(start, device.record())
    np.testing.assert_array_equal(total.to_numpy(), np.full(100, 1000, np.float32))
    assert 0 < seconds < 10


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_memory_that_is_dropped_while_work_runs_on_it_is_not_given_to_others_before_its_end(device: Device) -> None:
    n = 1 << 20
    launcher, total = launcher_on(device), GpuBuffer.zeros(device, F32, (n,))
    for _ in range(30):
        launcher(Accumulate(n=n), total=total, x=GpuBuffer.from_numpy(device, np.ones(n, np.float32)))
        GpuBuffer.empty(device, F32, (n,)).fill(0x7F)  # may lie where the dropped one lay
    np.testing.assert_array_equal(total.to_numpy(), np.full(n, 30, np.float32))
    assert device.memory().allocated == total.nbytes


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_another_thread_that_takes_over_may_launch(device: Device) -> None:
    total, x = GpuBuffer.zeros(device, F32, (100,)), GpuBuffer.from_numpy(device, np.ones(100, np.float32))
    plan = launcher_on(device).prepare(Accumulate(n=100), total=total, x=x)

    def work() -> None:
        device.owner.take_over()
        plan()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    device.owner.take_over()
    assert total.to_numpy()[0] == 1


@pytest.mark.parametrize("spec", BOTH)
def test_closing_one_device_object_leaves_another_alone(spec: str) -> None:
    with open_device(spec) as kept:
        y, x = GpuBuffer.empty(kept, F32, (100,)), GpuBuffer.zeros(kept, F32, (100,))
        plan = launcher_on(kept).prepare(Scale(n=100), y=y, x=x, factor=2.0, offset=3)
        with open_device(spec) as other:
            GpuBuffer.zeros(other, F32, (100,))
        plan()
        assert y.to_numpy()[0] == 3
    with pytest.raises(DeviceError, match="closed"):
        kept.alloc(1)


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_it_describes_itself(device: Device) -> None:
    facts = device.describe()
    assert facts["kind"] == device.kind
    assert facts["name"] == device.name
    assert facts["memory_bytes"] == device.memory().total


@pytest.mark.parametrize("device", GPU, indirect=True)
def test_a_loaded_kernel_says_what_it_uses(device: Device) -> None:
    loaded = Modules(device, limit_bytes=0).load(Scale(n=100))
    assert loaded.registers > 0
    assert (loaded.shared_bytes, loaded.local_bytes) == (0, 0)


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_a_launch_alone_and_in_a_graph_has_the_shared_memory_that_it_asks_for(device: Device) -> None:
    kernel, launcher = Turned(n=16 * 1024), launcher_on(device)  # 64 KiB, more than may be static
    x = np.arange(kernel.n, dtype=np.float32)
    y = GpuBuffer.empty(device, F32, (kernel.n,))
    plan = launcher.prepare(kernel, y=y, x=GpuBuffer.from_numpy(device, x))
    plan()
    np.testing.assert_array_equal(y.to_numpy(), x[::-1])
    device.fill(y.pointer, y.nbytes)
    graph = device.make_graph([plan.node(())])
    device.launch_graph(graph)
    np.testing.assert_array_equal(y.to_numpy(), x[::-1])
    device.free_graph(graph)


@pytest.mark.parametrize("device", GPU, indirect=True)
def test_the_driver_compiles_text_too(device: Device) -> None:
    emitted = emit(Scale(n=100), device.target)
    loaded, _ = device.load(emitted.text, emitted.entry)
    y, x = GpuBuffer.empty(device, F32, (100,)), GpuBuffer.from_numpy(device, np.arange(100, dtype=np.float32))
    parameters = ParameterBlock(emitted.kernel.signature())
    for name, value in {"y": y.pointer, "x": x.pointer, "factor": 2.0, "offset": 1}.items():
        parameters.set(name, value)
    device.launch(loaded, (2, 1, 1), (64, 1, 1), parameters)
    np.testing.assert_array_equal(y.to_numpy(), np.arange(100, dtype=np.float32) * 2 + 1)


@pytest.mark.parametrize("device", GPU, indirect=True)
def test_text_that_the_driver_refuses_is_an_error_with_its_log(device: Device) -> None:
    text = emit(Scale(n=100), device.target).text.replace("mul.rn.f32", "mul.rn.u32")
    with pytest.raises(DeviceError, match=r"the driver cannot compile test_scale: .*\n.*line \d+"):
        device.load(text, "test_scale")
    device.free(device.alloc(64))


@pytest.mark.parametrize("device", GPU, indirect=True)
def test_an_entry_that_is_not_there_is_an_error(device: Device) -> None:
    with pytest.raises(DeviceError, match="finding entry tset_scale"):
        device.load(emit(Scale(n=100), device.target).text, "tset_scale")


@pytest.mark.parametrize("device", GPU, indirect=True)
def test_starting_a_kernel_takes_microseconds(device: Device) -> None:
    y, x = GpuBuffer.empty(device, F32, (100,)), GpuBuffer.zeros(device, F32, (100,))
    plan = launcher_on(device).prepare(Scale(n=100), y=y, x=x, factor=2.0, offset=3)
    best = math.inf
    for _ in range(50):
        device.synchronize()
        start = time.perf_counter()
        for offset in range(100):
            plan(offset=offset)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 15e-6


@pytest.mark.gpu
def test_a_gpu_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(DeviceError, match=r"there is no cuda:99; the driver shows (one|\d+) GPUs?, cuda:0"):
        open_device("cuda:99")


@pytest.mark.gpu
def test_auto_takes_the_gpu_and_says_so() -> None:
    with open_device("auto") as device:
        assert (device.kind, device.reason) == ("cuda", "the first GPU")
