"""Buffers hold what was uploaded, count their writes, and refuse to be used after they were freed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from executor.base.errors import DeviceError
from executor.device import Device
from executor.device.emulated import EmulatedDevice
from executor.memory.buffers import GpuBuffer
from ptxgen.arrays import numpy_dtype
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.types import ALL, BF16, F16, F32, PRED, U8, U16


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


@pytest.mark.parametrize(("shape", "size"), [((2, 3, 4), 24), ((7,), 7), ((), 1)])
def test_a_buffer_has_the_sizes_of_the_array_that_it_was_made_of(emulator: Device, shape: tuple[int, ...], size: int) -> None:
    array = np.zeros(shape, np.float16)
    buffer = GpuBuffer.from_numpy(emulator, array)
    assert (buffer.size, buffer.ndim, buffer.itemsize) == (array.size, array.ndim, array.itemsize) == (size, len(shape), 2)
    assert buffer.nbytes == array.nbytes
    if shape:
        assert len(buffer) == len(array)


def test_no_dimensions_have_no_length(emulator: Device) -> None:
    scalar = GpuBuffer.zeros(emulator, F32, (), "scalar")
    with pytest.raises(TypeError, match=r"scalar f32\[\] has no dimensions"):
        len(scalar)
    with pytest.raises(PtxGenError):
        len(scalar)


SILENT: dict[str, tuple[Callable[[Any], object], str]] = {
    "an array": (np.asarray, r"buffer\.to_numpy\(\)"),
    "an array of a type": (lambda x: np.array(x, np.float64, copy=True), r"buffer\.to_numpy\(\)"),
    "an array of two": (lambda x: np.array([x, x]), r"buffer\.to_numpy\(\)"),
    "a stack": (lambda x: np.stack([x, x]), r"buffer\.to_numpy\(\)"),
    "a sum": (lambda x: np.add(x, 1), r"buffer\.to_numpy\(\)"),
    "a comparison": (lambda x: np.allclose(x, 0), r"buffer\.to_numpy\(\)"),
    "a list": (list, r"buffer\.to_numpy\(\)"),
    "a loop": (lambda x: [one for one in x], r"for \.\.\. in buffer\.to_numpy\(\)"),  # noqa: C416
    "a search": (lambda x: 0.0 in x, r"buffer\.to_numpy\(\)"),
    "an element": (lambda x: x[0], r"buffer\.to_numpy\(\)\[\.\.\.\], or buffer\.view"),
    "a slice": (lambda x: x[:2], r"buffer\.to_numpy\(\)\[\.\.\.\], or buffer\.view"),
    "the last": (lambda x: next(reversed(x)), r"buffer\.to_numpy\(\)\[\.\.\.\]"),
    "its truth": (bool, "`buffer is not None`"),
    "another's place": (lambda x: x or None, "`buffer is not None`"),
}


@pytest.mark.parametrize("what", SILENT)
@pytest.mark.parametrize("shape", [(4,), (1,), (2, 2)], ids=str)
def test_what_would_copy_without_a_word_is_refused_with_what_to_write(
    emulator: Device, what: str, shape: tuple[int, ...]
) -> None:
    use, instead = SILENT[what]
    buffer = GpuBuffer.zeros(emulator, F32, shape, "hidden")
    with pytest.raises(ArgumentError, match=rf"hidden f32\[.*\] is memory of emulator \(sm_90\), .* write .*{instead}"):
        use(buffer)


def test_equality_is_identity_as_buffers_are_kept_in_sets(emulator: Device) -> None:
    one, other = GpuBuffer.zeros(emulator, F32, (4,)), GpuBuffer.zeros(emulator, F32, (4,))
    assert one != other
    assert {one, other, one} == {other, one}


def test_what_a_prompt_shows_has_name_type_shape_device_and_life(emulator: Device) -> None:
    buffer = GpuBuffer.zeros(emulator, F32, (2, 3), "hidden")
    assert repr(buffer) == f"<GpuBuffer hidden f32[2, 3] at {buffer.pointer:#x} on emulator (sm_90)>"
    buffer.free()
    assert repr(buffer).endswith("on emulator (sm_90), freed>")


@pytest.mark.parametrize("shape", [6, [6], (6,), np.int64(6), np.zeros(6).shape], ids=str)
@pytest.mark.parametrize("dtype", [F16, "half", "float16", np.float16, np.dtype("f2")], ids=str)
def test_shape_and_type_have_their_usual_spellings(emulator: Device, shape: Any, dtype: object) -> None:
    made = (
        GpuBuffer.empty(emulator, dtype, shape),
        GpuBuffer.zeros(emulator, dtype, shape),
        GpuBuffer.zeros(emulator, U8, 12).view(0, shape, dtype),
        GpuBuffer.from_numpy(emulator, np.zeros(6, np.float16), dtype),
    )
    assert {(buffer.shape, buffer.dtype, buffer.nbytes) for buffer in made} == {((6,), F16, 12)}


def test_bits_get_their_type_by_name(emulator: Device) -> None:
    assert GpuBuffer.from_numpy(emulator, np.zeros(3, np.uint16), "bfloat16").dtype == BF16
    with pytest.raises(ArgumentError, match=r"dtype is 'f33'; allowed: u8 \(uint8\), "):
        GpuBuffer.from_numpy(emulator, np.zeros(3, np.uint16), "f33")
    with pytest.raises(ArgumentError, match=r"cannot upload uint16\[3\] .* it takes float32\[3\]"):
        GpuBuffer.from_numpy(emulator, np.zeros(3, np.uint16), "float32")


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
