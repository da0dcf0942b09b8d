"""Work on a caller's stream, against a driver made of host memory that remembers which stream it was asked for. (The real
thing: tests/gpu/test_streams_gpu.py.)"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from executor import CudaExecutor, GpuProfile
from executor.base.errors import DeviceError, DeviceFailed, LaunchError
from executor.device import open_device
from executor.device.cuda import CudaDevice
from executor.device.pinned import CHUNK
from executor.device.stream_handle import LEGACY
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError
from tests.executor.device.sharing_driver import BESIDE, OURS, THEIRS, SharingDriver
from tests.executor.launch.kernels import Accumulate

pytestmark = pytest.mark.usefixtures("shared_kernels")

OTHERS = 0x9000
INTO = [("record", "event 1", OURS), ("wait", "event 1", THEIRS)]
BACK = [("record", "event 1", THEIRS), ("wait", "event 1", OURS)]
ONES = np.ones(100, np.float32)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SharingDriver:
    fake = SharingDriver()
    monkeypatch.setattr("executor.device.cuda.driver", lambda: fake)
    return fake


@pytest.fixture
def executor(driver: SharingDriver) -> Iterator[CudaExecutor]:
    with CudaExecutor("cuda:0", profile=GpuProfile()) as made:
        yield made


class Stream:
    """A stream of another library, whose handle it owns."""

    def __init__(self, handle: int = THEIRS) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def streams_of(driver: SharingDriver, act: Callable[[], object]) -> list[tuple[str, int]]:
    driver.work.clear()
    act()
    return list(dict.fromkeys(driver.work))


def all_kinds(executor: CudaExecutor) -> Callable[[], object]:
    """Work of every kind that goes to a stream."""
    total, x = executor.buffer(ONES), executor.buffer(ONES)
    large = GpuBuffer.empty(executor.device, "u8", CHUNK + 1)
    bytes_ = np.zeros(CHUNK + 1, np.uint8)
    with executor.capture() as graph:
        executor.launcher(Accumulate(n=100), total=total, x=x)

    def act() -> None:
        executor.launcher(Accumulate(n=100), total=total, x=x)
        graph.replay()
        x.upload(ONES)
        large.upload(bytes_)  # through pinned memory
        total.fill()
        executor.device.copy(x.pointer, total.pointer, 400)
        total.to_numpy()  # through pinned memory
        large.to_numpy()
        executor.synchronize()

    return act


def test_all_work_in_the_block_goes_to_the_callers_stream_and_afterwards_to_the_own(
    driver: SharingDriver, executor: CudaExecutor
) -> None:
    act = all_kinds(executor)
    kinds = ["launch", "replay", "upload", "fill", "copy", "download", "wait"]
    assert streams_of(driver, act) == [(kind, OURS) for kind in kinds]
    with executor.using(Stream()):
        assert executor.stream == THEIRS
        assert streams_of(driver, act) == [(kind, THEIRS) for kind in kinds]
    assert executor.stream == OURS
    assert streams_of(driver, act) == [(kind, OURS) for kind in kinds]


def test_a_fetch_is_a_copy_on_the_stream_and_one_to_the_host_beside_it(driver: SharingDriver, executor: CudaExecutor) -> None:
    driver.fetching()
    x = executor.buffer(ONES)
    for stream in (OURS, THEIRS):
        with executor.using(stream):
            driver.work.clear()
            driver.order.clear()
            fetch = executor.device.fetch(x.pointer, np.zeros(100, np.float32))
            assert driver.work == [("copy", stream), ("download", BESIDE)]
            (_, copied, _), _, come = driver.order
            assert driver.order == [("record", copied, stream), ("wait", copied, BESIDE), ("record", come[1], BESIDE)]
            np.testing.assert_array_equal(fetch.to_numpy(), ONES)
            del fetch
    executor.device.fetch(x.pointer, np.zeros(100, np.float32))  # nobody waits for it
    driver.order.clear()
    executor.device.fetch(x.pointer, np.zeros(100, np.float32))
    (_, before, _), *_ = driver.order
    assert driver.order[:2] == [("record", before, BESIDE), ("wait", before, OURS)]
    assert driver.live["stream"] == 2
    driver.work.clear()
    executor.close()
    assert ("wait", BESIDE) in driver.work
    assert driver.live["stream"] == 0


def test_the_order_is_that_of_the_program(driver: SharingDriver, executor: CudaExecutor) -> None:
    driver.order.clear()
    with executor.using(THEIRS):
        assert driver.order == INTO
        driver.order.clear()
    assert driver.order == BACK
    driver.order.clear()
    with pytest.raises(KeyError), executor.using(THEIRS):
        raise KeyError
    assert (driver.order, executor.stream) == ([*INTO, *BACK], OURS)


def test_blocks_nest_and_the_same_stream_again_costs_nothing(driver: SharingDriver, executor: CudaExecutor) -> None:
    with executor.using(THEIRS), executor.using(OTHERS):
        driver.order.clear()
        with executor.using(OTHERS):
            assert executor.stream == OTHERS
        assert driver.order == []
    assert [stream for what, _, stream in driver.order if what == "wait"] == [THEIRS, OURS]
    with executor.using(0):
        assert executor.stream == LEGACY


def test_other_libraries_are_told_the_stream_of_the_block(driver: SharingDriver, executor: CudaExecutor) -> None:
    x = executor.buffer(ONES)
    with executor.using(THEIRS):
        assert x.__cuda_array_interface__["stream"] == THEIRS
        driver.order.clear()
        x.__dlpack__(stream=OTHERS)
        assert driver.order == [("record", "event 1", THEIRS), ("wait", "event 1", OTHERS)]


def test_a_stream_lives_as_long_as_it_is_used(driver: SharingDriver) -> None:
    stream = Stream()
    noted = weakref.ref(stream)
    executor = CudaExecutor("cuda:0", stream=stream)
    del stream
    gc.collect()
    assert noted() is not None
    executor.close()
    gc.collect()
    assert noted() is None


def test_an_executor_on_a_callers_stream_makes_none_and_destroys_none(driver: SharingDriver) -> None:
    with CudaExecutor("cuda:0", stream=Stream()) as executor:
        assert driver.live["stream"] == 0
        assert executor.stream == THEIRS
        assert {stream for _, stream in streams_of(driver, all_kinds(executor))} == {THEIRS}
        with executor.using(OTHERS):
            assert executor.stream == OTHERS
        driver.work.clear()
    assert driver.live["stream"] == 0
    assert ("wait", THEIRS) in driver.work  # its work has ended when close returns


@pytest.mark.parametrize("how", ["using", "made on"])
def test_a_stream_that_work_cannot_go_to_is_refused_and_changes_nothing(
    driver: SharingDriver, executor: CudaExecutor, how: str
) -> None:
    driver.elsewhere, driver.captured = {OTHERS}, {THEIRS}

    def use(stream: object) -> None:
        if how == "using":
            with executor.using(stream):
                pytest.fail("the block was entered")
        CudaExecutor("cuda:0", stream=stream)

    before = driver.live["context"], driver.live["stream"]
    with pytest.raises(DeviceError, match=r"stream 0x9000 is of another GPU or context; cuda:0 \(Fake GPU\) needs one of"):
        use(OTHERS)
    with pytest.raises(LaunchError, match=r"stream 0x7000 is being captured by another library, .* executor.capture\(\)"):
        use(THEIRS)
    with pytest.raises(ArgumentError, match="stream is 'side'; allowed: a handle of the driver"):
        use("side")
    assert (driver.live["context"], driver.live["stream"]) == before
    assert executor.stream == OURS


def test_a_capture_has_no_stream_but_a_block_can_capture(driver: SharingDriver, executor: CudaExecutor) -> None:
    total, x = executor.buffer(ONES), executor.buffer(ONES)
    refused = pytest.raises(LaunchError, match=r"changing the stream on cuda:0 .* which cannot be captured")
    with refused, executor.capture(), executor.using(THEIRS):
        pytest.fail("the block was entered")
    with executor.using(THEIRS), executor.capture() as graph:
        executor.launcher(Accumulate(n=100), total=total, x=x)
    driver.work.clear()
    graph.replay()
    assert driver.work == [("replay", OURS)]


def test_a_fault_in_the_block_is_told_as_it_is(driver: SharingDriver, executor: CudaExecutor) -> None:
    def fail() -> None:
        with executor.using(THEIRS):
            driver.fault()
            executor.synchronize()

    with pytest.raises(DeviceFailed, match="waiting for the work on cuda:0"):
        fail()
    with pytest.raises(DeviceFailed, match="refuses changing the stream"), executor.using(THEIRS):
        pytest.fail("the block was entered")


def test_an_executor_may_be_closed_in_the_block(driver: SharingDriver) -> None:
    executor = CudaExecutor("cuda:0")
    with executor.using(THEIRS):
        executor.close()
    assert driver.live["stream"] == 0
    assert ("wait", THEIRS) in driver.work


def test_a_stream_asks_for_a_gpu(driver: SharingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    for spec, sanitize in (("emulator", False), ("auto", True)):
        with pytest.raises(ArgumentError, match=r"only a GPU has streams, and (the device|sanitize) asks for the emulator"):
            open_device(spec, sanitize=sanitize, stream=THEIRS)
    with open_device("auto", stream=THEIRS) as device:
        assert isinstance(device, CudaDevice)
    driver.gpus = 0
    with pytest.raises(DeviceError, match="there is no cuda:0"):
        open_device("auto", stream=THEIRS)


def test_on_the_emulator_the_block_changes_nothing_and_streams_are_streams() -> None:
    with CudaExecutor("emulator") as executor:
        with executor.using(Stream()), executor.using(0):
            assert executor.stream is None
            assert executor.buffer(ONES).to_numpy().sum() == 100
        with pytest.raises(ArgumentError, match="stream is None; allowed"), executor.using(None):
            pytest.fail("the block was entered")
