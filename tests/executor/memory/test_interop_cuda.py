"""Sharing memory and streams with other libraries on a GPU, against a driver made of host memory that remembers the order of
what it was asked. (The real thing: tests/gpu/test_interop_gpu.py.)"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from executor.base.errors import DeviceError, LaunchError, SharingError
from executor.device.cuda import CudaDevice
from executor.device.stream_handle import LEGACY
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from executor.memory.interop import as_buffer, foreign_stream
from ptxgen.errors import ArgumentError
from ptxgen.types import BF16, F32, U8, U16
from tests.executor.device.fake_driver import OK
from tests.executor.device.sharing_driver import ADDRESS, OURS, THEIRS, SharingDriver
from tests.executor.launch.kernels import Accumulate


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SharingDriver:
    fake = SharingDriver()
    monkeypatch.setattr("executor.device.cuda.driver", lambda: fake)
    return fake


@pytest.fixture
def device(driver: SharingDriver) -> Iterator[CudaDevice]:
    with CudaDevice() as device:
        yield device


class Shown:
    """An object with a `__cuda_array_interface__`."""

    def __init__(self, **changed: Any) -> None:
        base = {"version": 3, "shape": (100,), "typestr": "<f4", "data": (ADDRESS, False), "strides": None}
        self.__cuda_array_interface__ = base | changed


class Tensor:
    """An object with DLPack: a buffer's own, and the stream that it was asked for."""

    def __init__(self, buffer: GpuBuffer, place: tuple[int, int] = (2, 0)) -> None:
        self.buffer, self.place = buffer, place
        self.asked: dict[str, Any] = {}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, **asked: Any) -> object:
        self.asked = asked
        return self.buffer.__dlpack__(**asked)


def launcher_on(device: CudaDevice) -> Launcher:
    return Launcher(device, Modules(device, limit_bytes=0))


def test_memory_shown_by_the_array_interface_is_used_where_it_is(device: CudaDevice) -> None:
    buffer = as_buffer(device, Shown(strides=(4,)), name="x")
    assert (buffer.pointer, buffer.dtype, buffer.shape, buffer.nbytes) == (ADDRESS, F32, (100,), 400)
    assert device.memory().allocated == 0
    assert as_buffer(device, Shown(shape=(200,), typestr="|u1")).dtype == U8
    assert as_buffer(device, Shown(shape=(10, 20), typestr="<u2", strides=(40, 2)), BF16).shape == (10, 20)
    launcher_on(device).prepare(Accumulate(n=100), total=buffer, x=GpuBuffer.zeros(device, F32, (100,)))


@pytest.mark.parametrize("stream", [1, 2, THEIRS])
def test_the_stream_that_the_array_interface_names_is_waited_for(
    driver: SharingDriver, device: CudaDevice, stream: int
) -> None:
    as_buffer(device, Shown(stream=stream))
    assert driver.order == [("record", "event 1", stream), ("wait", "event 1", OURS)]


