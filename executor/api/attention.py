"""The steps of a layer that know positions, one by one: rotary embedding, and attention over the sequence's keys and values.
What is launched is executor/layers' business."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import Any

from executor.api.positions import RowPositions, row_positions
from executor.base.arguments import described, whole
from executor.base.errors import LaunchError
from executor.layers.attention import append, attend
from executor.layers.graph.values import StepValue
from executor.layers.layer_runner import LayerRunner
from executor.layers.operands import shape_of
from executor.layers.sequence import LayerSequence
from executor.layers.session import Session
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError
from ptxgen.kernels.rope.rope import Rope


@dataclass(frozen=True)
class AttentionRunner:
    """Steps of one session on the sequence of `layers`; see CudaExecutor for what the arguments may be. ArgumentError before
    init_kv_cache, which says what heads and rotations are like."""

    session: Session
    layers: LayerRunner

    def rope(self, x: Any, position: Any) -> None:
        """Rotate the heads of queries or keys as init_kv_cache says, in place. x: f32[heads, head_dim] or flat, or m of it.

        position: a number, or m of them for m rows, of the host or u32[m] on the device. Those on the device are read when the
        kernel runs, and one that the cache has no room for rotates nothing; a capture takes no others. `sequence.position` is
        that of the current token, which `replay(position)` sets. ArgumentError for a position of the host that has no room."""
        s, recording = self.layers.sequence, self.session.recording
        if isinstance(position, Integral) and recording is None:
            position = whole("position", position, 0, s.cache.max_len - 1)
            self._rotate(s, x, position)
            return
        rows = row_positions(self.session, position, s.cache.max_len)
        self._rotate(s, x, rows)
        if recording is not None and rows.buffer.pointer == s.position.pointer:
            recording.takes_position(s)

    def attention(self, layer: int, q: Any, k: Any, v: Any, position: Any, out: Any = None) -> GpuBuffer:
        """What the token at `position` attends to in a layer: k and v, f32[kv_heads, head_dim] or flat, become the keys and
        values of this position, and q, f32[heads, head_dim] or flat, attends to all up to it. q and k are rotated already. The
        result has the shape of q; `out` gets it and is returned (default: a new buffer).

        position: from 0 to the layer's next one, and the layer forgets what came after; in a capture `sequence.position`, which
        `replay(position)` sets. Raises ArgumentError for a position that would leave a gap or has no room."""
        s, recording = self.layers.sequence, self.session.recording
        layer, shape = s.require_layer(layer), shape_of(q, "q")
        query = self.session.vector(q, (s.heads, s.head_dim), "q")
        key, value = (self.session.vector(x, (s.kv_heads, s.head_dim), name) for x, name in ((k, "k"), (v, "v")))
        if recording is None:
            position = whole("position", position)
        elif not isinstance(position, GpuBuffer) or position.pointer != s.position.pointer:
            raise LaunchError(
                f"position ({described(position)}) would be the same in every replay; in a capture give sequence.position, "
                "which replay(position) sets"
            )
        with self.session.result(*shape, out=out) as made, self.session.launches(layer) as launch:
            cache = s.cache.layer(layer)
            append(launch, cache, k=key, v=value, position=s.token.position)
            attend(launch, cache, q=query, out=StepValue.of(made.view(0, query.shape), 1), length=s.token.length, split=s.split)
            if recording is None:
                s.begin(position, layer)
        if recording is None:
            s.commit(position, layer)
        else:
            recording.runs_layer(s, layer)
        return made

    def incremental_attention(self, layer: int, q: Any, k: Any, v: Any) -> tuple[GpuBuffer, int]:
        """As `attention` for the layer's next token, in a new buffer f32[heads, head_dim]; and how many positions q attended
        to."""
        self.session.require_no_capture("the position is copied to the device")
        s = self.layers.sequence
        position = s.lengths[s.require_layer(layer)]
        query = self.session.vector(q, (s.heads, s.head_dim), "q")
        return self.attention(layer, query, k, v, position), position + 1

    def _rotate(self, s: LayerSequence, x: Any, position: int | RowPositions) -> None:
        m = position.buffer.size if isinstance(position, RowPositions) else 1
        shape = shape_of(x, "x")
        heads, rest = divmod(prod(shape), m * s.head_dim)
        if rest or not heads:
            raise ArgumentError(
                f"x has the shape {list(shape)}; must be heads of {s.head_dim} values, as many for each of {m} positions"
            )
        neox, room = s.rope_style == "neox", s.cache.max_len
        values = self.session.vector(x, shape, "x")
        with self.session.launches() as launch:
            if isinstance(position, RowPositions):
                kernel = Rope(neox, True, heads, s.head_dim, room, s.rope_dim, m=m)
                rows = values.view(0, (m, heads, s.head_dim))
                launch("rope", kernel, x=rows, table=s.rope_table, positions=position.buffer)
                position.upload()
            else:
                one = Rope(neox, False, heads, s.head_dim, room, s.rope_dim)
                launch("rope", one, x=values.view(0, (heads, s.head_dim)), table=s.rope_table, position=position)
