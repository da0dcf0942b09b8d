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
from executor.layers.gather import gather, own_shape
from executor.layers.gemv import NextNorm, project
from executor.layers.indexed import build_indexed_weights
from executor.layers.position import TokenPosition
from executor.layers.projection import bind
from executor.layers.rows import enqueue_rows
from executor.layers.transformer import normalise, transformer_layers
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

        output = embedding if config.tied else weights["output.weight"]
        projection = bind(output, profile, accurate=(None, "output_norm") in flagged)
        output_norm = weights["output_norm.weight"].buffer
        # On one device the norm is a launch: each of the head's thousands of blocks would complete a deferred one by itself.
        # Ranks gather fewer bytes with a deferred norm.
        behind = NextNorm(output_norm, (projection,), by_many=True) if config.ranks > 1 else None
        for number in transformer_layers(recorder, shape, indexed, attends, a, persistent, behind):
            recorder.layer = number
        layers = in_order(recorder.take(), early=profile.allows("dependent_launches"))
        recorder.layer = None
        normalise(recorder, "output_norm", shape, a, output_norm, (projection,))
        project(recorder, "output", projection, x=a.normed, y=own)
        if own is not logits:
            gather(recorder, "output", own, logits)
        head = recorder.take()
        enqueue_rows(recorder, "argmax", ArgMax(n=config.vocab), 1, out=token, x=logits)
        recorder("advance", AdvancePosition(max_len=cache.max_len), position=position, length=length)
        argmax, advance = recorder.take()
        if recorder.packed.lacks(a.hidden):
            gather(recorder, "hidden", a.stream, a.hidden)
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