def test_without_a_stream_nothing_is_waited_for(driver: SharingDriver, device: CudaDevice) -> None:
    buffers = [as_buffer(device, Shown(stream=None)), as_buffer(device, Shown(version=2))]
    assert driver.order == []
    assert all(buffer.alive for buffer in buffers)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"stream": 0}, "stream 0 is not allowed"),
        ({"version": 1}, "is of version 1; must be 2 or 3"),
        ({"mask": object()}, "has a mask"),
        ({"strides": (8,)}, r"has strides of \[8\] bytes, row-major are \[4\]"),
        ({"shape": (10, 10), "strides": (4, 40)}, r"row-major are \[40, 4\]"),
        ({"shape": (0,), "data": (0, False)}, "is empty"),
        ({"data": (0, False)}, "has a null pointer"),
        ({"data": (None, False)}, "has a null pointer"),
        ({"data": (ADDRESS + 2, False)}, "must be on a 4-byte boundary"),
        ({"typestr": "<c8"}, "holds <c8, for which there is no PTX type"),
        ({"typestr": ">f4"}, "holds >f4, for which there is no PTX type"),
        ({"typestr": "wrong"}, "'wrong' is not a type string"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(device: CudaDevice, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=rf"x \(tests.executor.memory.test_interop_cuda.Shown\).*{words}"):
        as_buffer(device, Shown(**changed), name="x")


@pytest.mark.parametrize(
    ("pointer", "words"),
    [
        (2 * ADDRESS, r"400 bytes at 0x\w+ are on cuda:1; must be on cuda:0 \(Fake GPU\)"),
        (ADDRESS + 16, r"are not memory of a GPU \(byte 0x7f000000019f is not\)"),
        (3 * ADDRESS, "are not memory of a GPU"),
        (4 * ADDRESS, "are memory of the host"),
    ],
)
def test_memory_that_is_elsewhere_is_refused(driver: SharingDriver, device: CudaDevice, pointer: int, words: str) -> None:
    driver.places[range(4 * ADDRESS, 4 * ADDRESS + 400)] = -1
    with pytest.raises(DeviceError, match=words):
        as_buffer(device, Shown(data=(pointer, False)))


def test_read_only_memory_is_not_written(device: CudaDevice) -> None:
    frozen = as_buffer(device, Shown(data=(ADDRESS, True)), name="frozen")
    with pytest.raises(LaunchError, match=r"argument total .* read-only"):
        launcher_on(device).prepare(Accumulate(n=100), total=frozen, x=GpuBuffer.zeros(device, F32, (100,)))
    with pytest.raises(DeviceError, match="must not be written"):
        frozen.fill()
    assert frozen.__cuda_array_interface__["data"] == (ADDRESS, True)


def test_a_dlpack_producer_is_told_our_stream(driver: SharingDriver, device: CudaDevice) -> None:
    with CudaDevice() as other:
        tensor = Tensor(GpuBuffer.zeros(other, BF16, (100,)))
        driver.order.clear()
        buffer = as_buffer(device, tensor)
        assert (buffer.pointer, buffer.dtype) == (tensor.buffer.pointer, BF16)
        assert tensor.asked["stream"] == OURS
        assert driver.order == [("record", "event 1", OURS), ("wait", "event 1", OURS)]  # the fake has one stream for both
        buffer.free()
        device.synchronize()


def test_a_dlpack_producer_from_before_version_one_is_told_our_stream(device: CudaDevice) -> None:
    class Old(Tensor):
        def __dlpack__(self, stream: int) -> object:  # type: ignore[override]
            return super().__dlpack__(stream=stream)

    tensor = Old(GpuBuffer.zeros(device, F32, (100,)))
    assert as_buffer(device, tensor).pointer == tensor.buffer.pointer
    assert tensor.asked == {"stream": OURS}


def test_a_producers_refusal_is_passed_on(device: CudaDevice) -> None:
    class NeedsGradient(Tensor):
        def __dlpack__(self, **_: Any) -> object:
            raise RuntimeError("Can't export tensors that require gradient")

    with pytest.raises(ArgumentError, match=r"NeedsGradient\) cannot be shared: Can't export tensors that require gradient"):
        as_buffer(device, NeedsGradient(GpuBuffer.zeros(device, F32, (4,))), name="x")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ((1, 0), r"is in host memory; cuda:0 \(Fake GPU\) takes memory in cuda:0; use GpuBuffer.from_numpy, or .cuda\(\)"),
        ((2, 1), r"is in cuda:1; cuda:0 \(Fake GPU\) takes memory in cuda:0$"),
        ((3, 0), "is in pinned host memory"),
        ((10, 0), "is in a device of DLPack's kind 10"),
    ],
)
def test_a_tensor_of_another_device_is_refused_by_name(device: CudaDevice, place: tuple[int, int], words: str) -> None:
    tensor = Tensor(GpuBuffer.zeros(device, F32, (100,)), place)
    with pytest.raises(ArgumentError, match=words):
        as_buffer(device, tensor)
    assert not tensor.asked


def test_numpy_arrays_are_refused(device: CudaDevice) -> None:
    with pytest.raises(ArgumentError, match=r"numpy.ndarray is in host memory; .* use GpuBuffer.from_numpy"):
        as_buffer(device, np.zeros(4, np.float32))


def test_work_in_a_foreign_stream_comes_after_what_was_before_and_before_what_comes_after(
    driver: SharingDriver, device: CudaDevice
) -> None:
    total, x = as_buffer(device, Shown(data=(ADDRESS, False))), GpuBuffer.zeros(device, F32, (100,))
    plan = launcher_on(device).prepare(Accumulate(n=100), total=total, x=x)
    driver.order.clear()
    with foreign_stream(device, THEIRS):
        plan()
    assert driver.order == [
        ("record", "event 1", THEIRS),
        ("wait", "event 1", OURS),
        ("launch",),
        ("record", "event 1", OURS),
        ("wait", "event 1", THEIRS),
    ]


def test_the_callers_stream_waits_even_when_the_block_fails(driver: SharingDriver, device: CudaDevice) -> None:
    with pytest.raises(KeyError), foreign_stream(device, 0):
        raise KeyError
    assert driver.order[-2:] == [("record", "event 1", OURS), ("wait", "event 1", LEGACY)]


def test_a_thousand_waits_need_one_event(driver: SharingDriver, device: CudaDevice) -> None:
    for _ in range(1000):
        with foreign_stream(device, THEIRS):
            pass
    assert driver.live["event"] == 1
    device.close()
    assert not any(driver.live.values())


def test_a_wait_enters_the_context_anew(driver: SharingDriver, device: CudaDevice) -> None:
    entered: list[str] = []
    driver.cuCtxSetCurrent = lambda context: entered.append(context) or (OK,)  # type: ignore[method-assign, func-returns-value]
    device.sharing.wait_for(THEIRS)  # between the two, another library may have changed what is current
    device.sharing.make_wait(THEIRS)
    assert entered == ["context 0"] * 2


