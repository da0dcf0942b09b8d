"""The position of the current token, as kernels read it: two buffers of a workspace, which are written only when they do not
hold it already."""

from __future__ import annotations

import numpy as np

from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from ptxgen.types import U32


class TokenPosition:
    """The position in one workspace. Other writes to the buffers (a replay from outside) are noticed by their version."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._held: tuple[object, ...] | None = None
        self._generation: int | None = None  # of the workspace that the buffers were taken from
        self._buffers: tuple[GpuBuffer, GpuBuffer]

    @property
    def position(self) -> GpuBuffer:
        """u32[1]: of the current token in its sequence."""
        return self._both()[0]

    @property
    def length(self) -> GpuBuffer:
        """u32[1]: position + 1, how many keys it attends to."""
        return self._both()[1]

    def move_to(self, position: int) -> None:
        """Copy it to the device unless it is there."""
        if self._held != self._state(position):
            self._held = None
            self.position.upload(np.array([position], np.uint32))
            self.length.upload(np.array([position + 1], np.uint32))
            self.moved_to(position)

    def moved_to(self, position: int) -> None:
        """A kernel has left this position in the buffers."""
        self._held = self._state(position)

    def _both(self) -> tuple[GpuBuffer, GpuBuffer]:
        workspace = self._workspace
        if self._generation != workspace.generation:
            self._buffers = workspace.buffer("position", (1,), U32), workspace.buffer("length", (1,), U32)
            self._generation = workspace.generation
        return self._buffers

    def _state(self, position: int) -> tuple[object, ...]:
        where, length = self._both()
        return position, where.allocation, where.allocation.version, length.allocation, length.allocation.version
