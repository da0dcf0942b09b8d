"""Queries, keys and values of rows of the residual stream, ready for attention: which kernels run, on which buffers. What keeps
them, and what attends, is not its business; transformer.py's layers do these steps and those in fewer launches."""

from __future__ import annotations

from collections.abc import Mapping

from executor.layers.attention import biases
from executor.layers.calls import LaunchQueue
from executor.layers.gemv import project
from executor.layers.indexed import ValidatedLayerWeights
from executor.layers.projection import Projection
from executor.layers.rows import enqueue_rows
from executor.layers.shape import LayerShape
from executor.memory.buffers import GpuBuffer
from ptxgen.kernels.activation.bias import BatchedBiasBroadcastAdd
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.rope.rope import BatchedRope


def attention_inputs(
    launch: LaunchQueue,
    s: LayerShape,
    w: ValidatedLayerWeights,
    projections: Mapping[str, Projection],
    outputs: Mapping[str, GpuBuffer],
    *,
    x: GpuBuffer,
    normed: GpuBuffer,
    positions: GpuBuffer,
    rope_table: GpuBuffer,
) -> None:
    """outputs become what attention takes of x, by role (`q`, `k`, `v`), by these projections of its norm; `w` has the rest.

    x, normed: f32[m, hidden]; outputs: f32[m, q_dim], f32[m, kv_dim] twice; positions: u32[m]; rope_table: f32[max_len,
    rope_dim / 2, 2]. A row at a position of max_len or more is not rotated."""
    (m,) = positions.shape
    enqueue_rows(launch, "attn_norm", RmsNorm(s.hidden), m, y=normed, x=x, gamma=w.attn_norm, eps=s.rms_eps)
    for role, projection in projections.items():
        project(launch, f"attn_{role}", projection, x=normed, y=outputs[role])
    for name, bias in biases(w).items():
        add = BatchedBiasBroadcastAdd(n=bias.shape[0], m=m)
        launch(f"attn_{name}", add, x=outputs[name[0]], bias=bias)
    for role, count, gamma in (("q", s.heads, w.attn_q_norm), ("k", s.kv_heads, w.attn_k_norm)):
        if gamma is not None:
            heads = outputs[role].view(0, (m * count, s.head_dim))
            norm = PerHeadRmsNorm(heads=m * count, head_dim=s.head_dim)
            launch(f"attn_{role}_norm", norm, x=heads, gamma=gamma, eps=s.rms_eps)
        rope = BatchedRope(s.rope_style == "neox", True, count, s.head_dim, rope_table.shape[0], s.rope_dim, m=m)
        heads = outputs[role].view(0, (m, count, s.head_dim))
        launch(f"rope_{role}", rope, x=heads, table=rope_table, positions=positions)
