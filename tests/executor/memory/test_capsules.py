"""DLPack's capsules, given and taken: whose memory, how long, and what is refused."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.base.errors import SharingError
from executor.device import Device
from executor.memory.buffers import GpuBuffer
from executor.memory.interop import as_buffer
from ptxgen.errors import ArgumentError
from ptxgen.types import BF16, F32


def test_numpy_refuses_bf16_by_itself(emulator: Device) -> None:
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(GpuBuffer.zeros(emulator, BF16, (8,)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"copy": True}, "makes no copy"), ({"dl_device": (2, 0)}, "on DLPack device"), ({"stream": 1}, "stream 1 means nothing")],
)
def test_an_export_that_is_impossible_is_refused(emulator: Device, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(SharingError, match=words):
        GpuBuffer.zeros(emulator, F32, (8,)).__dlpack__(**asked)


def test_an_export_that_nobody_takes_lets_the_memory_go(emulator: Device) -> None:
    buffer = GpuBuffer.zeros(emulator, F32, (8,))
    block = weakref.ref(emulator.sharing.hold(buffer.pointer))
    capsule = buffer.__dlpack__(max_version=(1, 0))
    buffer.free()
    assert block() is not None
    del capsule
    assert block() is None


class OldProducer:
    """Knows DLPack as it was before version 1.0, and gives each capsule once."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, stream: None = None) -> object:
        return self.array.__dlpack__()


def test_a_producer_from_before_version_one_is_understood(emulator: Device) -> None:
    array = np.arange(8, dtype=np.float32)
    assert as_buffer(emulator, OldProducer(array)).pointer == array.ctypes.data


class Altered(OldProducer):
    """Gives capsules that say something else at one place of their struct (DLManagedTensorVersioned, dlpack.h)."""

    def __init__(self, offset: int, value: int) -> None:
        super().__init__(np.zeros(8, np.float32))
        self.offset, self.value = offset, value

    def __dlpack__(self, **_: Any) -> object:  # type: ignore[override]
        capsule = self.array.__dlpack__(max_version=(1, 0))
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
        ctypes.c_uint32.from_address(pointer(capsule, b"dltensor_versioned") + self.offset).value = self.value
        return capsule


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (0, 2, r"DLPack version is 2\.\d; up to 1\.x"),
        (24, 2, "it gave a copy"),
        (52, 0x0004_2002, "holds float32 x 4"),
        (52, 0x0001_0802, "holds float8,"),
        (52, 0x0001_080A, "holds DLPack type 10 of 8,"),
    ],
)
def test_a_capsule_that_cannot_be_used_is_refused(emulator: Device, offset: int, value: int, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        as_buffer(emulator, Altered(offset, value))


def test_memory_that_a_capsule_calls_read_only_is_read_only(emulator: Device) -> None:
    assert as_buffer(emulator, Altered(24, 1)).allocation.read_only
    assert not as_buffer(emulator, Altered(24, 0)).allocation.read_only


def test_a_consumed_capsule_is_refused(emulator: Device) -> None:
    class Once(OldProducer):
        def __dlpack__(self, **_: Any) -> object:  # type: ignore[override]
            capsule = self.array.__dlpack__()
            rename = ctypes.pythonapi.PyCapsule_SetName
            rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
            rename(capsule, USED)
            return capsule

    with pytest.raises(ArgumentError, match="not an unconsumed DLPack capsule"):
        as_buffer(emulator, Once(np.zeros(8, np.float32)))


USED = b"used_dltensor"  # a capsule keeps the address of its name, not the name


def test_memory_of_a_gpu_is_refused_by_the_emulator(emulator: Device) -> None:
    class OnGpu(OldProducer):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 3

    class OnlyArrayInterface:
        __cuda_array_interface__ = {"version": 3}  # noqa: RUF012

    with pytest.raises(ArgumentError, match=r"OnGpu\) is in cuda:3; emulator .* takes memory in host memory; use .cpu\(\)"):
        as_buffer(emulator, OnGpu(np.zeros(1)), name="x")
    with pytest.raises(ArgumentError, match="is in memory of a GPU; emulator"):
        as_buffer(emulator, OnlyArrayInterface())


ENDS = """
import numpy as np
from executor.memory.buffers import GpuBuffer
from executor.device.emulated import EmulatedDevice
from executor.memory.interop import as_buffer
from ptxgen.types import F32

device = EmulatedDevice()

def arrays():
    return [np.from_dlpack(GpuBuffer.zeros(device, F32, (1000,))) for _ in range(100)]

def fails(_):
    raise KeyError("seen")

for _ in range(100):
    try:
        [arrays(), fails(arrays())]  # dropped while the exception is under way
    except KeyError as error:
        assert error.args == ("seen",)
kept = arrays()  # these and those below are there when the interpreter ends
cycle = [arrays(), as_buffer(device, np.zeros(4))]
cycle.append(cycle)
print("ended well")
"""


def test_arrays_may_go_during_an_exception_and_at_the_end_of_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended well\n", "")
