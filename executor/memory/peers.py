"""Where the ranks of a kernel of several devices find each other's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from executor.base.errors import DeviceError
from executor.memory.buffers import GpuBuffer

if TYPE_CHECKING:
    from executor.device.protocol import Device


def peer_addresses(buffers: Sequence[GpuBuffer], name: str = "") -> list[GpuBuffer]:
    """On the device of each buffer, the addresses of all of them in their order, as u64[ranks]: what `addresses(...)` is in the
    signature of a kernel. Kernels of each device may use the memory of the others from then on (KernelRunner.reach).

    Waits until the devices have done what was started before, such as filling the buffers: what a device stores into another's
    memory is ordered after its own work alone. The buffers must stay as long as a kernel uses the addresses. DeviceError
    unless they are alike in dtype and shape, each on a device of its own, and their devices reach each other."""
    if len({(buffer.dtype, buffer.shape) for buffer in buffers}) > 1:
        raise DeviceError(f"the arrays of all ranks are alike, and these are not: {', '.join(map(str, buffers))}")
    devices = [cast("Device", buffer.device) for buffer in buffers]
    if len({id(device) for device in devices}) < len(devices):
        raise DeviceError(
            f"the arrays of all ranks are on a device each, and these are on {', '.join(d.name for d in devices)}"
        )
    for device in devices:
        for other in devices:
            if other is not device:
                device.reach(other)
    for device in devices:
        device.synchronize()
    pointers = np.array([buffer.pointer for buffer in buffers], np.uint64)
    return [GpuBuffer.from_numpy(device, pointers, name=name) for device in devices]
