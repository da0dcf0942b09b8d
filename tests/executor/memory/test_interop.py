"""Memory of NumPy and other libraries on the emulator, both ways, without a copy. (On a GPU: test_interop_cuda.py.)"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from executor import CudaExecutor
from executor.base.errors import DeviceError, LaunchError, SanitizerError
from executor.device import Device
from executor.device.emulated import EmulatedDevice
from executor.launch.dependencies import dependencies
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from executor.memory.interop import as_buffer, foreign_stream
from ptxgen.arrays import FROM_NUMPY, NUMPY, numpy_dtype
from ptxgen.errors import ArgumentError
from ptxgen.types import B16, B32, BF16, F16, F32, U8, U16, U32, DType
from tests.executor.launch.kernels import Accumulate, ReadsBeyond, Scale

pytestmark = pytest.mark.usefixtures("shared_kernels")

SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)
EMULATOR = EmulatedDevice()  # for tests that run many examples; nothing stays on it


def launcher_on(device: Device) -> Launcher:
    return Launcher(device, Modules(device, limit_bytes=0))


def numbers(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from(sorted(FROM_NUMPY, key=str)), shape=SHAPES)
def test_a_buffer_over_an_array_is_the_arrays_memory(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    array = numbers(shape, dtype)
    buffer = as_buffer(EMULATOR, array)
    assert (buffer.pointer, buffer.dtype, buffer.shape) == (array.ctypes.data, FROM_NUMPY[dtype], shape)
    array[...] = numbers(shape, dtype) + np.ones((), dtype)
    np.testing.assert_array_equal(buffer.to_numpy(), array)
    buffer.fill(0)
    assert not array.any()


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from([t for t in NUMPY if t is not BF16]), shape=SHAPES)
def test_an_array_over_a_buffer_is_the_buffers_memory(dtype: DType, shape: tuple[int, ...]) -> None:
    buffer = GpuBuffer.from_numpy(EMULATOR, numbers(shape, numpy_dtype(dtype)), dtype)
    array = np.from_dlpack(buffer)  # type: ignore[arg-type]
    assert (array.ctypes.data, array.dtype, array.shape) == (buffer.pointer, numpy_dtype(dtype), shape)
    array[...] = array + np.ones((), array.dtype)
    np.testing.assert_array_equal(buffer.to_numpy(), numbers(shape, numpy_dtype(dtype)) + np.ones((), array.dtype))
    del array
    buffer.free()


@settings(max_examples=150, deadline=None)
@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=3), data=st.data())
def test_exactly_row_major_arrays_are_taken(shape: list[int], data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.sampled_from([1, 1, 2, -1]), min_size=len(shape), max_size=len(shape)))
    order = data.draw(st.permutations(range(len(shape))))
    whole = np.zeros([2 * extent for extent in shape], np.float32)
    array = whole[tuple(slice(None, extent * step, step) if step > 0 else slice(extent - 1, None, -1)
                        for extent, step in zip(shape, steps, strict=True))].transpose(order)  # fmt: skip
    if array.flags.c_contiguous:
        assert as_buffer(EMULATOR, array).pointer == array.ctypes.data
    else:
        with pytest.raises(ArgumentError, match=r"numpy\.ndarray of shape .* has strides of .* bytes, row-major are"):
            as_buffer(EMULATOR, array)


def test_a_kernel_reads_and_writes_numpys_memory(emulator: Device) -> None:
    x, y = np.arange(100, dtype=np.float32), np.full(100, np.nan, np.float32)
    launcher_on(emulator)(Scale(n=100), y=as_buffer(emulator, y), x=as_buffer(emulator, x), factor=2.0, offset=1)
    np.testing.assert_array_equal(y, 2 * x + 1)


def test_bits_may_be_given_the_type_that_they_stand_for(emulator: Device) -> None:
    assert as_buffer(emulator, np.zeros(8, np.uint16), BF16).dtype == BF16
    assert as_buffer(emulator, np.zeros(8, np.uint32), B32).dtype == B32
    assert as_buffer(emulator, np.zeros(8, np.uint16), "bfloat16").dtype == BF16


@pytest.mark.parametrize(("stored", "dtype"), [(np.float32, BF16), (np.uint16, F16), (np.float32, U32), (np.int8, U8)])
def test_numbers_are_not_seen_as_other_numbers(emulator: Device, stored: type, dtype: DType) -> None:
    with pytest.raises(ArgumentError, match=rf"x \(numpy\.ndarray\) holds \w+; {dtype} is stored as {numpy_dtype(dtype)}"):
        as_buffer(emulator, np.zeros(8, stored), dtype, "x")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(4, np.complex64), "holds complex64, for which there is no PTX type; use one of u8, "),
        (np.zeros(4, np.bool_), "holds bool8, for which there is no PTX type"),
        (np.zeros(4, ">f4"), "cannot be shared: .*native byte order"),
        (np.zeros(4, "M8[s]"), "cannot be shared: "),
        (np.array([None]), "cannot be shared: "),
        (np.zeros((3, 0), np.float32), r"is empty: shape \[3, 0\]"),
        (np.zeros(9, np.uint8)[1:].view(np.float32), "starts at 0x[0-9a-f]+; f32 must be on a 4-byte boundary"),
        ([1.0, 2.0], "a list has no DLPack"),
        (1.0, "a float has no DLPack"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_the_reason(emulator: Device, array: object, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        as_buffer(emulator, array)


def test_read_only_memory_may_be_read_and_not_written(emulator: Device) -> None:
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    x.flags.writeable = False
    frozen, launcher = as_buffer(emulator, x, name="frozen"), launcher_on(emulator)
    launcher(Scale(n=100), y=as_buffer(emulator, y), x=frozen, factor=1.0, offset=0)
    np.testing.assert_array_equal(y, x)
    with pytest.raises(LaunchError, match=r"argument total \(frozen f32\[100\]\) is written, but .* read-only"):
        launcher.prepare(Accumulate(n=100), total=frozen, x=as_buffer(emulator, y))
    with pytest.raises(DeviceError, match="must not be written"):
        frozen.fill()
    with pytest.raises(DeviceError, match="must not be written"):
        frozen.upload(y)
    assert not np.from_dlpack(frozen).flags.writeable  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        frozen.__dlpack__()  # a capsule without a version cannot say it
    assert x[99] == 99


@pytest.mark.parametrize("by", ["free", "del"])
def test_the_owner_lives_as_long_as_the_buffer(emulator: Device, by: str) -> None:
    array = np.arange(8, dtype=np.float32)
    owner = weakref.ref(array)
    buffer = as_buffer(emulator, array)
    view = buffer.view(16, (4,))
    del array
    gc.collect()
    assert owner() is not None
    np.testing.assert_array_equal(view.to_numpy(), [4, 5, 6, 7])
    if by == "free":
        buffer.free()
    else:
        del buffer, view
    gc.collect()
    assert owner() is None


def test_lent_memory_is_not_counted_as_allocated_and_not_freed(emulator: Device) -> None:
    array = np.ones(1000, np.float32)
    buffer = as_buffer(emulator, array)
    assert emulator.memory().allocated == 0
    buffer.free()
    assert array.sum() == 1000


def test_a_lent_buffer_is_dead_after_free(emulator: Device) -> None:
    x = as_buffer(emulator, np.ones(100, np.float32), name="x")
    y = GpuBuffer.zeros(emulator, F32, (100,))
    plan = launcher_on(emulator).prepare(Scale(n=100), y=y, x=x, factor=1.0, offset=0)
    plan()
    x.free()
    with pytest.raises(LaunchError, match=r"argument x \(x f32\[100\]\) was freed"):
        plan()
    for use in (x.free, x.to_numpy, x.touch, x.__dlpack__):
        with pytest.raises(DeviceError, match="was freed"):
            use()
    with pytest.raises(DeviceError, match="no live allocation holds"):
        emulator.fill(x.pointer, 4)


def test_the_same_memory_may_be_lent_twice_and_in_parts(emulator: Device) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    first, second, row = (as_buffer(emulator, a) for a in (array, array, array[1]))
    first.free()
    row.fill(0)
    np.testing.assert_array_equal(second.to_numpy(), [[0, 1, 2, 3], [0, 0, 0, 0], [8, 9, 10, 11]])
    row.free()
    second.upload(np.ones((3, 4), np.float32))
    assert array.sum() == 12


def test_copies_stay_within_what_was_lent(emulator: Device) -> None:
    array = np.zeros(64, np.uint8)
    buffer = as_buffer(emulator, array[:32])
    with pytest.raises(DeviceError, match="no live allocation holds"):
        emulator.fill(buffer.pointer, 33)


def test_the_sanitizer_knows_lent_memory_and_its_end() -> None:
    whole = np.arange(200, dtype=np.float32)
    with EmulatedDevice(sanitize=True) as device:
        launcher = launcher_on(device)
        y = np.zeros(100, np.float32)
        arguments = {"y": as_buffer(device, y), "factor": 1.0, "offset": 0}
        launcher(Scale(n=100), x=as_buffer(device, whole[:100]), **arguments)
        np.testing.assert_array_equal(y, whole[:100])
        with pytest.raises(SanitizerError, match="past the end of lent x"):
            launcher(ReadsBeyond(n=100), x=as_buffer(device, whole[:100], name="lent x"), **arguments)


def test_the_sanitizer_sees_loans_that_overlap() -> None:
    whole = np.ones(200, np.float32)
    frozen = whole[52:152]
    frozen.flags.writeable = False
    with EmulatedDevice(sanitize=True) as device:
        total, part = as_buffer(device, whole), as_buffer(device, frozen)
        launcher_on(device)(Accumulate(n=200), total=total, x=GpuBuffer.from_numpy(device, whole))
        y = GpuBuffer.zeros(device, F32, (100,))
        launcher_on(device)(Accumulate(n=100), total=y, x=part)
        assert whole.sum() == 400
        assert y.to_numpy().sum() == 200


def test_the_sanitizer_believes_that_a_touched_buffer_was_written() -> None:
    with EmulatedDevice(sanitize=True) as device:
        x, y = GpuBuffer.empty(device, F32, (100,)), GpuBuffer.zeros(device, F32, (100,))
        arguments = {"y": y, "x": x, "factor": 1.0, "offset": 0}
        np.from_dlpack(x)[:] = 3  # type: ignore[arg-type]
        with pytest.raises(SanitizerError, match="which nothing wrote"):
            launcher_on(device)(Scale(n=100), **arguments)
        x.touch()
        launcher_on(device)(Scale(n=100), **arguments)
        assert y.to_numpy().tolist() == [3] * 100


def test_memory_that_went_out_may_come_back_in() -> None:
    with EmulatedDevice(sanitize=True) as device:
        ours = GpuBuffer.empty(device, F32, (100,))
        array = np.from_dlpack(ours)  # type: ignore[arg-type]
        array[:] = 1
        back = as_buffer(device, array)
        assert back.pointer == ours.pointer
        launcher_on(device)(Accumulate(n=100), total=back, x=GpuBuffer.from_numpy(device, array))
        assert array.sum() == 200


def test_versions_count_our_writes_and_touches_through_whatever_buffer(emulator: Device) -> None:
    array = np.zeros(100, np.float32)
    buffer, other = as_buffer(emulator, array), as_buffer(emulator, np.zeros(4, np.float32))
    again, part = as_buffer(emulator, array), as_buffer(emulator, array[10:20])
    before = [b.version for b in (buffer, again, part, other)]
    launcher_on(emulator)(Accumulate(n=100), total=buffer, x=GpuBuffer.zeros(emulator, F32, (100,)))
    part.view(0, (4,)).touch()
    assert [b.version for b in (buffer, again, part, other)] == [before[0] + 2, before[1] + 2, before[2] + 2, before[3]]


def test_memory_that_is_lent_again_counts_as_written(emulator: Device) -> None:
    ours = GpuBuffer.zeros(emulator, F32, (100,))
    before = ours.version
    back = as_buffer(emulator, np.from_dlpack(ours))  # type: ignore[arg-type]
    assert ours.version == back.version > before
    back.fill(1)
    assert ours.version == before + 2


def test_a_write_through_another_executor_is_seen_by_the_owner() -> None:
    """Digits of what was there before are stale, whoever wrote and by whatever way the memory came to them."""
    raw = np.random.default_rng(0).integers(0, 64, (256, 144), np.uint8)
    with CudaExecutor("emulator") as owner, CudaExecutor("emulator") as other:
        owner.load_weight("w", raw, "Q4_K", (256, 256))
        x, fresh = owner.buffer(np.ones(256, np.float32)), np.linspace(-1, 1, 256, dtype=np.float32)
        for there in (as_buffer(other.device, x), as_buffer(other.device, np.from_dlpack(x))):  # type: ignore[arg-type]
            before = owner.q4k_gemv_cached_async("w", x, 256, 256).to_numpy()
            there.upload(fresh)
            np.testing.assert_array_equal(x.to_numpy(), fresh)
            got = owner.q4k_gemv_cached_async("w", x, 256, 256).to_numpy()
            np.testing.assert_array_equal(got, owner.q4k_gemv_cached_async("w", owner.buffer(fresh), 256, 256).to_numpy())
            assert not np.array_equal(got, before)
            fresh = fresh[::-1].copy()


def test_a_buffer_of_another_executor_is_no_operand() -> None:
    raw = np.random.default_rng(0).integers(0, 64, (256, 144), np.uint8)
    with CudaExecutor("emulator") as one, CudaExecutor("emulator") as other:
        one.load_weight("w", raw, "Q4_K", (256, 256))
        x, theirs = one.zeros(256), other.buffer(raw, name="theirs")
        words = r"another executor's, on emulator \(sm_90\); must be of this one, on emulator \(sm_90\)"
        with pytest.raises(LaunchError, match=f"input .* is {words}"):
            one.q4k_gemv_into("w", other.zeros(256), x, 256, 256)
        with pytest.raises(LaunchError, match=f"output .* is {words}"):
            one.q4k_gemv_into("w", x, other.zeros(256), 256, 256)
        with pytest.raises(LaunchError, match=f"theirs .* is {words}"):
            one.q4k_gemv_into(theirs, x, one.zeros(256), 256, 256)
        with pytest.raises(LaunchError, match=f"argument total is {words}"):
            one.launcher(Accumulate(n=256), total=other.zeros(256), x=x)


def test_launches_on_one_array_lent_twice_wait_for_each_other(emulator: Device) -> None:
    array, launcher = np.zeros(100, np.float32), launcher_on(emulator)
    written = launcher.prepare(Accumulate(n=100), total=as_buffer(emulator, array), x=GpuBuffer.zeros(emulator, F32, (100,)))
    half = as_buffer(emulator, array[48:98])
    read = launcher.prepare(Accumulate(n=50), total=GpuBuffer.zeros(emulator, F32, (50,)), x=half)
    assert dependencies([[*plan.accesses.values()] for plan in (written, read)]) == [(), (0,)]


def test_a_buffer_of_this_device_is_returned_as_it_is(emulator: Device) -> None:
    buffer = GpuBuffer.zeros(emulator, F32, (8,), "h")
    assert as_buffer(emulator, buffer) is as_buffer(emulator, buffer, F32) is buffer
    with pytest.raises(ArgumentError, match=r"h f32\[8\] cannot be shared as u32"):
        as_buffer(emulator, buffer, U32)


@pytest.mark.parametrize("dtype", [F32, BF16, B16])
def test_a_buffer_of_another_device_is_shared(emulator: Device, dtype: DType) -> None:
    other = EmulatedDevice()
    theirs = GpuBuffer.from_numpy(other, np.arange(8).astype(numpy_dtype(dtype)), dtype)
    ours = as_buffer(emulator, theirs)
    assert (ours.pointer, ours.dtype) == (theirs.pointer, U16 if dtype is B16 else dtype)
    theirs.free()
    other.close()
    np.testing.assert_array_equal(ours.to_numpy(), np.arange(8).astype(numpy_dtype(dtype)))


@pytest.mark.parametrize("end", ["free", "close"])
def test_an_array_keeps_the_memory_of_a_buffer_that_goes(end: str) -> None:
    device = EmulatedDevice()
    buffer = GpuBuffer.from_numpy(device, np.arange(1000, dtype=np.float32))
    block = weakref.ref(device.sharing.hold(buffer.pointer))
    array = np.from_dlpack(buffer)  # type: ignore[arg-type]
    if end == "free":
        buffer.free()
    device.close()
    del buffer
    gc.collect()
    assert array.sum() == 499500
    assert block() is not None
    del array
    gc.collect()
    assert block() is None


def test_a_buffer_of_the_emulator_has_no_cuda_array_interface(emulator: Device) -> None:
    assert not hasattr(GpuBuffer.zeros(emulator, F32, (8,)), "__cuda_array_interface__")


def test_streams_are_nothing_to_the_emulator(emulator: Device) -> None:
    with foreign_stream(emulator, 0):
        array = np.zeros(4, np.float32)
        as_buffer(emulator, array).fill(1)
    assert array.any()
