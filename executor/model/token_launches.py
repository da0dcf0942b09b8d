"""What one token launches: the calls of its kernels, in order, on the buffers of a sequence. Runs nothing: token_decoder.py
runs the calls, executor/bundle writes them down."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor.choice.attention import TokenAttentionChoice, choose_token_attention
from executor.choice.choice import GpuProfile
from executor.choice.persistent import PersistentGrid
from executor.launch.launch import LayerOperation
from executor.layers.activations import Activations
from executor.layers.attention import PositionSplit, TokenAttention
from executor.layers.calls import KernelCall, Recorder, in_order
from executor.layers.graph.gathers import Gather, own_shape
from executor.layers.graph.graph import Setting
from executor.layers.graph.operations import Launch, Norm
from executor.layers.graph.products import project
from executor.layers.graph.rules import perform
from executor.layers.graph.values import Value
from executor.layers.indexed import build_indexed_weights
from executor.layers.position import TokenPosition
from executor.layers.projection import bind
from executor.layers.transformer import transformer_layers
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from executor.memory.weights import TensorFile, Weights
from executor.memory.workspace import Workspace
from executor.model.config import ModelConfig
from ptxgen.kernels.rope.table import rope_table
from ptxgen.kernels.token.advance_position import AdvancePosition
from ptxgen.kernels.token.argmax import ArgMax
from ptxgen.kernels.token.embedding_lookup import EmbeddingLookup
from ptxgen.target import Target
from ptxgen.types import U32


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
    embed: KernelCall
    layers: tuple[KernelCall, ...]
    head: tuple[KernelCall, ...]
    argmax: KernelCall
    advance: KernelCall
    whole_stream: tuple[KernelCall, ...] = ()

    @classmethod
    def build(
        cls,
        config: ModelConfig,
        weights: Weights,
        cache: KvCache,
        workspace: Workspace,
        table: GpuBuffer,
        profile: GpuProfile,
        *,
        attention: TokenAttentionChoice,
        flagged: Collection[LayerOperation] = (),
        fused: bool = True,
        persistent: PersistentGrid | None = None,
    ) -> TokenLaunches:
        """Choose the kernels and lay the buffers out in the workspace. `table`: of `rope_cosines`; flagged: operations whose
        output has an outlier (see executor.outliers); fused: with kernels that do several operations at once; attention: how
        the token attends; persistent: as transformer_layers."""
        shape = config.layer
        place = TokenPosition(workspace)
        position, length = place.position, place.length
        a = Activations.of(workspace, shape)
        split = PositionSplit(attention, workspace)
        token = workspace.buffer("token", (1,), U32)
        logits = workspace.buffer("logits", (config.vocab,))
        own = logits if config.ranks == 1 else workspace.buffer("own logits", own_shape(1, config.vocab, config.ranks))
        indexed = build_indexed_weights(weights, config.layers, shape, profile, flagged=flagged)
        recorder = Recorder(workspace, fused=fused)
        embedding = weights["token_embd.weight"]
        lookup = EmbeddingLookup(indirect=True, format=embedding.format, rows=config.vocab, k=config.hidden)
        recorder("embed", lookup, y=a.hidden, table=embedding.buffer, token=token)
        embed = recorder.take()

        def attends(layer: int) -> TokenAttention:
            return TokenAttention(cache.layers[layer], position, length, table, split)

        operations, stream = transformer_layers(shape, indexed, attends, a)
        output = embedding if config.tied else weights["output.weight"]
        projection = bind(output, profile, accurate=(None, "output_norm") in flagged)
        gamma, normed, scored = weights["output_norm.weight"].buffer, Value.of(a.normed), Value.of(own)
        # Each of the head's thousands of blocks would complete a deferred norm by itself (8B, H100: 8 us more, for the 1.5 of
        # the norm); ranks gather less of one.
        norm = Norm(name="output_norm", x=stream.whole, y=normed, gamma=gamma, eps=config.rms_eps, by_many=True)
        operations += [norm, project("output", projection, normed, scored)]
        if own is not logits:
            operations.append(Gather(name="output", own=scored, whole=Value.of(logits)))
        choose = Launch(name="argmax", kernel=ArgMax(n=config.vocab), of_tokens=1, arguments={"out": token, "x": logits})
        places = {"position": position, "length": length}
        operations += [choose, Launch(name="advance", kernel=AdvancePosition(max_len=cache.max_len), arguments=places)]
        done = perform(recorder, operations, Setting(workspace.device, fused, persistent))
        calls = recorder.take()
        inside = sum(call.place.layer is not None for call in calls)
        layers = in_order(calls[:inside], early=profile.early_launches)
        head, (argmax, advance) = calls[inside:-2], calls[-2:]
        if not any(stream.whole in operation.writes for operation in done):
            perform(recorder, [Gather(name="hidden", own=stream.part, whole=Value.of(a.hidden))])
        whole = recorder.take()
        return cls(token, position, length, logits, a.hidden, embed[0], layers, head, argmax, advance, whole)

    @property
    def calls(self) -> list[KernelCall]:
        """All calls in order."""
        return [self.embed, *self.layers, *self.head, self.argmax, self.advance]


def token_attention(config: ModelConfig, profile: GpuProfile, target: Target) -> TokenAttentionChoice:
    """How a model's one token attends."""
    return choose_token_attention(profile, target, heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim)


def rope_cosines(file: TensorFile, config: ModelConfig, context: int) -> NDArray[np.float32]:
    """f32[context, rope_dim / 2, 2]: cosine and sine of every position and frequency of the model."""
    factors = file.data("rope_freqs.weight").view(np.float32) if config.rope_freqs else None
    return rope_table(context, config.rope_dim, config.rope_base, factors)
