"""What one token launches: the calls of its kernels, in order, on the buffers of a sequence. Runs nothing: token_decoder.py
runs the calls, executor/bundle writes them down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from executor.choice.attention import TokenAttentionChoice, choose_token_attention
from executor.choice.choice import GpuProfile
from executor.layers.activations import Activations
from executor.layers.attention import PositionSplit, TokenAttention
from executor.layers.calls import KernelCall, Recorder
from executor.layers.graph.gathers import GatherParts
from executor.layers.graph.neighbours import in_order
from executor.layers.graph.operations import PlainLaunch
from executor.layers.graph.rules import perform
from executor.layers.graph.values import StepValue
from executor.layers.position import TokenPosition
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from executor.memory.weights import TensorFile
from executor.memory.workspace import Workspace
from executor.model.spec import ModelSpec, RopeSpec
from executor.model.step_graph import ModelGraph
from ptxgen.kernels.rope.frequencies import frequencies
from ptxgen.kernels.rope.table import rotations
from ptxgen.kernels.token.advance_position import AdvancePosition
from ptxgen.types import F32, U32


@dataclass(frozen=True)
class TokenLaunches:
    """The calls of one token: embed, the layers, the head (which makes the logits), argmax, advance. whole_stream: those that
    make `hidden` whole behind these, where ranks have a part of it each and nothing else needs more.

    `token` holds the token's id, u32[1], `position` its place and `length` that plus 1. argmax writes the
    likeliest next token to `token`; advance adds 1 to position and length: after them the calls can be run again as they are.
    """

    token: GpuBuffer
    position: GpuBuffer
    length: GpuBuffer
    logits: GpuBuffer  # f32[vocab]
    hidden: GpuBuffer  # f32[hidden]: the residual stream
    embed: tuple[KernelCall, ...]
    layers: tuple[KernelCall, ...]
    head: tuple[KernelCall, ...]
    argmax: KernelCall
    advance: KernelCall
    whole_stream: tuple[KernelCall, ...] = ()

    @classmethod
    def build(
        cls,
        model: ModelGraph,
        cache: KvCache,
        workspace: Workspace,
        table: GpuBuffer,
        *,
        attention: TokenAttentionChoice,
        fused: bool = True,
    ) -> TokenLaunches:
        """Choose the kernels and lay the buffers out in the workspace. `table`: of `rope_cosines`; fused: with kernels that do
        several operations at once; attention: how the token attends."""
        return workspace.laid_out(partial(cls._build, model, cache, workspace, table, attention, fused))

    @classmethod
    def _build(
        cls,
        model: ModelGraph,
        cache: KvCache,
        workspace: Workspace,
        table: GpuBuffer,
        attention: TokenAttentionChoice,
        fused: bool,
    ) -> TokenLaunches:
        spec = model.spec
        place = TokenPosition(workspace)
        position, length = place.position, place.length
        activations = Activations.of_layers(workspace, spec.shapes)
        a = activations[0]
        split, tables = PositionSplit(attention, workspace), tables_of(table, spec)
        token = workspace.buffer("token", (1,), U32)
        recorder, setting = Recorder(workspace, fused=fused), model.setting(workspace, fused=fused)
        perform(recorder, model.embed(workspace, a.hidden, token, position, 1), setting)
        embed = recorder.take()

        def attends(layer: int) -> TokenAttention:
            own = cache.layers[spec.cache_of(layer)]
            return TokenAttention(own, position, length, tables[spec.rope_of(layer)], split)

        layers, stream = model.layers(activations, attends)
        head, logits = model.head(workspace, stream.whole, a.normed, token)
        places = {"position": position, "length": length}
        advance = PlainLaunch(name="advance", kernel=AdvancePosition(max_len=cache.max_len), arguments=places)
        done = perform(recorder, [*layers, *head, advance], setting)
        calls = recorder.take()
        inside = sum(call.place.layer is not None for call in calls)
        in_layers = in_order(calls[:inside], dependent=model.profile.allows("dependent_launches"))
        if not any(stream.whole in operation.writes for operation in done):
            perform(recorder, [GatherParts(name="hidden", own=stream.part, whole=StepValue.of(a.hidden))])
        whole = recorder.take()
        return cls(token, position, length, logits, a.hidden, embed, in_layers, calls[inside:-2], calls[-2], calls[-1], whole)

    @property
    def calls(self) -> list[KernelCall]:
        """All calls in order."""
        return [*self.embed, *self.layers, *self.head, self.argmax, self.advance]


def token_attention(config: ModelSpec, profile: GpuProfile) -> TokenAttentionChoice:
    """How a model's one token attends."""
    s = config.layer
    return choose_token_attention(profile, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, value_dim=s.value_dim)


def rope_cosines(file: TensorFile, config: ModelSpec, context: int) -> NDArray[np.float32]:
    """f32[context, rope_dim / 2, 2]: cosine and sine of every position and frequency of the model; of a model with several
    rotations f32[rotations, context, rope_dim / 2, 2]."""

    def of(rope: RopeSpec) -> NDArray[np.float32]:
        named = rope.factors_for(context)
        divisors = None if named is None else file.data(named).view(np.float32)
        turns = frequencies(rope.dim, rope.base, divisors, scale=rope.scale, yarn=rope.yarn)
        turns[list(rope.still)] = 0.0
        return rotations(context, turns, rope.magnitude)

    tables = [of(rope) for rope in config.ropes]
    return tables[0] if len(tables) == 1 else np.stack(tables)


def tables_of(table: GpuBuffer, spec: ModelSpec) -> Sequence[GpuBuffer]:
    """That of each rotation, f32[context, rope_dim / 2, 2], in the table of `rope_cosines`."""
    if len(spec.ropes) == 1:
        return [table]
    _, *shape = table.shape
    return [table.view(number * prod(shape) * F32.bytes, tuple(shape)) for number in range(len(spec.ropes))]
