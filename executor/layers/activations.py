"""The buffers that tokens pass through on their way through a layer. What is done to them is transformer.py's business."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    v: GpuBuffer  # [kv_heads, value_dim]
    rows: int = 1
    before_norm: Mapping[str, GpuBuffer] = field(default_factory=dict)
    """By `attn_q` and `attn_k`, what these are before they are normalised as whole rows, where the form does that."""


@dataclass(frozen=True)
class SplitActivations:
    """What comes to the others where the layer is split: a rank's part of the residual stream, and what is gathered of the
    parts of all. pieces: as own_lines."""

    stream: GpuBuffer  # [hidden / ranks]
    attended: GpuBuffer  # [heads * value_dim]
    pieces: GpuBuffer


@dataclass(frozen=True, kw_only=True)
class Activations(AttentionRows):
    """What it passes through in all, shared by all layers. Where the layer is split, q, k, v, attended, projected and what the
    feed-forward computes are a rank's own part, and hidden and normed are whole on each."""

    attended: GpuBuffer  # [heads, value_dim]
    projected: GpuBuffer  # [hidden]: what attention or the feed-forward adds to the stream
    ffn: FfnBuffers
    split: SplitActivations | None = None
    spare: GpuBuffer | None = None  # [hidden]: a second normed vector, of forms that have one
    gate: GpuBuffer | None = None  # [heads, value_dim]: what gates attended, where the form does that
    gated: GpuBuffer | None = None  # [heads, value_dim]: the product of both
    attended_normed: GpuBuffer | None = None  # [heads * value_dim], and
    activated_normed: GpuBuffer | None = None  # [ff]: what the last matrices multiply, where that is normalised

    @property
    def stream(self) -> GpuBuffer:
        """The part of `hidden` that is this device's to add to."""
        return self.hidden if self.split is None else self.split.stream

    @classmethod
    def of_layers(cls, workspace: Workspace, shapes: Sequence[LayerShape], rows: int = 1) -> tuple[Self, ...]:
        """Those of each layer, in the same memory. To be made by Workspace.laid_out: a larger layer may need more of it."""
        made = {shape: cls.of(workspace, shape, rows) for shape in dict.fromkeys(shapes)}
        return tuple(made[shape] for shape in shapes)

    @classmethod
    def of(cls, workspace: Workspace, s: LayerShape, rows: int = 1, hidden: GpuBuffer | None = None) -> Self:
        """In this workspace; `hidden`: a residual stream that lies elsewhere."""

        def heads(name: str, count: int, width: int = s.value_width) -> GpuBuffer:
            count = max(count, 1)  # of a layer without attention, which uses none
            return workspace.buffer(name, (count, width) if rows == 1 else (rows, count, width))

        ranks, own = s.ranks, s.own
        at = s.form.norms
        gates = ("attention gate", "gated attention") if s.form.gated_attention else ()
        gate, gated = [heads(name, own.heads) for name in gates] or (None, None)
        rows_of = {"attn_q": s.q_dim, "attn_k": s.k_dim} if s.form.qk_norm == "row" else {}
        split = None
        if ranks > 1:
            split = SplitActivations(
                workspace.buffer("own part of hidden", own_shape(rows, s.hidden, ranks)),
                workspace.buffer("attended by all", lines(rows, s.attended_dim)),
                own_lines(workspace, rows),
            )
        return cls(
            hidden=hidden if hidden is not None else workspace.buffer("hidden", lines(rows, s.hidden)),
            normed=workspace.buffer("normed", lines(rows, s.hidden)),
            q=heads("q", own.heads, s.head_dim),
            k=heads("k", own.kv_heads, s.head_dim),
            v=heads("v", own.kv_heads),
            attended=heads("attended", own.heads),
            projected=workspace.buffer("projected", own_shape(rows, s.hidden, ranks)),
            ffn=FfnBuffers.of(workspace, max(s.ff, 1), rows, ranks),
            rows=rows,
            before_norm={name: workspace.buffer(f"{name} before its norm", lines(rows, n)) for name, n in rows_of.items()},
            split=split,
            spare=workspace.buffer("normed too", lines(rows, s.hidden)) if s.form.norms_twice else None,
            gate=gate,
            attended_normed=None if at.attended is None else workspace.buffer("attended, normed", lines(rows, s.attended_dim)),
            activated_normed=None if at.activated is None else workspace.buffer("activated, normed", lines(rows, s.ff)),
            gated=gated,
        )
