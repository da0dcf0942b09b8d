"""The launches of one token (token_launches.py), prepared once, captured as graphs, and run token by token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import instance
from executor.base.arguments import token as checked_token
from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile, reads_one_digit
from executor.device.protocol import Device
from executor.launch.launch import Launcher, LaunchGraph, LayerOperation, Plan
from executor.launch.modules import Modules
from executor.layers.calls import KernelCall
from executor.layers.indexed import OUTPUTS, sites
from executor.layers.outliers import OutlierWatch
from executor.layers.position import TokenPosition
from executor.measure.debug import watch
from executor.measure.profiler import TileProfiler, Timing
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from executor.memory.weights import TensorFile, Weights, load_weights
from executor.memory.workspace import Workspace
from executor.model.config import ModelConfig, expected_tensors
from executor.model.token_launches import TokenLaunches, rope_cosines
from ptxgen.errors import ArgumentError

Progress = Callable[[str, int, int], None]


@dataclass
class Step:
    """The checked launches of one token. prompt: of a token whose logits nobody wants; whole: with head, argmax and advance."""

    launches: TokenLaunches
    prompt: tuple[Plan, ...]
    whole: tuple[Plan, ...]


class Decoder:
    """One sequence on one device: `step` runs a token, `logits` and `argmax` read what came out.

    Steps are replayed as one graph each; while the launcher has observers (the debug mode) they are launched one by one, with
    the same bits. What a graph was captured from may change: the profile, the weights, the flagged inputs, the room
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
        self.calibration: Sequence[int] = ()
        """Tokens that are run to find outliers, where a kernel reads one digit."""
        self.flagged: frozenset[LayerOperation] = frozenset()
        """Operations whose output has an outlier: what reads it runs on an accurate kernel."""
        self._searched: int | None = None  # the generation of the weights that `flagged` was found with
        self.modules = modules
        self.launcher = Launcher(self.device, modules)
        watch(self.launcher)
        self.timing = Timing()
        """Its `profiler` times every launch of the steps; the graphs then have events between their kernels, and the bits that
        they have."""
        self.workspace = Workspace(self.device)
        self.captures = 0
        """How many graphs were captured."""
        self._file = file
        self._table: GpuBuffer | None = None
        self._graphs: dict[tuple[bool, bool], LaunchGraph] = {}  # by whether with the head, and whether timed
        self._step: Step | None = None
        self._stamp: object = None
        self._token = TokenPosition(self.workspace)
        self._likeliest: tuple[int, int] | None = None  # position and version of the token that argmax left on the device
        self._doing = ""

    @classmethod
    def build(
        cls,
        file: TensorFile,
        config: ModelConfig,
        modules: Modules,
        context: int,
        progress: Progress | None,
        profile: GpuProfile | None = None,
        calibration: Sequence[int] = (),
    ) -> Decoder:
        """Upload the weights, allocate the buffers, load every kernel and check every launch once; without a `profile` the
        environment's counts. What was taken stays taken if that fails: the caller knows what to give back."""
        report = progress or (lambda stage, done, total: None)
        device = modules.device
        names = list(expected_tensors(config))
        weights = load_weights(device, file, names, lambda done, total: report("weights", done, total))
        cache = KvCache(device, config.layers, config.kv_heads, config.head_dim, context)
        decoder = cls(file, config, weights, cache, modules, profile or GpuProfile.from_environment())
        decoder.calibration = calibration
        decoder.prepare(lambda done, total: report("kernels", done, total))
        return decoder

    @contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """The sequence belongs to the block. ModelError within another: in a callback, somebody would go on with a sequence
        that is no longer theirs."""
        if self._doing:
            raise ModelError(f"the model is {self._doing}; {doing} must wait until that has ended")
        self._doing = doing
        try:
            yield
        finally:
            self._doing = ""

    @property
    def profile(self) -> GpuProfile:
        """Which kernels are used. It may be set anew at any time."""
        return self._profile

    @profile.setter
    def profile(self, profile: GpuProfile) -> None:
        self._profile = instance("profile", profile, GpuProfile)

    @property
    def profiler(self) -> TileProfiler | None:
        """That of `timing`."""
        return self.timing.profiler

    @profiler.setter
    def profiler(self, profiler: TileProfiler | None) -> None:
        self.timing.profiler = profiler

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
        found = self._found
        self._drop()
        launches = self._launches()
        if any(reads_one_digit(call.kernel) for call in launches.calls):
            self._find_outliers()
            launches = self._launches(self.flagged)
        self.modules.preload(list(dict.fromkeys(call.kernel for call in launches.calls)), progress)
        plan = self._plan
        body = [plan(launches.embed), *(plan(call) for layer in launches.layers for call in layer)]
        head = [plan(call) for call in launches.head]
        argmax, advance = plan(launches.argmax), plan(launches.advance)
        self._step = Step(launches, (*body, advance), (*body, *head, argmax, advance))
        self._stamp = self._now()
        # Recording the launches has counted as writing the token, and written nothing.
        self._likeliest = None if found is None else (found, launches.token.version)
        return self._step

    def step(self, token: int | None = None, *, head: bool = True) -> None:
        """Run one more token: `token`, or the likeliest one after the last. Without `head` its logits are not computed. Raises
        ArgumentError for what is no token of the vocabulary, when the context is full, and where no step with a head has found
        the likeliest token. After an exception of any kind the sequence is as it was."""
        if token is not None:
            token = checked_token("the token", token, self.config.vocab)
        step = self.prepare()
        position, chosen = self.position, step.launches.token
        if token is None and self._found != position:
            raise ArgumentError(f"no step with a head has found the likeliest token for position {position}; give a token")
        self.cache.advance()
        try:
            self._token.move_to(position)
            if token is not None:
                chosen.upload(np.array([token], np.uint32))
            self._run(step, position, head)
        except BaseException:  # an interrupt, a fault that a debugger found: the token was not taken
            self.cache.truncate(position)
            raise
        self._token.moved_to(position + 1)
        self._likeliest = (position + 1, chosen.version) if head else None

    def graph(self, *, head: bool = True) -> LaunchGraph:
        """The graph of a step, captured now unless that has been done for what the model is now."""
        return self._graph_of(self.prepare(), head)

    def logits(self) -> NDArray[np.float32]:
        """f32[vocab], of the last token that ran with its head."""
        return (self._step or self.prepare()).launches.logits.to_numpy()

    def argmax(self) -> int:
        """The likeliest token after the last one that ran with its head, found on the device."""
        return int((self._step or self.prepare()).launches.token.to_numpy()[0])

    def free(self) -> None:
        """Give the memory of weights, cache and workspace back."""
        self._free_own()
        self.cache.free()
        self.weights.free()

    @property
    def _found(self) -> int | None:
        """The position whose likeliest token lies on the device."""
        if self._step is None or self._likeliest is None:
            return None
        position, version = self._likeliest
        return position if version == self._step.launches.token.version else None

    def _now(self) -> object:
        """What the launches depend on: equal while they need not be made anew."""
        return self.workspace.generation, self.cache.generation, self.weights.generation, self.profile, self.flagged

    def _run(self, step: Step, position: int, head: bool) -> None:
        if self.launcher.observers:
            for plan in step.whole if head else step.prompt:
                plan()
            return
        graph = self._graph_of(step, head)
        graph.replay()
        if self.profiler is not None:
            self.profiler.add(graph, length=position + 1)

    def _graph_of(self, step: Step, head: bool) -> LaunchGraph:
        timed = self.profiler is not None
        graph = self._graphs.get((head, timed))
        if graph is None:
            graph = self._graphs[head, timed] = self.launcher.graph(step.whole if head else step.prompt, timed=timed)
            self.captures += 1
        return graph

    def _find_outliers(self) -> None:
        """Unless it has been done for these weights: run the calibration's tokens with every input taken for an outlier, so on
        accurate kernels, and see which operations give one. The answer depends on the model alone, not on what it was asked
        before. The sequence stays: they run in a workspace of their own, and its keys and values are set aside."""
        if self._searched == self.weights.generation:
            return
        trial = Decoder(self._file, self.config, self.weights, self.cache, self.modules, self.profile)
        trial.flagged, trial._searched = frozenset(sites(self.config.layers)), self.weights.generation
        outliers = OutlierWatch(trial.launcher, sites(self.config.layers), OUTPUTS)
        trial.launcher.observers.append(outliers)
        tokens = self.calibration[: self.context]
        try:
            with self.cache.set_aside(len(tokens)):
                for token in tokens:
                    trial.step(token)
            self.flagged = outliers.flagged()
            self._searched = self.weights.generation
        finally:
            if not self.device.closed:
                outliers.free()
                trial._free_own()

    def _launches(self, flagged: Collection[LayerOperation] = ()) -> TokenLaunches:
        return TokenLaunches.build(
            self.config,
            self.weights,
            self.cache,
            self.workspace,
            self._rope_table(),
            self.profile,
            flagged=flagged,
            fused=self.modules.fused,
        )

    def _rope_table(self) -> GpuBuffer:
        if self._table is None or self._table.shape[0] != self.cache.max_len:
            table = rope_cosines(self._file, self.config, self.cache.max_len)
            old, self._table = self._table, GpuBuffer.from_numpy(self.device, table, name="rope table")
            if old is not None:
                old.free()
        return self._table

    def _plan(self, call: KernelCall) -> Plan:
        return self.launcher.prepare(call.kernel, call.place, **call.arguments)

    def _drop(self) -> None:
        """Forget what was prepared."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()
        self._step = None

    def _free_own(self) -> None:
        """Give back what is nobody else's."""
        self._drop()
        if self._table is not None:
            self._table.free()
            self._table = None
        self.workspace.free()
