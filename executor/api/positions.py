"""Positions of rows as callers give them: numbers of the host, or u32 on the device, which is all that a capture takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import array, described
from executor.base.errors import LaunchError
from executor.layers.operands import vector
from executor.layers.session import Session
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError
from ptxgen.types import U32


@dataclass(frozen=True)
class RowPositions:
    """buffer: u32[m], where kernels read them; host: what has to be there when they do, None if the caller sees to that."""

    buffer: GpuBuffer
    host: NDArray[np.uint32] | None = None

    def upload(self) -> None:
        """Put them where they are read."""
        if self.host is not None:
            self.buffer.upload(self.host)


def row_positions(session: Session, positions: Any, room: int, m: int | None = None) -> RowPositions:
    """The positions of m rows, or of as many as there are, each below `room` if they are of the host, which the workspace then
    has memory for. ArgumentError for others, LaunchError for those of the host in a capture."""
    if isinstance(positions, GpuBuffer):
        return RowPositions(vector(session.device, positions, (positions.size if m is None else m,), "positions", U32))
    if session.recording is not None:
        raise LaunchError(
            f"positions ({described(positions)}) would be copied to the device, which cannot be captured; give a GpuBuffer "
            f"u32[{'m' if m is None else m}], which each replay reads"
        )
    host = _host_positions(positions, room, m)
    return RowPositions(session.workspace.buffer("positions of rows", host.shape, U32), host)


def _host_positions(positions: Any, room: int, m: int | None) -> NDArray[np.uint32]:
    values = array("positions", positions)
    if values.dtype.kind not in "iu" or values.ndim != 1 or not values.size or len(values) != (m or len(values)):
        count = "m" if m is None else m
        given, needed = f"{values.dtype}{list(values.shape)}", f"{count} whole numbers, one a row, or a GpuBuffer u32[{count}]"
        raise ArgumentError(f"positions are {given}; must be {needed}")
    for row, position in enumerate(values):
        if not 0 <= position < room:
            raise ArgumentError(f"position {position} of row {row} does not fit; the cache has room for 0 to {room - 1}")
    return values.astype(np.uint32)
