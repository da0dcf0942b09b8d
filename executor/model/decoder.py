"""The launches of one token (token_launches.py), prepared once, captured as graphs, and run token by token."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.buffers import GpuBuffer
from executor.device.protocol import Device
from executor.indexed import Site
from executor.kv_cache import KvCache
from executor.launch import Launcher, LaunchGraph, Plan
from executor.layers.calls import Call
from executor.model.config import ModelConfig, expected_tensors
from executor.model.token_launches import TokenLaunches, rope_cosines
from executor.modules import Modules
from executor.profile import GpuProfile
from executor.weights import TensorFile, Weights, load_weights
from executor.workspace import Workspace

Progress = Callable[[str, int, int], None]


@dataclass
class Step:
    """The checked launches of one token. prompt: of a token whose logits nobody wants; whole: with head, argmax and advance."""

    launches: TokenLaunches
    prompt: tuple[Plan, ...]
    whole: tuple[Plan, ...]


class Decoder:
    """One sequence on one device: `step` runs a token, `logits` and `argmax` read what came out.

    Steps are replayed as one graph each; while the launcher has observers (a profiler, the debug mode) they are launched one by
    one, with the same bits. What a graph was captured from may change: the profile, the weights, the flagged inputs, the room
    for keys and values, the workspace. The next step then prepares and captures anew by itself.
    """

    def __init__(
        self,
        file: TensorFile,
        config: ModelConfig,
        weights: Weights,
        cache: KvCache,
        modules: Modules,
        profile: GpuProfile,
    ) -> None:
        self.device: Device = modules.device
        self.config = config
        self.weights = weights
        self.cache = cache
        self.profile = profile
        self.flagged: Collection[Site] = ()
        """Operations whose output has an outlier: what reads it runs on an accurate kernel."""
        self.modules = modules
        self.launcher = Launcher(self.device, modules)
        self.workspace = Workspace(self.device)
        self.captures = 0
        """How many graphs were captured."""
        self._file = file
        self._table: GpuBuffer | None = None
        self._graphs: dict[bool, LaunchGraph] = {}
        self._step: Step | None = None
        self._stamp: object = None
        self._told: int | None = None  # the position that the device holds

    @classmethod
    def build(
        cls,
        file: TensorFile,
        config: ModelConfig,
        modules: Modules,
        context: int,
        progress: Progress | None,
        profile: GpuProfile | None = None,
    ) -> Decoder:
        """Upload the weights, allocate the buffers, load every kernel and check every launch once; without a `profile` the
        environment's counts. What was taken is given back if that fails."""
        report = progress or (lambda stage, done, total: None)
        device = modules.device
        taken: list[Any] = []
        try:
            names = list(expected_tensors(config))
            taken.append(weights := load_weights(device, file, names, lambda done, total: report("weights", done, total)))
            taken.append(cache := KvCache(device, config.layers, config.kv_heads, config.head_dim, context))
            decoder = cls(file, config, weights, cache, modules, profile or GpuProfile.from_environment())
            taken.append(decoder.workspace)
            decoder.prepare(lambda done, total: report("kernels", done, total))
        except BaseException:
            if not device.closed:
                for one in reversed(taken):
                    one.free()
            raise
        return decoder

    @property
    def position(self) -> int:
        """How many tokens the sequence has."""
        return self.cache.length

    @property
    def context(self) -> int:
        """The most tokens a sequence can have."""
        return self.cache.max_len

    def reset(self) -> None:
        """Start a new sequence."""
        self.cache.reset()

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> Step:
        """The launches of a token for what the model is now: as they were, or chosen, loaded and checked anew."""
        if self._step is not None and self._stamp == self._now():
            return self._step
        self._drop()
        launches = self._launches()
        self.modules.preload(list(dict.fromkeys(call.kernel for call in launches.calls)), progress)
        plan = self._plan
        body = [plan(launches.embed), *(plan(call) for layer in launches.layers for call in layer)]
        head = [plan(call) for call in launches.head]
        argmax, advance = plan(launches.argmax), plan(launches.advance)
        self._step = Step(launches, (*body, advance), (*body, *head, argmax, advance))
        self._stamp = self._now()
        return self._step

    def step(self, token: int | None = None, *, head: bool = True) -> None:
        """Run one more token: `token`, or the likeliest one after the last. Without `head` its logits are not computed. Raises
        ArgumentError when the context is full."""
        step = self.prepare()
        position = self.cache.advance()
        if token is not None:
            step.launches.token.upload(np.array([token], np.uint32))
        if self._told != position:
            a = step.launches.activations
            a.position.upload(np.array([position], np.uint32))
            a.length.upload(np.array([position + 1], np.uint32))
        self._told = None  # unless all goes well
        if self.launcher.observers:
            for plan in step.whole if head else step.prompt:
                plan()
        else:
            self.graph(head=head).replay()
        self._told = position + 1

    def graph(self, *, head: bool = True) -> LaunchGraph:
        """The graph of a step, captured now unless that has been done for what the model is now."""
        step = self.prepare()
        if head not in self._graphs:
            self._graphs[head] = self.launcher.graph(step.whole if head else step.prompt)
            self.captures += 1
        return self._graphs[head]

    def logits(self) -> NDArray[np.float32]:
        """f32[vocab], of the last token that ran with its head."""
        return self.prepare().launches.logits.to_numpy()

    def argmax(self) -> int:
        """The likeliest token after the last one that ran with its head, found on the device."""
        return int(self.prepare().launches.token.to_numpy()[0])

    def free(self) -> None:
        """Give the memory of weights, cache and workspace back."""
        self._drop()
        if self._table is not None:
            self._table.free()
            self._table = None
        self.workspace.free()
        self.cache.free()
        self.weights.free()

    def _now(self) -> object:
        """What the launches depend on: equal while they need not be made anew."""
        return self.workspace.generation, self.cache.generation, self.weights.generation, self.profile, frozenset(self.flagged)

    def _launches(self) -> TokenLaunches:
        return TokenLaunches.build(
            self.config, self.weights, self.cache, self.workspace, self._rope_table(), self.profile, flagged=self.flagged
        )

    def _rope_table(self) -> GpuBuffer:
        if self._table is None or self._table.shape[0] != self.cache.max_len:
            if self._table is not None:
                self._table.free()
            table = rope_cosines(self._file, self.config, self.cache.max_len)
            self._table = GpuBuffer.from_numpy(self.device, table, name="rope table")
        return self._table

    def _plan(self, call: Call) -> Plan:
        return self.launcher.prepare(call.kernel, call.place, **call.arguments)

    def _drop(self) -> None:
        """Forget what was prepared."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()
        self._step = None
        self._told = None
