"""A model's step as operations, written once: for a lone token and for the tokens of several sequences. The caller says where
tokens come from and which cache they see (token_launches.py, step_launches.py)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from executor.choice.choice import GpuProfile
from executor.choice.persistent import PersistentGrid
from executor.launch.launch import LayerOperation
from executor.layers.activations import Activations
from executor.layers.graph.gathers import GatherParts, own_shape
from executor.layers.graph.graph import Setting
from executor.layers.graph.operations import Add, Norm, Operation, PlainLaunch
from executor.layers.graph.products import project_with_bias
from executor.layers.graph.values import StepValue, lines
from executor.layers.indexed import build_indexed_weights, with_scale
from executor.layers.projection import bind, bind_rows
from executor.layers.transformer import AttentionLayout, Stream, transformer_layers
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import Weights
from executor.memory.workspace import Workspace
from executor.model.spec import ModelSpec
from ptxgen.kernels.activation.scales import Scale, Softcap
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

    def embed(self, workspace: Workspace, y: GpuBuffer, token: GpuBuffer, position: GpuBuffer, tokens: int) -> list[Operation]:
        """y, f32[tokens, hidden], becomes the embeddings of these tokens at these positions, u32[tokens] each."""
        spec, found = self.spec, StepValue.of(y, tokens)
        scale = spec.embedding_scale if spec.embedding_scale != 1.0 else None
        operations = list[Operation]()
        if spec.embedding_norm is not None:
            found = StepValue.of(workspace.buffer("embedded", lines(tokens, spec.hidden)), tokens)
            gamma, beta = self._vector("token_embd_norm.weight"), self._vector("token_embd_norm.bias")
            kind, eps, normed = spec.embedding_norm.kind, spec.embedding_norm.eps, StepValue.of(y, tokens)
            operations.append(Norm(name="embed_norm", x=found, y=normed, gamma=gamma, eps=eps, kind=kind, beta=beta))
        operations.insert(0, self._looked_up("embed", "token_embd.weight", token, found, scale))
        if spec.learned_positions:
            learned = StepValue.of(workspace.buffer("embedded positions", lines(tokens, spec.hidden)), tokens)
            operations.append(self._looked_up("embed_positions", "position_embd.weight", position, learned))
            embedded, whole = StepValue.of(y, tokens), StepValue.of(y, tokens)
            operations.append(Add(name="embed_positions_add", x=embedded, delta=learned, y=whole))
        return operations

    def _looked_up(self, name: str, table: str, index: GpuBuffer, y: StepValue, scale: float | None = None) -> Operation:
        """Rows of a table, by u32[tokens]."""
        weight = self.weights[table]
        kernel = EmbeddingLookup(indirect=True, format=weight.format, rows=weight.n, k=weight.k, scale=scale)
        arguments = {"y": y.buffer, "table": weight.buffer, "token": index}
        return PlainLaunch(name=name, kernel=kernel, of_tokens=y.tokens, arguments=arguments, writes=(y,))

    def layers(
        self, activations: Sequence[Activations], attention: Callable[[int], AttentionLayout]
    ) -> tuple[list[Operation], Stream]:
        """Tokens through all layers, and the stream after them; attention: that of the layer of a number; activations: of
        each."""
        shapes, rows = self.spec.shapes, activations[0].rows
        weights = build_indexed_weights(self.weights, shapes, self.profile, flagged=self.flagged, rows=rows)
        return transformer_layers(shapes, weights, attention, activations)

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
        projection = with_scale(projection if tokens == 1 else bind_rows(projection, self.profile, tokens), self.weights)
        made, product = StepValue.of(normed, tokens), StepValue.of(own, tokens)
        gamma, beta, bias = map(self._vector, ("output_norm.weight", "output_norm.bias", "output.bias"))
        kind, eps = self.spec.norm.kind, self.spec.norm.eps
        operations: list[Operation] = [
            Norm(name="output_norm", x=x, y=made, gamma=gamma, eps=eps, kind=kind, beta=beta, by_many=True),
            *project_with_bias("output", projection, made, product, bias),
        ]
        scaling = self._scaling(own.size)
        if scaling is not None:
            scaled, arguments = StepValue.of(own, tokens), {"x": own.view(0, (own.size,))}
            places: dict[str, Any] = {"reads": (product,), "writes": (scaled,)}
            operations.append(PlainLaunch(name="output_scale", kernel=scaling, arguments=arguments, **places))
            product = scaled
        if own is not logits:
            operations.append(GatherParts(name="output", own=product, whole=StepValue.of(logits, tokens)))
        found = {"out": chosen, "x": logits}
        return [*operations, PlainLaunch(name="argmax", kernel=ArgMax(n=vocab), of_tokens=tokens, arguments=found)], logits

    def _scaling(self, n: int) -> Scale | Softcap | None:
        """What is done to n logits, in place, before they are logits; None for nothing."""
        scale, cap = self.spec.logit_scale, self.spec.logit_softcap
        if cap:
            return Softcap(n, cap=cap, scale=scale)
        return Scale(n, scale=scale) if scale != 1.0 else None

    def _vector(self, name: str) -> GpuBuffer | None:
        """A vector of the model, if it has it."""
        return self.weights[name].buffer if name in self.weights else None
