"""The feed-forward networks as operations, each written once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from executor.layers.graph.gathers import GatherParts, own_shape
from executor.layers.graph.operations import GeluOf, Operation, Swiglu
from executor.layers.graph.products import project
from executor.layers.graph.values import StepValue, lines
from executor.layers.projection import Projection
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace


@dataclass(frozen=True)
class FfnBuffers:
    """What a feed-forward network computes in, f32[ff] each, or f32[tokens, ff]. Of one that ranks share: f32[ff / ranks] or
    f32[tokens, ff / ranks], and `gathered` is what all have activated, f32[ff] or f32[tokens, ff]."""

    gate: GpuBuffer
    up: GpuBuffer
    activated: GpuBuffer
    gathered: GpuBuffer | None = None

    @classmethod
    def of(cls, workspace: Workspace, ff: int, rows: int = 1, ranks: int = 1) -> Self:
        """In this workspace."""
        names = "ffn gate", "ffn up", "ffn activated"
        gate, up, activated = (workspace.buffer(name, own_shape(rows, ff, ranks)) for name in names)
        return cls(gate, up, activated, workspace.buffer("ffn activated by all", lines(rows, ff)) if ranks > 1 else None)


def swiglu(
    gate: Projection, up: Projection, b: FfnBuffers, x: StepValue, activated: StepValue, layer: int | None = None
) -> Iterator[Operation]:
    """activated = silu(gate(x)) * up(x), of all ranks; x, activated: f32[hidden] and f32[ff] of each token."""
    gated, upped = (StepValue.of(one, x.tokens) for one in (b.gate, b.up))
    yield project("ffn_gate", gate, x, gated, layer)
    yield project("ffn_up", up, x, upped, layer)
    if b.gathered is None:
        yield Swiglu(name="ffn_swiglu", layer=layer, gate=gated, up=upped, y=activated)
        return
    own = StepValue.of(b.activated, x.tokens)
    yield Swiglu(name="ffn_swiglu", layer=layer, gate=gated, up=upped, y=own)
    yield GatherParts(name="ffn_swiglu", layer=layer, own=own, whole=activated)


def activated(b: FfnBuffers, tokens: int = 1) -> StepValue:
    """What `down` multiplies."""
    return StepValue.of(b.activated if b.gathered is None else b.gathered, tokens)


def swiglu_ffn(
    gate: Projection, up: Projection, down: Projection, b: FfnBuffers, *, x: StepValue, y: StepValue
) -> Iterator[Operation]:
    """y = down(silu(gate(x)) * up(x)); x, y: f32[hidden]."""
    made = activated(b, x.tokens)
    yield from swiglu(gate, up, b, x, made)
    yield project("ffn_down", down, made, y)


def gelu_ffn(up: Projection, down: Projection, b: FfnBuffers, *, x: StepValue, y: StepValue) -> Iterator[Operation]:
    """y = down(gelu(up(x))); x, y: f32[hidden]."""
    upped, made = StepValue.of(b.up), StepValue.of(b.activated)
    yield project("ffn_up", up, x, upped)
    yield GeluOf(name="ffn_gelu", x=upped, y=made)
    yield project("ffn_down", down, made, y)
