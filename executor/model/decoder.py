"""The launches of one token, prepared once: weights and buffers of a model on a device, run token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.buffers import GpuBuffer
from executor.device.protocol import Device
from executor.kv_cache import KvCache
from executor.launch import Launcher, Plan
from executor.layers.transformer import Activations, LayerWeights, normalise, transformer_layer
from executor.model.config import ModelConfig, expected_tensors
from executor.model.gguf_file import GgufFile
from executor.modules import Modules
from executor.ops.gemv import gemv
from executor.weights import Weight, Weights, load_weights
from ptxgen.kernels.kernel_type import KernelType
from ptxgen.kernels.registry import find
from ptxgen.kernels.rope.table import rope_table
from ptxgen.types import F32, U32

Progress = Callable[[str, int, int], None]


@dataclass
class Decoder:
    """One sequence on one device. `step` runs a token through the layers; `logits` and `argmax` read what came out."""

    device: Device
    context: int
    cache: KvCache
    activations: Activations
    logits_buffer: GpuBuffer  # f32[vocab]
    best: GpuBuffer  # u32[1]: the token with the largest logit
    embed: Plan
    layers: list[Plan]
    head: list[Plan]
    argmax_plan: Plan

    @classmethod
    def build(
        cls, file: GgufFile, config: ModelConfig, device: Device, modules: Modules, context: int, progress: Progress | None
    ) -> Decoder:
        """Upload the weights, allocate the buffers, load every kernel and check every launch once."""
        report = progress or (lambda stage, done, total: None)
        weights = load_weights(device, file, list(expected_tensors(config)), lambda d, t: report("weights", d, t))
        cache = KvCache(device, config.layers, config.kv_heads, config.head_dim, context)
        a = _activations(device, config, context, _rope_table(file, config, context))
        logits = GpuBuffer.empty(device, F32, (config.vocab,), "logits")
        best = GpuBuffer.empty(device, U32, (1,), "best token")
        launches = _Launches()
        table = weights["token_embd.weight"]
        launches(find("embedding_lookup").make(format=table.format, rows=config.vocab, k=config.hidden),
                 y=a.hidden, table=table.buffer, token=0)  # fmt: skip
        for i in range(config.layers):
            transformer_layer(launches, config, _layer_weights(weights, i), cache.layers[i], a)
        head_at = len(launches.made)
        normalise(launches, config, a, weights["output_norm.weight"].buffer)
        output = table if config.tied else weights["output.weight"]
        gemv(launches, output, x=a.normed, y=logits)
        launches(find("argmax").make(n=config.vocab), out=best, x=logits)

        kernels = list(dict.fromkeys(kernel for kernel, _ in launches.made))
        modules.preload(kernels, lambda done, total: report("kernels", done, total))
        launcher = Launcher(device, modules)
        plans = [launcher.prepare(kernel, **arguments) for kernel, arguments in launches.made]
        return cls(device, context, cache, a, logits, best, plans[0], plans[1:head_at], plans[head_at:-1], plans[-1])

    @property
    def position(self) -> int:
        """How many tokens the sequence has."""
        return self.cache.length

    def reset(self) -> None:
        """Start a new sequence."""
        self.cache.reset()

    def step(self, token: int, *, head: bool = True) -> None:
        """Run one more token; without `head` its logits are not computed. Raises when the context is full."""
        position = self.cache.advance()
        self.activations.position.upload(np.array([position], np.uint32))
        self.activations.length.upload(np.array([position + 1], np.uint32))
        self.embed(token=token)
        for plan in self.layers:
            plan()
        if head:
            for plan in self.head:
                plan()

    def logits(self) -> NDArray[np.float32]:
        """f32[vocab], of the last token that ran with its head."""
        return self.logits_buffer.to_numpy()

    def argmax(self) -> int:
        """The token with the largest logit, found on the device."""
        self.argmax_plan()
        return int(self.best.to_numpy()[0])


class _Launches:
    """Collects what a layer launches."""

    def __init__(self) -> None:
        self.made: list[tuple[KernelType, dict[str, Any]]] = []

    def __call__(self, kernel: KernelType, **arguments: Any) -> None:
        self.made.append((kernel, arguments))


def _rope_table(file: GgufFile, config: ModelConfig, context: int) -> NDArray[np.float32]:
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
