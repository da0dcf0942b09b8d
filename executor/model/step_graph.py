"""A model's step as operations, written once: for a lone token and for the tokens of several sequences. The caller says where
tokens come from and which cache they see (token_launches.py, step_launches.py)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from executor.choice.choice import GpuProfile
from executor.choice.persistent import PersistentGrid
from executor.launch.launch import LayerOperation
from executor.layers.activations import Activations
from executor.layers.graph.gathers import GatherParts, own_shape
from executor.layers.graph.graph import Setting
from executor.layers.graph.operations import Norm, Operation, PlainLaunch
from executor.layers.graph.products import project
from executor.layers.graph.values import StepValue, lines
from executor.layers.indexed import build_indexed_weights
from executor.layers.projection import bind, bind_rows
from executor.layers.transformer import AttentionLayout, Stream, transformer_layers
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import Weights
from executor.memory.workspace import Workspace
from executor.model.spec import ModelSpec
from ptxgen.kernels.token.argmax import ArgMax
from ptxgen.kernels.token.embedding_lookup import EmbeddingLookup


@dataclass(frozen=True)
class ModelGraph:
    """What all steps of a model share. flagged: operations whose output has an outlier (see executor/layers/outliers.py);
    persistent: the grid of kernels whose blocks stay resident for a layer, if those are wanted."""

    spec: ModelSpec
    weights: Weights
    profile: GpuProfile
    flagged: Collection[LayerOperation] = ()
    persistent: PersistentGrid | None = None

    def setting(self, workspace: Workspace, *, fused: bool = True) -> Setting:
        """What the rules depend on, for launches on buffers of this workspace."""
        return Setting(workspace.device, fused, self.persistent)

    def embed(self, y: GpuBuffer, token: GpuBuffer, tokens: int) -> Operation:
        """y, f32[tokens, hidden], becomes the embeddings of these tokens, u32[tokens]."""
        table = self.weights["token_embd.weight"]
        kernel = EmbeddingLookup(indirect=True, format=table.format, rows=self.spec.vocab, k=self.spec.hidden)
        arguments = {"y": y, "table": table.buffer, "token": token}
        return PlainLaunch(name="embed", kernel=kernel, of_tokens=tokens, arguments=arguments)

    def layers(self, a: Activations, attention: Callable[[int], AttentionLayout]) -> tuple[list[Operation], Stream]:
        """The tokens of `a` through all layers, and the stream after them; attention: that of the layer of a number."""
        shape, layers = self.spec.layer, self.spec.layers
        weights = build_indexed_weights(self.weights, layers, shape, self.profile, flagged=self.flagged, rows=a.rows)
        return transformer_layers(shape, weights, attention, a)

    def head(
        self, workspace: Workspace, x: StepValue, normed: GpuBuffer, chosen: GpuBuffer
    ) -> tuple[list[Operation], GpuBuffer]:
        """The operations that make the logits of the tokens whose stream is x, f32[tokens, vocab] in the workspace, and the
        likeliest tokens, u32[tokens]; and the logits. normed: as large as x.

        Each of the head's thousands of blocks would complete a deferred norm by itself, so it is launched; ranks gather less of
        one that is deferred."""
        vocab, tokens, ranks = self.spec.vocab, x.tokens, self.spec.ranks
        logits = workspace.buffer("logits", lines(tokens, vocab))
        own = logits if ranks == 1 else workspace.buffer("own logits", own_shape(tokens, vocab, ranks))
        output = self.weights["token_embd.weight" if self.spec.tied else "output.weight"]
        projection = bind(output, self.profile, accurate=(None, "output_norm") in self.flagged)
        projection = projection if tokens == 1 else bind_rows(projection, self.profile, tokens)
        gamma, made, product = (
            self.weights["output_norm.weight"].buffer,
            StepValue.of(normed, tokens),
            StepValue.of(own, tokens),
        )
        operations: list[Operation] = [
            Norm(name="output_norm", x=x, y=made, gamma=gamma, eps=self.spec.norm.eps, by_many=True),
            project("output", projection, made, product),
        ]
        if own is not logits:
            operations.append(GatherParts(name="output", own=product, whole=StepValue.of(logits, tokens)))
        found = {"out": chosen, "x": logits}
        return [*operations, PlainLaunch(name="argmax", kernel=ArgMax(n=vocab), of_tokens=tokens, arguments=found)], logits
