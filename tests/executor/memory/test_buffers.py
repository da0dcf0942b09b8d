"""Buffers hold what was uploaded, count their writes, and refuse to be used after they were freed."""

from __future__ import annotations

import numpy as np
import pytest

from executor.base.errors import DeviceError
from executor.device import Device
from executor.device.emulated import EmulatedDevice
from executor.memory.buffers import GpuBuffer
from ptxgen.arrays import numpy_dtype
from ptxgen.errors import ArgumentError
from ptxgen.types import ALL, BF16, F32, PRED, U8, U16


def test_what_was_uploaded_comes_back(emulator: Device) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    buffer = GpuBuffer.from_numpy(emulator, array)
    array[:] = 0
    assert buffer.dtype == F32
    np.testing.assert_array_equal(buffer.to_numpy(), np.arange(24, dtype=np.float32).reshape(2, 3, 4))


def test_an_array_that_is_not_contiguous_is_uploaded_in_its_order(emulator: Device) -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4).T
    np.testing.assert_array_equal(GpuBuffer.from_numpy(emulator, array).to_numpy(), array)


def test_bf16_travels_as_bits(emulator: Device) -> None:
    buffer = GpuBuffer.from_numpy(emulator, np.array([0x3F80], np.uint16), BF16)
    assert (buffer.dtype, buffer.nbytes, int(buffer.to_numpy()[0])) == (BF16, 2, 0x3F80)


def test_every_storable_type_has_a_numpy_type_of_its_size() -> None:
    for dtype in ALL:
        if dtype.name not in ("pred", "b128", "tf32"):
            assert numpy_dtype(dtype).itemsize == dtype.bytes


def test_each_upload_and_fill_raises_the_version_of_all_views(emulator: Device) -> None:
    buffer = GpuBuffer.zeros(emulator, F32, (8,))
    view = buffer.view(16, (4,))
    before = view.version
    buffer.upload(np.ones(8, np.float32))
    view.fill(0)
    assert (view.version, buffer.version) == (before + 2, before + 2)
    np.testing.assert_array_equal(buffer.to_numpy(), [1, 1, 1, 1, 0, 0, 0, 0])


def test_a_view_may_reinterpret_bytes(emulator: Device) -> None:
    buffer = GpuBuffer.from_numpy(emulator, np.array([0, 0, 0x80, 0x3F, 1, 2], np.uint8))
    assert buffer.view(0, (1,), F32).to_numpy()[0] == 1.0
    assert buffer.view(4, (1,), U16).to_numpy()[0] == 0x0201


@pytest.mark.parametrize(("offset", "shape"), [(4, (8,)), (-4, (1,)), (0, (9,)), (0, (0,)), (40, (1,))])
def test_a_view_beyond_its_buffer_is_refused(emulator: Device, offset: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="does not fit"):
        GpuBuffer.zeros(emulator, F32, (8,)).view(offset, shape)


@pytest.mark.parametrize("array", [np.zeros(7, np.float32), np.zeros(8, np.float64), np.zeros((2, 4), np.float32)])
def test_an_upload_of_another_shape_or_type_is_refused(emulator: Device, array: np.ndarray) -> None:
    buffer = GpuBuffer.zeros(emulator, F32, (8,), "hidden")
    with pytest.raises(ArgumentError, match=r"cannot upload .* to hidden f32\[8\]; it takes float32\[8\]"):
        buffer.upload(array)


@pytest.mark.parametrize("shape", [(0,), (3, -1)])
def test_a_buffer_with_nothing_in_it_is_refused(emulator: Device, shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        GpuBuffer.empty(emulator, F32, shape)


def test_a_type_that_memory_cannot_hold_is_refused(emulator: Device) -> None:
    with pytest.raises(ArgumentError, match="pred cannot be stored"):
        GpuBuffer.empty(emulator, PRED, (8,))


def test_use_after_free_and_double_free_are_errors(emulator: Device) -> None:
    buffer = GpuBuffer.zeros(emulator, F32, (8,), "hidden")
    view = buffer.view(0, (2,))
    buffer.free()
    for use in (buffer.free, buffer.to_numpy, view.to_numpy, view.fill, lambda: buffer.upload(np.zeros(8, np.float32))):
        with pytest.raises(DeviceError, match=r"hidden f32\[\d\] was freed"):
            use()


def test_a_buffer_dies_with_its_device() -> None:
    with EmulatedDevice() as device:
        buffer = GpuBuffer.zeros(device, F32, (8,))
    with pytest.raises(DeviceError, match="freed with its device"):
        buffer.to_numpy()


def test_memory_given_back_is_counted(emulator: Device) -> None:
    buffers = [GpuBuffer.empty(emulator, U8, (1000,)) for _ in range(3)]
    assert emulator.memory().allocated == 3000
    buffers[1].free()
    assert emulator.memory().allocated == 2000


def test_allocations_start_on_256_byte_boundaries(emulator: Device) -> None:
    assert all(GpuBuffer.empty(emulator, U8, (size,)).pointer % 256 == 0 for size in (1, 255, 257, 10000))
