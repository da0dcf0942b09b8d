"""PyTorch's (and CuPy's) memory and streams shared with a device, for real. The checks that need no GPU: tests/executor."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from executor.base.errors import DeviceError
from executor.device import Device
from executor.memory.buffers import GpuBuffer
from executor.memory.interop import as_buffer, foreign_stream
from ptxgen.errors import ArgumentError
from ptxgen.types import BF16, F16, F32, S8, S64, U8, DType
from tests.executor.launch.kernels import Accumulate, Scale
from tests.gpu.launching import launcher_on

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

BOTH = ["emulator", pytest.param("cuda:0", marks=pytest.mark.gpu)]
GPU = [pytest.param("cuda:0", marks=pytest.mark.gpu)]
N = 1 << 20
CYCLES = 200_000_000
"""How long PyTorch's stream sleeps: 0.1 s at 2 GHz, longer than all that the host does meanwhile."""
LAUNCHES = 500

on_both = pytest.mark.parametrize("device", BOTH, indirect=True)
on_gpu = pytest.mark.parametrize("device", GPU, indirect=True)


def place(device: Device) -> str:
    return "cuda:0" if device.kind == "cuda" else "cpu"


class Interface:
    """A tensor's `__cuda_array_interface__`, without its DLPack. stream: as version 3 has it; PyTorch shows version 2."""

    def __init__(self, tensor: Any, stream: int | None = None) -> None:
        self.tensor = tensor
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.tensor.__cuda_array_interface__
        return shown if self.stream is None else shown | {"version": 3, "stream": self.stream}


@on_both
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float32", F32), ("float16", F16), ("bfloat16", BF16), ("int8", S8), ("uint8", U8), ("int64", S64)],
)
def test_tensors_and_buffers_are_one_memory(device: Device, name: str, dtype: DType) -> None:
    tensor = torch.arange(24, device=place(device)).reshape(2, 3, 4).to(getattr(torch, name))
    buffer = as_buffer(device, tensor)
    assert (buffer.pointer, buffer.dtype, buffer.shape) == (tensor.data_ptr(), dtype, (2, 3, 4))
    again = torch.from_dlpack(buffer)
    assert (again.data_ptr(), again.dtype, again.shape, again.device) == (
        tensor.data_ptr(),
        tensor.dtype,
        tensor.shape,
        tensor.device,
    )
    own = GpuBuffer.zeros(device, dtype, (3, 5))
    seen = torch.from_dlpack(own)
    assert (seen.data_ptr(), seen.dtype, tuple(seen.shape)) == (own.pointer, tensor.dtype, (3, 5))
    assert not seen.any()


@on_gpu
def test_the_array_interface_shares_both_ways(device: Device) -> None:
    tensor = torch.arange(12, device="cuda:0", dtype=torch.float32)
    torch.cuda.synchronize()  # PyTorch's array interface names no stream
    buffer = as_buffer(device, Interface(tensor))
    assert buffer.pointer == tensor.data_ptr()
    np.testing.assert_array_equal(buffer.to_numpy(), np.arange(12, dtype=np.float32))
    assert torch.as_tensor(GpuBuffer.zeros(device, F32, (5,)), device="cuda:0").tolist() == [0] * 5
    assert torch.as_tensor(buffer, device="cuda:0").data_ptr() == tensor.data_ptr()


@on_both
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda place: torch.zeros(3, 4, device=place).T, "make it contiguous first"),
        (lambda place: torch.zeros(1, 4, device=place).expand(3, 4), "make it contiguous first"),
        (lambda place: torch.zeros(4, device=place, requires_grad=True), r"use tensor.detach\(\)"),
        (lambda place: torch.zeros(4, device=place, dtype=torch.complex64), "holds complex64"),
        (lambda place: torch.zeros(0, device=place), "is empty"),
        (lambda place: torch.zeros(9, device=place, dtype=torch.uint8)[1:].view(torch.int8), None),
    ],
)
def test_a_tensor_that_cannot_be_used_is_refused(device: Device, make: Any, words: str | None) -> None:
    tensor = make(place(device))
    if words is None:  # bytes may start anywhere
        assert as_buffer(device, tensor).pointer == tensor.data_ptr()
        return
    with pytest.raises(ArgumentError, match=words):
        as_buffer(device, tensor)


