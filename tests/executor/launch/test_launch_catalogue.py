"""Every registered kernel is launched wrongly, an argument at a time: each mistake is an error that names the argument."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import pytest

from executor.base.errors import LaunchError
from executor.launch.launch import Launcher
from executor.memory.buffers import DeviceAllocation, GpuBuffer
from ptxgen.conformance.type_checks import smallest
from ptxgen.dsl.arguments import Array, Scalar, Signature
from ptxgen.kernels.registry import KernelEntry
from ptxgen.types import U8, U64, DType
from tests.executor.launch.fake import NoModules, RememberingDevice
from tests.ptxgen.kernels.catalogue import ENTRIES

FAR = 1 << 32  # bytes between two arrays, which nothing allocates


@pytest.fixture
def device() -> Iterator[RememberingDevice]:
    with RememberingDevice() as device:
        yield device


def right(device: RememberingDevice, signature: Signature) -> dict[str, Any]:
    """Arguments that fit: memory that is not there, because nothing runs; scalars at their lower bound."""
    given: dict[str, Any] = {}
    for number, (name, argument) in enumerate(signature.items(), start=1):
        if isinstance(argument, Array):
            given[name] = placed(device, number * FAR, argument)
        else:
            given[name] = argument.low or 0
    return given


def placed(
    device: RememberingDevice, address: int, array: Array, dtype: DType | None = None, shape: tuple[int, ...] = ()
) -> GpuBuffer:
    dtype, shape = dtype or array.dtype, shape or array.shape
    return GpuBuffer(DeviceAllocation(device, address, dtype.bytes * prod(shape)), address, dtype, shape)


def mistakes(device: RememberingDevice, argument: Array | Scalar, value: Any) -> Iterator[tuple[str, Any]]:
    """What may be passed for an argument by mistake, and what the error must say."""
    yield "is", None
    if isinstance(argument, Scalar):
        yield "is", "7"
        if argument.low is not None:
            yield "must be", argument.low - 1
        if argument.high is not None:
            yield "must be", argument.high + 1
        return
    yield "must be", placed(device, value.pointer, argument, U8 if argument.dtype is U64 else U64)
    yield "must be", placed(device, value.pointer, argument, shape=(argument.shape[0] + 1, *argument.shape[1:]))
    yield "null", placed(device, 0, argument)
    yield (
        "but its memory ends",
        GpuBuffer(DeviceAllocation(device, value.pointer, argument.nbytes - 1), value.pointer, argument.dtype, argument.shape),
    )
    if argument.align > 1:
        yield "boundary", placed(device, value.pointer + argument.align // 2, argument)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_wrong_argument_of_any_kernel_is_refused_by_name_and_nothing_is_launched(
    entry: KernelEntry, device: RememberingDevice
) -> None:
    kernel = smallest(entry)
    signature = kernel.signature()
    launcher, good = Launcher(device, NoModules()), right(device, signature)
    for name, argument in signature.items():
        with pytest.raises(LaunchError, match=rf"needs {name} \("):
            launcher(kernel, **{other: value for other, value in good.items() if other != name})
        for said, value in mistakes(device, argument, good[name]):
            with pytest.raises(LaunchError, match=rf"argument {name} .*{said}"):
                launcher(kernel, **{**good, name: value})
    with pytest.raises(LaunchError, match="has no argument nothing"):
        launcher(kernel, **good, nothing=1)
    assert device.launches == []
    if (ranks := kernel.launch().ranks) > 1:
        with pytest.raises(LaunchError, match=rf"waits for its launches on {ranks} devices; launch them all"):
            launcher(kernel, **good)
        assert device.launches == []
        return
    launcher(kernel, **good)
    assert len(device.launches) == 1
