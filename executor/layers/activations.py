"""The buffers that tokens pass through on their way through a layer. What is done to them is transformer.py's business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from executor.layers.ffn import FfnBuffers
from executor.layers.graph.gathers import own_lines, own_shape
from executor.layers.graph.values import lines
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


@dataclass(frozen=True)
class SplitActivations:
    """What comes to the others where the layer is split: a rank's part of the residual stream, and what is gathered of the
    parts of all. pieces: as own_lines."""

    stream: GpuBuffer  # [hidden / ranks]
    attended: GpuBuffer  # [heads * head_dim]
    pieces: GpuBuffer


@dataclass(frozen=True, kw_only=True)
class Activations(AttentionRows):
    """What it passes through in all, shared by all layers. Where the layer is split, q, k, v, attended, projected and what the
    feed-forward computes are a rank's own part, and hidden and normed are whole on each."""

    attended: GpuBuffer  # [heads, head_dim]
    projected: GpuBuffer  # [hidden]: what attention or the feed-forward adds to the stream
    ffn: FfnBuffers
    split: SplitActivations | None = None

    @property
    def stream(self) -> GpuBuffer:
        """The part of `hidden` that is this device's to add to."""
        return self.hidden if self.split is None else self.split.stream

    @classmethod
    def of(cls, workspace: Workspace, s: LayerShape, rows: int = 1, hidden: GpuBuffer | None = None) -> Self:
        """In this workspace; `hidden`: a residual stream that lies elsewhere."""

        def heads(name: str, count: int) -> GpuBuffer:
            return workspace.buffer(name, (count, s.head_dim) if rows == 1 else (rows, count, s.head_dim))

        ranks, own = s.ranks, s.own
        split = None
        if ranks > 1:
            split = SplitActivations(
                workspace.buffer("own part of hidden", own_shape(rows, s.hidden, ranks)),
                workspace.buffer("attended by all", lines(rows, s.q_dim)),
                own_lines(workspace, rows),
            )
        return cls(
            hidden=hidden if hidden is not None else workspace.buffer("hidden", lines(rows, s.hidden)),
            normed=workspace.buffer("normed", lines(rows, s.hidden)),
            q=heads("q", own.heads),
            k=heads("k", own.kv_heads),
            v=heads("v", own.kv_heads),
            attended=heads("attended", own.heads),
            projected=workspace.buffer("projected", own_shape(rows, s.hidden, ranks)),
            ffn=FfnBuffers.of(workspace, s.ff, rows, ranks),
            rows=rows,
            split=split,
        )