@on_gpu
def test_memory_of_the_host_is_refused(device: Device) -> None:
    with pytest.raises(ArgumentError, match=r"is in host memory; .* or .cuda\(\) of PyTorch"):
        as_buffer(device, torch.zeros(4))

    class Lie:
        def __init__(self, pointer: int) -> None:
            self.__cuda_array_interface__ = {"version": 3, "shape": (4,), "typestr": "<f4", "data": (pointer, False)}

    host, pinned = torch.zeros(4), torch.zeros(4).pin_memory()
    with pytest.raises(DeviceError, match="are not memory of a GPU"):
        as_buffer(device, Lie(host.data_ptr()))
    with pytest.raises(DeviceError, match="are memory of the host"):
        as_buffer(device, Lie(pinned.data_ptr()))
    freed = device.alloc(64 << 20)
    device.free(freed)
    with pytest.raises(DeviceError, match="are not memory of a GPU"):
        as_buffer(device, Lie(freed))


@on_gpu
@pytest.mark.parametrize("side", [True, False], ids=["side stream", "default stream"])
@pytest.mark.parametrize("through", ["dlpack", "interface"])
def test_our_kernels_run_between_what_pytorch_did_before_and_does_after(device: Device, side: bool, through: str) -> None:
    launcher = launcher_on(device)
    x, total = torch.zeros(N, device="cuda:0"), torch.zeros(N, device="cuda:0")
    early = GpuBuffer.zeros(device, F32, (N,))
    show = Interface if through == "interface" else lambda tensor: tensor
    torch.cuda._sleep(1)
    _ = total * 2  # PyTorch loads a kernel when it is first used, and waits
    torch.cuda.synchronize()
    ours = {"total": as_buffer(device, show(total)), "x": as_buffer(device, show(x))}
    add = launcher.prepare(Accumulate(n=N), **ours)
    unordered = launcher.prepare(Scale(n=N), y=early, x=ours["x"], factor=1.0, offset=0)
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        x.fill_(1)
        unordered()
        with foreign_stream(device, stream.cuda_stream):
            for _ in range(LAUNCHES):
                add()
        doubled = total * 2
        assert not stream.query(), "the host waited, or the sleep was too short for this test"
    stream.synchronize()
    assert bool((doubled == 2 * LAUNCHES).all())
    assert not early.to_numpy().any()  # so the order was not there by chance


@on_gpu
@pytest.mark.parametrize("through", ["dlpack", "interface"])
def test_a_tensor_is_taken_as_it_will_be_when_its_stream_has_written_it(device: Device, through: str) -> None:
    y, stream = GpuBuffer.zeros(device, F32, (N,)), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.zeros(N, device="cuda:0")
        torch.cuda._sleep(CYCLES)
        x.fill_(3)
        buffer = as_buffer(device, Interface(x, stream.cuda_stream) if through == "interface" else x)
        assert not stream.query()
    launcher_on(device)(Scale(n=N), y=y, x=buffer, factor=1.0, offset=0)
    assert (y.to_numpy() == 3).all()


@on_gpu
def test_pytorch_takes_a_buffer_as_it_will_be_when_we_have_written_it(device: Device) -> None:
    total, x = GpuBuffer.zeros(device, F32, (N,)), GpuBuffer.from_numpy(device, np.ones(N, np.float32))
    add = launcher_on(device).prepare(Accumulate(n=N), total=total, x=x)
    stream = torch.cuda.Stream()
    sleeper = torch.cuda.Stream()
    with torch.cuda.stream(sleeper):
        torch.cuda._sleep(CYCLES)
    device.sharing.wait_for(sleeper.cuda_stream)
    for _ in range(LAUNCHES):
        add()
    with torch.cuda.stream(stream):
        doubled = torch.from_dlpack(total) * 2
        assert not stream.query()
    stream.synchronize()
    assert bool((doubled == 2 * LAUNCHES).all())


