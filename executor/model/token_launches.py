"""What one token launches: the buffers of a model on a device and the calls of its kernels, in order. Runs nothing: decoder.py
runs the calls, executor/bundle writes them down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from executor.buffers import GpuBuffer
from executor.device.protocol import Device
from executor.kv_cache import KvCache
from executor.layers.transformer import Activations, LayerWeights, normalise, transformer_layer
from executor.model.config import ModelConfig, expected_tensors
from executor.ops.gemv import gemv
from executor.profile import GpuProfile
from executor.weights import TensorFile, Weight, Weights, load_weights
from ptxgen.kernels.kernel_type import KernelType
from ptxgen.kernels.registry import find
from ptxgen.kernels.rope.table import rope_table
from ptxgen.types import F32, U32

BytesDone = Callable[[int, int], None]

TOKEN: Final = "token"
"""The one scalar that changes from token to token: the argument of this name of the embedding."""


class Call(NamedTuple):
    """A kernel and its arguments by name."""

    kernel: KernelType
    arguments: dict[str, Any]


@dataclass(frozen=True)
class TokenLaunches:
    """One sequence's buffers, and the calls of one token: embed, the layers, the head (which makes the logits), argmax.

    Before the first of them the host writes the token's place to activations.position and that plus 1 to activations.length.
    """

    weights: Weights
    cache: KvCache
    activations: Activations
    logits: GpuBuffer  # f32[vocab]
    best: GpuBuffer  # u32[1]: the token with the largest logit
    embed: Call
    layers: tuple[tuple[Call, ...], ...]
    head: tuple[Call, ...]
    argmax: Call

    @classmethod
    def build(
        cls,
        file: TensorFile,
        config: ModelConfig,
        device: Device,
        context: int,
        progress: BytesDone | None = None,
        profile: GpuProfile | None = None,
    ) -> TokenLaunches:
        """Upload the weights, allocate the buffers, choose the kernels. `progress` hears of the weights' bytes; without a
        `profile` the environment's counts."""
        profile = profile or GpuProfile.from_environment()
        weights = load_weights(device, file, list(expected_tensors(config)), progress)
        cache = KvCache(device, config.layers, config.kv_heads, config.head_dim, context)
        a = _activations(device, config, context, _rope_table(file, config, context))
        logits = GpuBuffer.empty(device, F32, (config.vocab,), "logits")
        best = GpuBuffer.empty(device, U32, (1,), "best token")
        table = weights["token_embd.weight"]
        lookup = find("embedding_lookup").make(format=table.format, rows=config.vocab, k=config.hidden)
        layers: list[tuple[Call, ...]] = []
        for i in range(config.layers):
            calls = _Calls(profile)
            transformer_layer(calls, config, _layer_weights(weights, i), cache.layers[i], a)
            layers.append(tuple(calls.made))
        head = _Calls(profile)
        normalise(head, config, a, weights["output_norm.weight"].buffer)
        gemv(head, table if config.tied else weights["output.weight"], x=a.normed, y=logits)
        return cls(
            weights=weights,
            cache=cache,
            activations=a,
            logits=logits,
            best=best,
            embed=Call(lookup, {"y": a.hidden, "table": table.buffer, TOKEN: 0}),
            layers=tuple(layers),
            head=tuple(head.made),
            argmax=Call(find("argmax").make(n=config.vocab), {"out": best, "x": logits}),
        )

    @property
    def buffers(self) -> list[GpuBuffer]:
        """Every buffer but the weights'."""
        a = self.activations
        caches = [buffer for layer in self.cache.layers for buffer in (layer.keys, layer.values)]
        return [*(getattr(a, f.name) for f in fields(a)), self.logits, self.best, *caches]

    @property
    def calls(self) -> list[Call]:
        """All calls in order."""
        return [self.embed, *(call for layer in self.layers for call in layer), *self.head, self.argmax]


class _Calls:
    """Collects what a layer launches."""

    def __init__(self, profile: GpuProfile) -> None:
        self.profile = profile
        self.made: list[Call] = []

    def __call__(self, kernel: KernelType, **arguments: Any) -> None:
        self.made.append(Call(kernel, arguments))


def _rope_table(file: TensorFile, config: ModelConfig, context: int) -> NDArray[np.float32]:
    factors = file.data("rope_freqs.weight").view(np.float32) if config.rope_freqs else None
    return rope_table(context, config.rope_dim, config.rope_base, factors)


def _activations(device: Device, c: ModelConfig, context: int, table: NDArray[np.float32]) -> Activations:
    def f32(name: str, *shape: int) -> GpuBuffer:
        return GpuBuffer.empty(device, F32, shape, name)

    return Activations(
        hidden=f32("hidden", c.hidden),
        normed=f32("normed", c.hidden),
        q=f32("q", c.heads, c.head_dim),
        k=f32("k", c.kv_heads, c.head_dim),
        v=f32("v", c.kv_heads, c.head_dim),
        attended=f32("attended", c.heads, c.head_dim),
        projected=f32("projected", c.hidden),
        gate=f32("gate", c.ff),
        up=f32("up", c.ff),
        activated=f32("activated", c.ff),
        position=GpuBuffer.zeros(device, U32, (1,), "position"),
        length=GpuBuffer.zeros(device, U32, (1,), "length"),
        rope_table=GpuBuffer.from_numpy(device, table, name="rope table"),
    )


def _layer_weights(weights: Weights, layer: int) -> LayerWeights:
    def matrix(role: str) -> Weight:
        return weights[f"blk.{layer}.{role}.weight"]

    def vector(role: str) -> GpuBuffer | None:
        name = f"blk.{layer}.{role}"
        return weights[name].buffer if name in weights else None

    def needed(role: str) -> GpuBuffer:
        return weights[f"blk.{layer}.{role}"].buffer

    return LayerWeights(
        attn_norm=needed("attn_norm.weight"),
        q=matrix("attn_q"),
        k=matrix("attn_k"),
        v=matrix("attn_v"),
        output=matrix("attn_output"),
        ffn_norm=needed("ffn_norm.weight"),
        gate=matrix("ffn_gate"),
        up=matrix("ffn_up"),
        down=matrix("ffn_down"),
        q_bias=vector("attn_q.bias"),
        k_bias=vector("attn_k.bias"),
        v_bias=vector("attn_v.bias"),
        q_norm=vector("attn_q_norm.weight"),
        k_norm=vector("attn_k_norm.weight"),
    )
