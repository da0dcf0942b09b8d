"""The buffers that tokens pass through on their way through a layer. What is done to them is transformer.py's business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from executor.layers.ffn import FfnBuffers
from executor.layers.rows import lines
from executor.layers.shape import LayerShape
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class AttentionRows:
    """What one token passes through up to its attention, f32; several rows have [rows, ...] of each."""

    hidden: GpuBuffer  # [hidden]: the residual stream
    normed: GpuBuffer  # [hidden]
    q: GpuBuffer  # [heads, head_dim]
    k: GpuBuffer  # [kv_heads, head_dim]
    v: GpuBuffer  # [kv_heads, head_dim]
    rows: int = 1


@dataclass(frozen=True, kw_only=True)
class Activations(AttentionRows):
    """What it passes through in all, shared by all layers."""

    attended: GpuBuffer  # [heads, head_dim]
    projected: GpuBuffer  # [hidden]: what attention or the feed-forward adds to the stream
    ffn: FfnBuffers

    @classmethod
    def of(cls, workspace: Workspace, s: LayerShape, rows: int = 1, hidden: GpuBuffer | None = None) -> Self:
        """In this workspace; `hidden`: a residual stream that lies elsewhere."""

        def heads(name: str, count: int) -> GpuBuffer:
            return workspace.buffer(name, (count, s.head_dim) if rows == 1 else (rows, count, s.head_dim))

        return cls(
            hidden=hidden if hidden is not None else workspace.buffer("hidden", lines(rows, s.hidden)),
            normed=workspace.buffer("normed", lines(rows, s.hidden)),
            q=heads("q", s.heads),
            k=heads("k", s.kv_heads),
            v=heads("v", s.kv_heads),
            attended=heads("attended", s.heads),
            projected=workspace.buffer("projected", lines(rows, s.hidden)),
            ffn=FfnBuffers.of(workspace, s.ff, rows),
            rows=rows,
        )