@on_gpu
def test_a_tensor_that_nobody_has_any_more_stays_until_our_work_has_read_it(device: Device) -> None:
    plan_y = GpuBuffer.zeros(device, F32, (N,))
    launcher = launcher_on(device)
    x = torch.full((N,), 3.0, device="cuda:0")
    pointer = x.data_ptr()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
    buffer = as_buffer(device, x)
    device.sharing.wait_for(stream.cuda_stream)
    launcher(Scale(n=N), y=plan_y, x=buffer, factor=1.0, offset=0)
    del x, buffer
    gc.collect()
    others = [torch.full((N,), 7.0, device="cuda:0") for _ in range(4)]
    assert pointer not in [other.data_ptr() for other in others]
    assert (plan_y.to_numpy() == 3).all()  # waits, which lets the tensor go
    assert torch.full((N,), 7.0, device="cuda:0").data_ptr() == pointer


@on_gpu
def test_a_tensor_keeps_the_memory_of_a_freed_buffer_and_gives_it_back(device: Device) -> None:
    size = 64 << 20
    torch.zeros(1, device="cuda:0").add_(1)
    torch.cuda.synchronize()
    before = device.memory().free
    buffer = GpuBuffer.zeros(device, U8, (size,))
    buffer.fill(5)
    tensors = [torch.from_dlpack(buffer)]
    buffer.free()
    assert bool((tensors[0][:: 1 << 20] == 5).all())
    assert device.memory().free <= before - size
    thread = threading.Thread(target=tensors.clear)  # PyTorch may let go of it on any of its threads
    thread.start()
    thread.join()
    torch.cuda.empty_cache()
    device.synchronize()
    assert device.memory().free > before - size


@on_gpu
def test_a_tensor_outlives_the_device_that_made_it(device: Device) -> None:
    buffer = GpuBuffer.from_numpy(device, np.arange(1000, dtype=np.float32))
    tensor = torch.from_dlpack(buffer)
    device.close()
    assert float(tensor.sum()) == 499500


@on_gpu
def test_sharing_for_long_leaves_nothing(device: Device) -> None:
    x, total = torch.ones(1000, device="cuda:0"), torch.zeros(1000, device="cuda:0")
    launcher = launcher_on(device)
    launcher.prepare(Accumulate(n=1000), total=as_buffer(device, total), x=as_buffer(device, x))
    device.synchronize()
    before = device.memory().allocated, torch.cuda.memory_allocated()
    stream = torch.cuda.current_stream().cuda_stream
    for _ in range(3000):
        with foreign_stream(device, stream):
            launcher(Accumulate(n=1000), total=as_buffer(device, total), x=as_buffer(device, x))
            torch.from_dlpack(as_buffer(device, x)).add_(0)
    device.synchronize()
    assert total.tolist() == [3000] * 1000
    gc.collect()
    assert (device.memory().allocated, torch.cuda.memory_allocated()) == before  # other processes may use the GPU's memory


@on_gpu
def test_cupy_shares_both_ways_and_waits(device: Device) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    array = cupy.arange(1000, dtype=cupy.float32)
    buffer = as_buffer(device, array)
    assert buffer.pointer == array.data.ptr
    np.testing.assert_array_equal(buffer.to_numpy(), np.arange(1000, dtype=np.float32))
    for seen in (cupy.from_dlpack(buffer), cupy.asarray(buffer)):
        assert seen.data.ptr == array.data.ptr
        assert float(seen.sum()) == 499500
