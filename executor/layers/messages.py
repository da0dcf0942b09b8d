"""What ranks send each other words by: inboxes and numbers of messages, in the workspace of whoever launches."""

from __future__ import annotations

from typing import Any

import numpy as np

from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from ptxgen.dsl.kernel_type import Array, KernelType
from ptxgen.types import U64


def message_of(workspace: Workspace, kernel: KernelType) -> dict[str, Any]:
    """The arguments by which a kernel sends (collective/message.py): its launches share them, one after another. `rank` is set
    by the devices."""
    arrays = {name: one for name, one in kernel.signature().items() if isinstance(one, Array)}
    buffers = {
        name: workspace.buffer(f"{name} of {kernel}", arrays[name].shape, arrays[name].dtype, zeros=True)
        for name in ("y_numbers", "y_inbox")
    }
    return {**buffers, "y_inboxes": addresses_of(workspace, buffers["y_inbox"]), "rank": 0}


def addresses_of(workspace: Workspace, buffer: GpuBuffer) -> GpuBuffer:
    """u64[ranks]: where each rank has the buffer."""
    table = workspace.buffer(f"addresses of {buffer.name}", (workspace.device.ranks,), U64)
    table.upload(np.array(workspace.device.peers(buffer.pointer), np.uint64))
    return table
