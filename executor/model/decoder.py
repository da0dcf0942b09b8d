"""One sequence that decodes token by token: when the launches of a token (token_plans.py) are prepared anew, the position, and
the likeliest next token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import checked
from executor.base.arguments import token as checked_token
from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile, reads_one_digit
from executor.device.protocol import Device
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, LayerOperation
from executor.launch.modules import Modules
from executor.layers.indexed import sites
from executor.layers.outliers import find_outliers
from executor.layers.position import TokenPosition
from executor.layers.rope_table import RopeTable
from executor.measure.debug import watch
from executor.measure.profiler import ActiveProfiler, TileProfiler
from executor.memory.kv_cache import KvCache
from executor.memory.weights import TensorFile, Weights, load_weights
from executor.memory.workspace import Workspace
from executor.model.config import ModelConfig, expected_tensors
from executor.model.token_launches import TokenLaunches, rope_cosines
from executor.model.token_plans import TokenPlans
from ptxgen.errors import ArgumentError

Progress = Callable[[str, int, int], None]
"""Called with a stage (`weights`, `kernels`), how much of it is done, and its total."""


class Decoder:
    """One sequence on one device: `step` runs a token, `logits` and `argmax` read what came out.

    Steps are replayed as one graph each; while the launcher has observers (the debug mode) they are launched one by one, with
    the same bits. What a graph was captured from may change: the profile, the weights, the flagged inputs, the room
    for keys and values, the workspace. The next step then prepares and captures anew by itself.
    """

    profile: GpuProfile = checked("profile", GpuProfile, "Which kernels are used. It may be set anew at any time.")

    def __init__(
        self, file: TensorFile, config: ModelConfig, weights: Weights, cache: KvCache, modules: Modules, profile: GpuProfile
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
        self.timing = ActiveProfiler()
        """Its `profiler` times every launch of the steps; the graphs then have events between their kernels, and the bits that
        they have."""
        self.workspace = Workspace(self.device)
        self._file = file
        self._rope = RopeTable(cache, lambda room: rope_cosines(file, config, room))
        self._plans: TokenPlans | None = None
        self._plans_of: object = None  # what they were made for
        self._captures = 0  # by plans that are gone
        self._token = TokenPosition(self.workspace)
        self._likeliest: object = None  # position, memory and version of the token that argmax left on the device
        self._activity = ""

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
    def busy(self, activity: str) -> Iterator[None]:
        """The sequence belongs to the block. ModelError within another such block: a callback would change the sequence under
        the outer call."""
        if self._activity:
            raise ModelError(f"the model is {self._activity}; {activity} must wait until that has ended")
        self._activity = activity
        try:
            yield
        finally:
            self._activity = ""

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

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> TokenPlans:
        """The launches of a token for what the model is now: as they were, or chosen, loaded and checked anew."""
        if self._plans is not None and self._plans_of == self._dependencies():
            return self._plans
        self._drop_plans()
        launches = self._launches()
        if any(reads_one_digit(call.kernel) for call in launches.calls):
            self._find_outliers()
            launches = self._launches(self.flagged)
        self.modules.preload(list(dict.fromkeys(call.kernel for call in launches.calls)), progress)
        self._plans = TokenPlans(self.launcher, launches)
        self._plans_of = self._dependencies()
        return self._plans

    def step(self, token: int | None = None, *, head: bool = True) -> None:
        """Run one more token: `token`, or the likeliest one after the last. Without `head` its logits are not computed. Raises
        ArgumentError for what is no token of the vocabulary, when the context is full, and where no step with a head has found
        the likeliest token. After an exception of any kind the sequence is as it was."""
        if token is not None:
            token = checked_token("the token", token, self.config.vocab)
        plans = self.prepare()
        position, chosen = self.position, plans.launches.token
        if token is None and self._likeliest != (position, chosen.allocation.writes, chosen.version):
            raise ArgumentError(f"no step with a head has computed the likeliest token for position {position}; give a token")
        self.cache.advance()
        try:
            self._token.move_to(position)
            if token is not None:
                chosen.upload(np.array([token], np.uint32))
            self._run(plans, position, head)
        except BaseException:  # an interrupt, a fault that a debugger found: the token does not count
            self.cache.truncate(position)
            raise
        if position + 1 < self.cache.max_len:  # `advance` leaves no length beyond the room, which may grow
            self._token.moved_to(position + 1)
        self._likeliest = (position + 1, chosen.allocation.writes, chosen.version) if head else None

    @property
    def captures(self) -> int:
        """How many graphs were captured so far."""
        return self._captures + (0 if self._plans is None else self._plans.captures)

    def graph(self, *, head: bool = True) -> LaunchGraph:
        """The graph of a step, captured now unless that has been done for what the model is now."""
        return self.prepare().graph(head=head, timed=self.profiler is not None)

    def logits(self) -> NDArray[np.float32]:
        """f32[vocab], of the last token that ran with its head."""
        return (self._plans or self.prepare()).launches.logits.to_numpy()

    def argmax(self) -> int:
        """The likeliest token after the last one that ran with its head, found on the device."""
        return int((self._plans or self.prepare()).launches.token.to_numpy()[0])

    def free(self) -> None:
        """Give the memory of weights, cache and workspace back. A second time does nothing."""
        self._free_own()
        self.cache.free()
        self.weights.free()

    def _dependencies(self) -> object:
        """What the launches depend on: equal while they need not be made anew."""
        return self.workspace.generation, self.cache.generation, self.weights.generation, self.profile, self.flagged

    def _run(self, plans: TokenPlans, position: int, head: bool) -> None:
        if self.launcher.observers:
            plans.run(head=head)
            return
        profiler = self.timing.profiler
        graph = plans.graph(head=head, timed=profiler is not None)
        graph.replay()
        if profiler is not None:
            profiler.add(graph, length=position + 1)

    def _find_outliers(self) -> None:
        """Unless it has been done for these weights: run the calibration's tokens with every input taken for an outlier, so on
        accurate kernels, and see which operations give one. The answer depends on the model alone, not on what it was asked
        before. The sequence stays: they run in a workspace of their own, and its keys and values are set aside."""
        if self._searched == self.weights.generation:
            return
        trial = Decoder(self._file, self.config, self.weights, self.cache, self.modules, self.profile)
        trial.flagged, trial._searched = frozenset(sites(self.config.layers)), self.weights.generation
        tokens = self.calibration[: self.context]
        try:
            self.flagged = find_outliers(trial.launcher, self.config.layers, self.cache, tokens, trial.step)
            self._searched = self.weights.generation
        finally:
            if not self.device.closed:
                trial._free_own()

    def _launches(self, flagged: Collection[LayerOperation] = ()) -> TokenLaunches:
        return TokenLaunches.build(
            self.config,
            self.weights,
            self.cache,
            self.workspace,
            self._rope.buffer,
            self.profile,
            flagged=flagged,
            fused=self.modules.fused,
        )

    def _drop_plans(self) -> None:
        if self._plans is not None:
            self._captures += self._plans.captures
            self._plans.close()
            self._plans = None

    def _free_own(self) -> None:
        """Give back what this decoder alone uses."""
        self._drop_plans()
        self._rope.free()
        self.workspace.free()
