"""Transformer layers run in the five ways of CudaExecutor on the same inputs: what each way gives at each position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from executor import CudaExecutor, GpuBuffer, ValidatedLayerWeights

Rows = list[NDArray[np.float32]]
"""The output of the last layer, f32[hidden], by position."""


class FiveWays:
    """`layers` layers of the weights that the executor has; init_kv_cache was called."""

    def __init__(self, executor: CudaExecutor, layers: int, hidden: int, ff: int, eps: float) -> None:
        self.executor = executor
        self.layers = layers
        self.sizes = (hidden, ff)
        self.eps = eps
        self.indexed: tuple[ValidatedLayerWeights, ...] = executor.build_indexed_weights(layers, hidden, ff)

    def by_name(self, inputs: Sequence[NDArray[np.float32]]) -> Rows:
        return self._buffer_to_buffer(inputs, lambda x, i: self.executor.transformer_layer_gpu(x, i, *self._named(i)))

    def profiled(self, inputs: Sequence[NDArray[np.float32]]) -> Rows:
        run = self.executor.transformer_layer_gpu_tiled_profiled
        return self._buffer_to_buffer(inputs, lambda x, i: run(x, i, *self._named(i)))

    def by_index(self, inputs: Sequence[NDArray[np.float32]]) -> Rows:
        run = self.executor.transformer_layer_indexed
        return self._buffer_to_buffer(inputs, lambda x, i: run(x, i, self.indexed[i], *self.sizes, self.eps))

    def in_workspace(self, inputs: Sequence[NDArray[np.float32]]) -> Rows:
        made = []
        for position, x in enumerate(inputs):
            hidden = self.executor.buffer(x)
            for i, weights in enumerate(self.indexed):
                self.executor.transformer_layer_workspace(hidden, i, weights, *self.sizes, self.eps, position)
            made.append(hidden.to_numpy())
            hidden.free()
        return made

    def captured(self, inputs: Sequence[NDArray[np.float32]]) -> Rows:
        hidden, made = self.executor.zeros(self.sizes[0]), []
        with self.executor.capture() as graph:
            for i, weights in enumerate(self.indexed):
                self.executor.transformer_layer_workspace_for_capture(hidden, i, weights, *self.sizes, self.eps)
        for position, x in enumerate(inputs):
            hidden.upload(x)
            graph.replay(position)
            made.append(hidden.to_numpy())
        graph.close()
        hidden.free()
        return made

    def all(self, inputs: Sequence[NDArray[np.float32]]) -> dict[str, Rows]:
        """What each way gives, every time on a new sequence."""
        made = {}
        self.executor.enable_tile_profiling()
        for way in (self.profiled, self.by_name, self.by_index, self.in_workspace, self.captured):
            if way != self.profiled:
                self.executor.disable_tile_profiling()
            self.executor.sequence.reset()
            made[way.__name__] = way(inputs)
        return made

    def _named(self, layer: int) -> tuple[str, int, int, GpuBuffer, GpuBuffer, float]:
        prefix, weights = f"blk.{layer}", self.executor.weights
        attn, ffn = (weights[f"{prefix}.{name}.weight"].buffer for name in ("attn_norm", "ffn_norm"))
        return prefix, *self.sizes, attn, ffn, self.eps

    def _buffer_to_buffer(self, inputs: Sequence[NDArray[np.float32]], run: Callable[[GpuBuffer, int], GpuBuffer]) -> Rows:
        made = []
        for values in inputs:
            x = self.executor.buffer(values)
            for i in range(self.layers):
                y = run(x, i)
                x.free()
                x = y
            made.append(x.to_numpy())
            x.free()
        return made
