"""The feed-forward networks as operations, each written once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from executor.layers.graph.gathers import GatherParts, own_shape
from executor.layers.graph.operations import Activate, Operation, Swiglu
from executor.layers.graph.products import project_with_bias
from executor.layers.graph.values import StepValue, lines
from executor.layers.indexed import activation_name
from executor.layers.projection import Projection
from executor.layers.shape import Ungated, XieluNumbers
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


@dataclass(frozen=True)
class FeedForward:
    """The network down(activation(gate(x)) * up(x)), or down(activation(up(x))) where there is no gate. biases: those that
    there are, by `ffn_up` and its like."""

    up: Projection
    down: Projection
    gate: Projection | None = None
    activation: Ungated = "silu"
    biases: Mapping[str, GpuBuffer] = field(default_factory=dict)


def activate(f: FeedForward, b: FfnBuffers, x: StepValue, made: StepValue, layer: int | None = None) -> Iterator[Operation]:
    """made = activation(gate(x)) * up(x), of all ranks; x, made: f32[hidden] and f32[ff] of each token."""
    upped = StepValue.of(b.up, x.tokens)
    own = made if b.gathered is None else StepValue.of(b.activated, x.tokens)
    name = activation_name(f.activation, f.gate is not None)
    if f.gate is not None and not isinstance(f.activation, XieluNumbers):
        gated = StepValue.of(b.gate, x.tokens)
        yield from project_with_bias("ffn_gate", f.gate, x, gated, f.biases.get("ffn_gate"), layer)
        yield from project_with_bias("ffn_up", f.up, x, upped, f.biases.get("ffn_up"), layer)
        yield Swiglu(name=name, layer=layer, gate=gated, up=upped, y=own, activation=f.activation)
    else:
        yield from project_with_bias("ffn_up", f.up, x, upped, f.biases.get("ffn_up"), layer)
        yield Activate(name=name, layer=layer, x=upped, y=own, activation=f.activation)
    if own is not made:
        yield GatherParts(name=name, layer=layer, own=own, whole=made)


def activated(b: FfnBuffers, tokens: int = 1) -> StepValue:
    """What `down` multiplies."""
    return StepValue.of(b.activated if b.gathered is None else b.gathered, tokens)


def feed_forward(f: FeedForward, b: FfnBuffers, *, x: StepValue, y: StepValue) -> Iterator[Operation]:
    """y = the network of x; x, y: f32[hidden] of each token."""
    made = activated(b, x.tokens)
    yield from activate(f, b, x, made)
    yield from project_with_bias("ffn_down", f.down, made, y, f.biases.get("ffn_down"))
