"""The memory by which ranks send each other int8 planes."""

from __future__ import annotations

from typing import Any

import numpy as np

from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.types import U64


def messages(workspace: Workspace, kernel: KernelType, prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """By which the ranks send each other what a kernel makes, by the names of its arguments after a prefix; and what the
    kernels take that receive it (compose.receive_parts). Launches of one kernel share them."""
    buffers = {}
    for name in ("numbers", "inbox"):
        array = kernel.signature()[prefix + name]
        assert isinstance(array, Array)
        buffers[name] = workspace.buffer(f"{name} of {kernel}", array.shape, array.dtype, zeros=True)
    numbers, inbox = buffers["numbers"], buffers["inbox"]
    sending = {**buffers, "inboxes": addresses(workspace, inbox)}
    received = {"inbox": inbox.view(0, inbox.shape[-2:]), "number": numbers.view(0, (1,)), "rank": 0}
    return {**{prefix + name: buffer for name, buffer in sending.items()}, "rank": 0}, received


def addresses(workspace: Workspace, buffer: GpuBuffer) -> GpuBuffer:
    """u64[ranks]: where each rank has the buffer."""
    table = workspace.buffer(f"addresses of {buffer.name}", (workspace.device.ranks,), U64)
    table.upload(np.array(workspace.device.peers(buffer.pointer), np.uint64))
    return table
