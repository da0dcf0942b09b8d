"""How a test launches a kernel of several ranks on devices of its own, as the conformance kit does on the emulator. No test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.device import Device
from executor.launch.launch import Launcher, launch_together
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from executor.memory.peers import peer_addresses
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType


def launched(
    devices: Sequence[Device], kernel: KernelType, arguments: Mapping[str, Any], times: int = 1
) -> dict[str, NDArray[Any]]:
    """What every array holds on each device after so many launches, but those of addresses. `arguments` are those of all ranks,
    as KernelType.inputs gives them."""
    signature = kernel.signature()
    arrays = {name: one for name, one in signature.items() if isinstance(one, Array)}
    held = {
        name: [GpuBuffer.from_numpy(device, arguments[name][r], name=name) for r, device in enumerate(devices)]
        for name, one in arrays.items()
        if not one.addresses_of
    }
    at = {name: peer_addresses(held[one.addresses_of], name) for name, one in arrays.items() if one.addresses_of}
    scalars = {name: arguments[name] for name in signature if name not in arrays}
    everything = held | at | scalars
    plans = [
        Launcher(device, Modules(device, limit_bytes=0)).prepare(kernel, **{name: everything[name][r] for name in signature})
        for r, device in enumerate(devices)
    ]
    for _ in range(times):
        launch_together(plans)
    return {name: np.stack([buffer.to_numpy() for buffer in buffers]) for name, buffers in held.items()}
