"""The launches of one token (token_launches.py), prepared once and run token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor.buffers import GpuBuffer
from executor.device.protocol import Device
from executor.kv_cache import KvCache
from executor.launch import Launcher, Plan
from executor.layers.transformer import Activations
from executor.model.config import ModelConfig
from executor.model.gguf_file import GgufFile
from executor.model.token_launches import Call, TokenLaunches
from executor.modules import Modules
from executor.profile import GpuProfile

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
        cls,
        file: GgufFile,
        config: ModelConfig,
        device: Device,
        modules: Modules,
        context: int,
        progress: Progress | None,
        profile: GpuProfile | None = None,
    ) -> Decoder:
        """Upload the weights, allocate the buffers, load every kernel and check every launch once."""
        report = progress or (lambda stage, done, total: None)
        token = TokenLaunches.build(file, config, device, context, lambda done, total: report("weights", done, total), profile)
        kernels = list(dict.fromkeys(call.kernel for call in token.calls))
        modules.preload(kernels, lambda done, total: report("kernels", done, total))
        launcher = Launcher(device, modules)

        def plans(*calls: Call) -> list[Plan]:
            return [launcher.prepare(call.kernel, **call.arguments) for call in calls]

        return cls(
            device=device,
            context=context,
            cache=token.cache,
            activations=token.activations,
            logits_buffer=token.logits,
            best=token.best,
            embed=plans(token.embed)[0],
            layers=[plan for layer in token.layers for plan in plans(*layer)],
            head=plans(*token.head),
            argmax_plan=plans(token.argmax)[0],
        )

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