@pytest.mark.parametrize("then", ["passed", "waited"])
@pytest.mark.parametrize("by", ["free", "del"])
def test_an_owner_is_let_go_when_the_work_that_may_use_it_has_ended(
    driver: SharingDriver, device: CudaDevice, by: str, then: str
) -> None:
    shown = Shown()
    owner = weakref.ref(shown)
    buffer = as_buffer(device, shown)
    del shown
    driver.passing = False
    if by == "free":
        buffer.free()
    del buffer
    gc.collect()
    for _ in range(2):
        device.alloc(4)
        assert owner() is not None
    assert driver.order == [("record", "event 1", OURS)]
    if then == "passed":
        driver.passing = True
        device.alloc(4)
    else:
        device.synchronize()
    gc.collect()
    assert owner() is None


def test_closing_lets_owners_go_and_leaves_their_memory(driver: SharingDriver) -> None:
    with CudaDevice() as device:
        shown = Shown()
        owner = weakref.ref(shown)
        buffer = as_buffer(device, shown)
        assert not owner().__cuda_array_interface__.get("stream")  # type: ignore[union-attr]
    assert not buffer.alive
    del buffer, shown
    gc.collect()
    assert owner() is None
    assert not [call for call in driver.order if call[0] == "free"]


def test_the_array_interface_of_a_buffer_says_where_and_when(device: CudaDevice) -> None:
    buffer = GpuBuffer.zeros(device, F32, (3, 4))
    assert buffer.__cuda_array_interface__ == {
        "version": 3,
        "shape": (3, 4),
        "typestr": "<f4",
        "data": (buffer.pointer, False),
        "strides": None,
        "stream": OURS,
    }
    assert GpuBuffer.zeros(device, U16, (4,)).__cuda_array_interface__["typestr"] == "<u2"
    assert not hasattr(GpuBuffer.zeros(device, BF16, (4,)), "__cuda_array_interface__")


@pytest.mark.parametrize(("stream", "waits"), [(None, 1), (1, 1), (2, 2), (THEIRS, THEIRS)])
def test_a_consumers_stream_waits_for_what_was_started(
    driver: SharingDriver, device: CudaDevice, stream: int | None, waits: int
) -> None:
    buffer = GpuBuffer.zeros(device, F32, (100,))
    buffer.__dlpack__(stream=stream)
    assert driver.order == [("record", "event 1", OURS), ("wait", "event 1", waits)]


def test_a_consumer_may_ask_for_no_wait_and_not_for_stream_zero(driver: SharingDriver, device: CudaDevice) -> None:
    buffer = GpuBuffer.zeros(device, F32, (100,))
    buffer.__dlpack__(stream=-1)
    assert driver.order == []
    with pytest.raises(SharingError, match="stream 0 means nothing"):
        buffer.__dlpack__(stream=0)


def test_a_capsule_is_of_this_gpu(driver: SharingDriver) -> None:
    with CudaDevice(1) as device:
        buffer = GpuBuffer.zeros(device, F32, (4,))
        assert buffer.__dlpack_device__() == (2, 1)
        with pytest.raises((BufferError, RuntimeError), match="device"):  # NumPy reads the device in the capsule
            np.from_dlpack(Misplaced(buffer))  # type: ignore[arg-type]


class Misplaced(Tensor):
    """Says that it is in host memory; its capsule knows better."""

    def __init__(self, buffer: GpuBuffer) -> None:
        super().__init__(buffer, (1, 0))


@pytest.mark.parametrize("later", ["alloc", "free", "synchronize"])
def test_freed_memory_stays_while_an_array_is_over_it(driver: SharingDriver, device: CudaDevice, later: str) -> None:
    buffer, other = GpuBuffer.zeros(device, F32, (100,)), GpuBuffer.zeros(device, F32, (4,))
    view = buffer.view(16, (4,))
    one, two = buffer.__dlpack__(stream=-1), view.__dlpack__(stream=-1)
    buffer.free()
    assert not view.alive
    del one
    device.synchronize()
    assert driver.live["memory"] == 2
    del two
    {"alloc": lambda: device.alloc(4), "free": other.free, "synchronize": device.synchronize}[later]()
    assert ("free", buffer.pointer) in driver.order
    assert driver.order.count(("free", buffer.pointer)) == 1


def test_an_export_that_has_gone_does_not_keep_memory(driver: SharingDriver, device: CudaDevice) -> None:
    buffer = GpuBuffer.zeros(device, F32, (100,))
    del (capsules := [buffer.__dlpack__(stream=-1) for _ in range(10)])[:]
    assert not capsules
    buffer.free()
    assert driver.live["memory"] == 0


def test_a_closed_device_leaves_memory_under_arrays_and_says_so(
    driver: SharingDriver, caplog: pytest.LogCaptureFixture
) -> None:
    with CudaDevice() as device:
        kept, freed, gone = (GpuBuffer.zeros(device, F32, (100,)) for _ in range(3))
        capsules = [kept.__dlpack__(stream=-1), freed.__dlpack__(stream=-1), gone.__dlpack__(stream=-1)]
        freed.free()
        gone.free()
        capsules.pop()
    assert "2 allocations stay, because other libraries still have arrays over them" in caplog.text
    assert driver.live["memory"] == 2
    assert ("free", gone.pointer) in driver.order
    capsules.clear()
