"""The logic around the driver's calls, against a driver made of host memory. The calls themselves: tests/gpu/test_device.py."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.base.errors import DeviceError, DeviceFailed, LaunchError, ModelError
from executor.device import open_device
from executor.device.cuda import CudaDevice
from executor.device.emulated import EmulatedDevice
from executor.device.parameters import ParameterBlock
from executor.device.pinned import CHUNK, PAGE
from executor.device.protocol import LoadedKernel
from executor.launch.launch import Launcher, Plan, launch_together
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from executor.memory.peers import peer_addresses
from ptxgen.errors import ArgumentError
from ptxgen.gpus.gpu import GPUS
from ptxgen.kernels.collective.all_gather import AllGather
from ptxgen.target import Target
from ptxgen.types import F32, U32
from tests.executor.device.fake_driver import FakeDriver, R
from tests.executor.launch.kernels import Alone, Scale, together_plan


def test_everything_made_is_given_back_on_close(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        GpuBuffer.zeros(device, F32, (1 << 20,)).upload(np.zeros(1 << 20, np.float32))
        device.elapsed(device.record(), device.record())
        Modules(device).load(Scale(n=100))
        assert set(driver.live) == {"context", "stream", "memory", "pinned", "event", "module"}
    assert not any(driver.live.values())
    with pytest.raises(DeviceError, match="closed"):
        device.synchronize()


def test_a_launch_passes_the_addresses_of_the_packed_arguments(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        y, x = GpuBuffer.empty(device, F32, (100,)), GpuBuffer.zeros(device, F32, (100,))
        Launcher(device, Modules(device))(Scale(n=100), y=y, x=x, factor=1.5, offset=9)
    ((function, *sizes, shared, stream, parameters, extra),) = driver.launches
    assert (function, sizes, shared, stream, extra) == ("function test_scale", [2, 1, 1, 64, 1, 1], 0, "stream", 0)
    assert isinstance(parameters, int)
    assert parameters != 0


def test_blocks_that_wait_for_each_other_are_launched_all_at_once_if_there_is_room(driver: FakeDriver) -> None:
    most = 132 * 16
    with CudaDevice() as device:
        together_plan(device, most)()
        with pytest.raises(LaunchError, match=rf"the {most + 1} blocks of grid .* wait for each other.* holds {most} at once"):
            together_plan(device, most + 1)
    ((kind, function, *sizes, shared, stream, _),) = driver.launches
    assert (kind, function, sizes) == ("cooperative", "function test_turned_together", [most, 1, 1, 64, 1, 1])
    assert (shared, stream) == (0, "stream")


def two_gpus(driver: FakeDriver) -> tuple[CudaDevice, CudaDevice]:
    driver.gpus = 2
    return CudaDevice(0), CudaDevice(1)


def gather_plans(devices: Sequence[CudaDevice]) -> list[Plan]:
    """Of an all-gather over these devices."""
    kernel = AllGather(n=64, ranks=len(devices))
    flags = [GpuBuffer.zeros(device, U32, (kernel.blocks, kernel.ranks)) for device in devices]
    whole = [GpuBuffer.zeros(device, F32, (1, 64)) for device in devices]
    ys, peers = peer_addresses(whole), peer_addresses(flags)
    slices = [GpuBuffer.zeros(device, F32, (1, kernel.columns)) for device in devices]
    own = [{"y": whole[r], "x": slices[r], "flags": flags[r], "ys": ys[r], "peers": peers[r], "rank": r} for r in range(2)]
    return [Launcher(device, Modules(device)).prepare(kernel, **its) for device, its in zip(devices, own, strict=True)]


def test_launches_of_several_gpus_go_to_each_after_their_contexts_reach_each_other(driver: FakeDriver) -> None:
    one, other = two_gpus(driver)
    with one, other:
        launch_together(gather_plans([one, other]))
        assert driver.reached == [("context 0", "context 1"), ("context 1", "context 0")]  # once, and asked for twice
        assert [call[0] for call in driver.launches] == ["function all_gather"] * 2
        driver.fault(R.CUDA_ERROR_LAUNCH_FAILED)
        with pytest.raises(
            DeviceFailed, match="launches that wait for other devices, and give up with a trap when one does not"
        ):
            one.synchronize()


def test_gpus_without_a_way_to_each_other_are_named(driver: FakeDriver) -> None:
    driver.apart = {(1, 0)}
    one, other = two_gpus(driver)
    with one, other, EmulatedDevice() as emulator:
        one.reach(other)
        with pytest.raises(DeviceError, match=r"no peer access between cuda:1 \(Fake GPU\) and cuda:0 \(Fake GPU\)"):
            other.reach(one)
        with pytest.raises(DeviceError, match=r"cuda:0 \(Fake GPU\) cannot reach the memory of emulator .*, which is no GPU"):
            one.reach(emulator)
        with CudaDevice(0) as beside:  # the same context
            one.reach(beside)
    assert driver.reached == [("context 0", "context 1")]


def test_a_kernel_is_told_what_its_launches_ask_for_and_what_room_it_wants(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        device.load(".version 8.0", "plain")
        assert driver.asked == []
        device.load(".version 8.0", "ringed", dynamic_shared=100_000, shared_room=132 * 1024)
        assert driver.asked == [
            ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 100_000),
            ("CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT", 58),  # of 228 KB
        ]
        live = Counter(driver.live)
        driver.failing["cuFuncSetAttribute"] = driver.CUresult.CUDA_ERROR_INVALID_VALUE
        with pytest.raises(DeviceError, match="asking for 1 % of shared memory for ringed"):
            device.load(".version 8.0", "ringed", shared_room=1024)
        assert driver.live == live, "nothing of a refused kernel stays"


def test_a_gpu_that_has_less_shared_memory_is_not_asked_for_room(driver: FakeDriver) -> None:
    driver.shared_bytes = 100 * 1024
    with CudaDevice() as device:
        device.load(".version 8.0", "ringed", shared_room=132 * 1024)
        assert driver.asked == []


def test_a_plan_keeps_its_parameters_alive(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        y, x = GpuBuffer.empty(device, F32, (100,)), GpuBuffer.zeros(device, F32, (100,))
        plan = Launcher(device, Modules(device)).prepare(Scale(n=100), y=y, x=x, factor=1.5, offset=9)
        plan(offset=11)
        addresses = (ctypes.c_uint64 * 4).from_address(driver.launches[0][9])
        assert ctypes.c_uint64.from_address(addresses[0]).value == y.pointer
        assert ctypes.c_uint32.from_address(addresses[3]).value == 11


def test_a_large_upload_goes_through_pinned_memory_in_chunks(driver: FakeDriver) -> None:
    array = np.random.default_rng(1).integers(0, 256, 2 * CHUNK + 77, np.uint8)
    steps: list[int] = []
    with CudaDevice() as device:
        pointer = device.alloc(array.size)
        device.upload(pointer, array, steps.append)
        back = np.empty_like(array)
        device.download(pointer, back)
        np.testing.assert_array_equal(back, array)
    assert driver.copies == steps == [CHUNK, CHUNK, 77]


def test_code_is_assembled_once_and_kept_on_disk(driver: FakeDriver) -> None:
    for hits in (0, 1):
        with CudaDevice() as device:
            modules = Modules(device)
            modules.load(Scale(n=100))
            assert modules.counts.disk_hits == hits
    assert driver.modules[0] == driver.modules[1]
    assert driver.modules[0].startswith(b"\x7fELF")


def test_a_gpu_between_two_known_ones_gets_text_for_the_older_and_code_for_itself(driver: FakeDriver) -> None:
    driver.capability = (8, 8)
    with CudaDevice() as device:
        assert (str(device.target), str(device.code_target)) == ("sm_87", "sm_88")
        image = device.compile(".version 7.1\n.target sm_86\n.address_size 64\n.visible .entry e()\n{\n    ret;\n}\n")
        assert image is not None


def test_a_kernel_for_one_gpu_alone_is_assembled_there_and_refused_elsewhere(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        Modules(device).load(Alone(n=100))
    assert driver.modules[0].startswith(b"\x7fELF")
    driver.capability = (10, 0)
    with CudaDevice() as device, pytest.raises(ArgumentError, match="is written for sm_90a alone, and the target is sm_100"):
        Modules(device).load(Alone(n=100))


def test_the_driver_compiles_for_a_gpu_that_nvjitlink_does_not_know(driver: FakeDriver) -> None:
    driver.capability = (15, 0)
    with CudaDevice() as device:
        modules = Modules(device)
        loaded = modules.load(Scale(n=100))
        assert modules.counts.misses == 1
        assert driver.modules[0].endswith(b"}\n\0")
        assert loaded.handle == "function test_scale"


def test_what_the_driver_cannot_compile_is_an_error_with_log_and_line(driver: FakeDriver) -> None:
    with CudaDevice() as device, pytest.raises(DeviceError) as caught:
        device.load("one\n  nonsense\nthree\n", "e")
    message = str(caught.value)
    assert "cannot compile e: CUDA_ERROR_INVALID_PTX" in message
    assert message.endswith("line 2; error: nonsense\n  nonsense")


def test_a_gpu_that_is_too_old_is_refused(driver: FakeDriver) -> None:
    driver.capability = (7, 0)
    with pytest.raises(DeviceError, match="is sm_70; the oldest GPU supported is sm_75"):
        CudaDevice()


def test_a_gpu_is_described_by_the_driver_and_what_that_does_not_say_by_the_table(driver: FakeDriver) -> None:
    driver.capability, driver.product = (8, 9), "NVIDIA GeForce RTX 4091"
    with CudaDevice() as device:
        unknown = device.card
    driver.product = "NVIDIA GeForce RTX 4090"
    with CudaDevice() as device:
        known = device.card
    for card in (known, unknown):
        assert (card.target, card.multiprocessors, card.clock_mhz, card.l2_bytes) == (Target(89), 132, 1980, 40 << 20)
        assert (card.most_shared, card.multiprocessor.threads, card.memory_gb) == (227 * 1024, 2048, 1)
        assert card.multiprocessor.mma == GPUS["rtx4090"].multiprocessor.mma
    assert (known.name, known.bandwidth_gbps) == ("rtx4090", 1008)
    assert (unknown.title, unknown.bandwidth_gbps) == ("NVIDIA GeForce RTX 4091", 1024)


@pytest.mark.parametrize(("gpus", "words"), [(0, "no GPU"), (1, "one GPU, cuda:0"), (3, "3 GPUs, cuda:0 to cuda:2")])
def test_a_gpu_that_is_not_there_names_those_that_are(driver: FakeDriver, gpus: int, words: str) -> None:
    driver.gpus = gpus
    with pytest.raises(DeviceError, match=f"there is no cuda:7; the driver shows {words}"):
        open_device("cuda:7")


def test_auto_takes_the_first_gpu(driver: FakeDriver) -> None:
    with open_device("auto") as device:
        assert (device.kind, device.name, device.reason) == ("cuda", "cuda:0 (Fake GPU)", "the first GPU")
        assert device.describe()["cuda_driver"] == "13.0"


def test_auto_takes_the_emulator_when_the_driver_shows_no_gpu(driver: FakeDriver) -> None:
    driver.gpus = 0
    with open_device("auto") as device:
        assert device.kind == "emulator"
        assert "no GPU" in device.reason


def test_full_memory_says_how_much_was_asked_and_is_free(driver: FakeDriver) -> None:
    driver.free_bytes = 1000
    with (
        CudaDevice() as device,
        pytest.raises(DeviceError, match=r"no room for 4000 bytes \(logits\); 1000 of 1073741824 are free"),
    ):
        GpuBuffer.empty(device, F32, (1000,), "logits")


@pytest.mark.parametrize(
    ("call", "status", "words"),
    [
        ("cuStreamSynchronize", R.CUDA_ERROR_ILLEGAL_ADDRESS, "is lost until all who opened it have closed it"),
        ("cuMemcpyDtoHAsync", R.CUDA_ERROR_INVALID_VALUE, "downloading on cuda:0"),
    ],
)
def test_a_driver_error_has_its_name_and_what_was_being_done(driver: FakeDriver, call: str, status: R, words: str) -> None:
    with CudaDevice() as device:
        pointer = device.alloc(64)
        driver.failing[call] = status
        with pytest.raises(DeviceError) as caught:
            device.download(pointer, np.empty(64, np.uint8))
        assert status.name in str(caught.value)
        assert words in str(caught.value)
        driver.failing.clear()


def test_closing_after_a_fault_raises_nothing(driver: FakeDriver, caplog: pytest.LogCaptureFixture) -> None:
    with CudaDevice() as device:
        device.alloc(64)
        driver.failing["cuStreamSynchronize"] = R.CUDA_ERROR_ILLEGAL_ADDRESS
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in caplog.text


def test_two_device_objects_take_turns_on_one_thread(driver: FakeDriver) -> None:
    entered: list[str] = []
    driver.gpus = 2
    driver.cuCtxSetCurrent = lambda context: entered.append(context) or (R.CUDA_SUCCESS,)  # type: ignore[method-assign, func-returns-value]
    with CudaDevice(0) as first, CudaDevice(1) as second:
        entered.clear()
        first.alloc(64)
        first.alloc(64)
        second.alloc(64)
        first.alloc(64)
        assert entered == ["context 0", "context 1", "context 0"]


@pytest.mark.parametrize("nbytes", [1, PAGE - 1, PAGE, PAGE + 1])
def test_downloads_small_and_large_give_what_was_uploaded(driver: FakeDriver, nbytes: int) -> None:
    content = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
    with CudaDevice() as device:
        buffer = GpuBuffer.from_numpy(device, content)
        waits = device.waits
        np.testing.assert_array_equal(buffer.to_numpy(), content)
        assert device.waits == waits + 1
    assert not any(driver.live.values())


def test_a_fetch_gives_what_was_there_when_it_was_started_and_waits_for_its_own_event(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[object] = []
    waited: list[object] = []
    monkeypatch.setattr(driver, "cuEventCreate", lambda flags: (driver.live.update(event=1) or R.CUDA_SUCCESS, object()))

    def record(event: object, stream: object) -> tuple[R]:
        if stream == "beside":
            recorded.append(event)
        return (R.CUDA_SUCCESS,)

    def wait(event: object) -> tuple[R]:
        waited.append(event)
        return (R.CUDA_SUCCESS,)

    monkeypatch.setattr(driver, "cuEventRecord", record)
    monkeypatch.setattr(driver, "cuEventSynchronize", wait)
    with CudaDevice() as device:
        monkeypatch.setattr(driver, "cuStreamCreate", lambda flags: (driver.live.update(stream=1) or R.CUDA_SUCCESS, "beside"))
        buffer = GpuBuffer.from_numpy(device, np.zeros(1, np.uint32))
        waits = device.waits
        for start in (0, 10, 20):  # two are held at a time, so two pages are enough
            fetches = []
            for number in range(2):
                buffer.upload(np.array([start + number], np.uint32))
                fetches.append(device.fetch(buffer.pointer, np.zeros(1, np.uint32)))
            assert [int(fetch.to_numpy()[0]) for fetch in fetches] == [start, start + 1]
            assert [int(fetch.to_numpy()[0]) for fetch in fetches] == [start, start + 1]  # once waited for
            del fetches
        assert device.waits == waits + 6
        assert waited == recorded
        assert driver.live["pinned"] == len(set(recorded)) == 2
        assert driver.live["memory"] == 1 + 2
        with pytest.raises(DeviceError, match="cannot fetch 65537 bytes at once; allowed: up to 65536"):
            device.fetch(device.alloc(PAGE + 1), np.zeros(PAGE + 1, np.uint8))
    assert not any(driver.live.values())


def test_a_fault_names_the_launches_since_the_fetch_that_came(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        buffer = GpuBuffer.from_numpy(device, np.zeros(1, np.uint32))
        kernel, parameters = LoadedKernel("k", "k"), ParameterBlock({})
        for work in ("first", "second", "third"):
            device.launch(kernel, (1, 1, 1), (1, 1, 1), parameters, work)
            if work == "first":
                fetch = device.fetch(buffer.pointer, np.zeros(1, np.uint32))
        fetch.to_numpy()
        driver.fault()
        with pytest.raises(DeviceFailed) as caught:
            device.synchronize()
        assert "second" in str(caught.value)
        assert "first" not in str(caught.value)


@pytest.mark.parametrize("nbytes", [1000, CHUNK + (5 << 20)])
def test_what_is_read_goes_through_pinned_memory_piece_by_piece(driver: FakeDriver, nbytes: int) -> None:
    content = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
    asked: list[tuple[int, int]] = []
    copied: list[int] = []

    def read(start: int, into: NDArray[np.uint8]) -> None:
        asked.append((start, into.size))
        into[:] = content[start : start + into.size]

    with CudaDevice() as device:
        pointer = device.alloc(nbytes)
        device.upload_from(pointer, nbytes, read, copied.append)
        back = np.zeros(nbytes, np.uint8)
        device.download(pointer, back)
        np.testing.assert_array_equal(back, content)
    assert sum(size for _, size in asked) == sum(copied) == nbytes
    assert len(asked) == len(set(asked))
    assert not any(driver.live.values())


def test_what_cannot_be_read_is_an_error_and_the_next_upload_is_whole(driver: FakeDriver) -> None:
    def fail(start: int, into: NDArray[np.uint8]) -> None:
        raise ModelError("the file has become shorter")

    nbytes = CHUNK + 100
    content = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
    with CudaDevice() as device:
        pointer = device.alloc(nbytes)
        with pytest.raises(ModelError, match="shorter"):
            device.upload_from(pointer, nbytes, fail)
        device.upload(pointer, content)
        back = np.zeros(nbytes, np.uint8)
        device.download(pointer, back)
        np.testing.assert_array_equal(back, content)
