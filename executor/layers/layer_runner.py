"""Transformer layers run one by one on the session's sequence: by name, with weights bound before, in place, in a capture. The
layer itself is written in transformer.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from executor.base.arguments import instance, whole
from executor.base.errors import LaunchError
from executor.launch.launch import Plan
from executor.layers.activations import Activations
from executor.layers.attention import TokenAttention
from executor.layers.calls import LaunchBatch
from executor.layers.graph.rules import perform
from executor.layers.indexed import BLOCK, ValidatedLayerWeights, build_indexed_weights, layer_weights
from executor.layers.outlier_verdicts import OutlierVerdicts
from executor.layers.sequence import LayerSequence
from executor.layers.session import Session
from executor.layers.shape import LayerShape, RopeStyle
from executor.layers.transformer import Stream, transformer_layer
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from ptxgen.errors import ArgumentError


@dataclass(frozen=True)
class LayerRunner:
    """The layers of one session. outliers: the verdicts that decide which of their inputs need an accurate kernel; run: what
    runs the launches of a layer, whose attention goes over so many positions (None: they are simply launched)."""

    session: Session
    outliers: OutlierVerdicts
    run: Callable[[Sequence[Plan], int], None] | None = None

    @property
    def sequence(self) -> LayerSequence:
        """The sequence that layers run on: cache, lengths, `reset`, `grow`. ArgumentError before init_kv_cache."""
        if self.session.sequence is None:
            raise ArgumentError("there is no KV cache yet; init_kv_cache(layers, heads, kv_heads, head_dim, max_len) makes it")
        return self.session.sequence

    def init_kv_cache(
        self,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        max_len: int,
        *,
        rope_base: float = 10000.0,
        rope_style: RopeStyle = "adjacent",
        rope_dim: int | None = None,
        rope_freqs: ArrayLike | None = None,
    ) -> KvCache:
        """What attention is like in all layers, and room for max_len positions of one sequence; what was there before goes. See
        LayerSequence."""
        session, before = self.session, self.session.sequence
        session.sequence = LayerSequence(
            session.device,
            session.workspace,
            layers,
            heads,
            kv_heads,
            head_dim,
            max_len,
            rope_base=rope_base,
            rope_style=rope_style,
            rope_dim=rope_dim,
            rope_freqs=rope_freqs,
        )
        if before is not None:
            before.free()
        return session.sequence.cache

    def build_indexed_weights(
        self, layers: int, hidden_dim: int, intermediate_dim: int, prefix: Callable[[int], str] = BLOCK.format
    ) -> tuple[ValidatedLayerWeights, ...]:
        """The weights of layers 0 to layers - 1, found by name, checked and bound to the profile's kernels once. They have the
        attention of init_kv_cache. Errors as layer_weights of executor/layers/indexed.py."""
        layers = whole("layers", layers, 1)
        shape = self.sequence.shape(hidden_dim, intermediate_dim, rms_eps=0.0)  # of which weights know nothing
        weights, profile, flagged = self.session.weights, self.session.profile, self.outliers.flagged
        return build_indexed_weights(weights, [shape] * layers, profile, prefix=prefix, flagged=flagged)

    def transformer_layer_gpu(
        self,
        input: Any,
        layer_idx: int,
        layer_prefix: str,
        hidden_dim: int,
        intermediate_dim: int,
        attn_norm_gamma: Any,
        ffn_norm_gamma: Any,
        epsilon: float,
    ) -> GpuBuffer:
        """The next token through one layer whose weights are found by name (`layer_prefix`.attn_q.weight, ...); input:
        f32[hidden_dim] stays as it is. Returns a new buffer."""
        shape = self.sequence.shape(hidden_dim, intermediate_dim, epsilon)
        layer = self.sequence.require_layer(layer_idx)
        gammas = {"attn_norm": attn_norm_gamma, "ffn_norm": ffn_norm_gamma}
        norms = {name: self.session.vector(gamma, (shape.hidden,), f"{name}_gamma") for name, gamma in gammas.items()}
        weights, profile, flagged = self.session.weights, self.session.profile, self.outliers.flagged
        bound = layer_weights(weights, layer_prefix, shape, profile, layer=layer, flagged=flagged, norms=norms)
        return self._next_token(input, layer, bound, shape)

    def transformer_layer_indexed(
        self,
        input: Any,
        layer_idx: int,
        layer_weights: ValidatedLayerWeights,
        hidden_dim: int,
        intermediate_dim: int,
        epsilon: float,
    ) -> GpuBuffer:
        """As transformer_layer_gpu, with weights of build_indexed_weights."""
        shape = self.sequence.shape(hidden_dim, intermediate_dim, epsilon)
        return self._next_token(input, layer_idx, _bound(layer_weights), shape)

    def transformer_layer_workspace(
        self,
        input: Any,
        layer_idx: int,
        layer_weights: ValidatedLayerWeights,
        hidden_dim: int,
        intermediate_dim: int,
        epsilon: float,
        position: int,
    ) -> None:
        """The token at `position` through one layer, in place: afterwards `input` is the layer's output. Nothing is allocated
        once the workspace has its size. A position before the layer's next one makes it forget what came after."""
        self.session.require_no_capture("the position is copied to the device")
        shape = self.sequence.shape(hidden_dim, intermediate_dim, epsilon)
        hidden = self.session.vector(input, (shape.hidden,), "input")
        self._token_at(position, hidden, layer_idx, _bound(layer_weights), shape)

    def transformer_layer_workspace_for_capture(
        self,
        input: Any,
        layer_idx: int,
        layer_weights: ValidatedLayerWeights,
        hidden_dim: int,
        intermediate_dim: int,
        epsilon: float,
    ) -> None:
        """As transformer_layer_workspace, recorded by the capture under way. The position is the device's at each replay:
        `graph.replay(position)` sets it."""
        capture = self.session.recording
        if capture is None:
            raise LaunchError("no capture is in progress; write `with executor.capture() as graph:` around this")
        layer = self.sequence.require_layer(layer_idx)
        shape = self.sequence.shape(hidden_dim, intermediate_dim, epsilon)
        with self.session.launches(layer) as launch:
            hidden = self.session.vector(input, (shape.hidden,), "input")
            self._launch(launch, hidden, layer, _bound(layer_weights), shape)
        capture.runs_layer(self.sequence, layer)

    def detect_input_outlier(self, input: Any, site: tuple[int, str] | None = None) -> bool:
        """Whether an f32 vector has a massive activation (executor/layers/outliers.py), searched for on the device. site: a
        layer and the operation that made the vector (attn_norm, attention, ffn_norm, ffn_swiglu); its verdict is kept until a
        weight is replaced, and where it is true, layers by name and weights indexed from now on take an accurate kernel for
        what reads it."""
        self.session.require_no_capture("the verdict is copied to the host")
        sequence = self.session.sequence
        layers = None if sequence is None else len(sequence.lengths)
        operation = None if site is None else self.outliers.checked_site(site, layers)
        return self.outliers.of(self.session.launches, self.session.vector(input, None, "input"), operation)

    def _launch(
        self, launch: LaunchBatch, hidden: GpuBuffer, layer: int, weights: ValidatedLayerWeights, shape: LayerShape
    ) -> None:
        cache = self.sequence.cache.layer(layer)
        token = self.sequence.token
        attention = TokenAttention(cache, token.position, token.length, self.sequence.rope_table, self.sequence.split)
        a = Activations.of(self.session.workspace, shape, hidden=hidden)
        operations, _ = transformer_layer(shape, weights, attention, a, Stream.given(a), layer)
        perform(launch, operations)

    def _token_at(
        self, position: int, hidden: GpuBuffer, layer: int, weights: ValidatedLayerWeights, shape: LayerShape
    ) -> None:
        """The token at this position through the layer, in place."""
        position, layer = whole("position", position), self.sequence.require_layer(layer)
        with self.session.launches(layer) as launch:
            self._launch(launch, hidden, layer, weights, shape)
            self.sequence.begin(position, layer)
            if self.run is not None:
                self.run(launch.take(), position + 1)
        self.sequence.commit(position, layer)

    def _next_token(self, input: Any, layer: int, weights: ValidatedLayerWeights, shape: LayerShape) -> GpuBuffer:
        """The layer's own next token, on a copy of its input."""
        self.session.require_no_capture("the input is copied to a new buffer")
        layer = self.sequence.require_layer(layer)
        source = self.session.vector(input, (shape.hidden,), "input")
        with self.session.result(shape.hidden) as hidden:
            self.session.device.copy(hidden.pointer, source.pointer, source.nbytes)
            hidden.allocation.writes.count += 1
            self._token_at(self.sequence.lengths[layer], hidden, layer, weights, shape)
        return hidden


def _bound(weights: ValidatedLayerWeights) -> ValidatedLayerWeights:
    return instance("layer_weights", weights, ValidatedLayerWeights, "build_indexed_weights")
