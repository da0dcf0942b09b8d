"""A model whose launches of a token are ready: chosen for what it is now, checked, captured, and made anew when that has
changed. What sequence runs through it is token_decoder.py's business."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Self

from executor.base.arguments import checked
from executor.base.progress import Progress
from executor.choice.attention import AttentionChoice, TokenAttentionChoice
from executor.choice.choice import GpuProfile, reads_one_digit
from executor.choice.persistent import PersistentGrid, choose_persistent
from executor.device.gpu import GpuModel
from executor.device.protocol import Device
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, LayerOperation
from executor.launch.modules import Modules
from executor.layers.calls import kernels_of
from executor.layers.indexed import sites
from executor.layers.outliers import find_outliers
from executor.layers.rope_table import RopeTable
from executor.measure.debug import watch
from executor.measure.profiler import ActiveProfiler, TileProfiler
from executor.memory.kv_cache import KvCache
from executor.memory.repacking import Repacking
from executor.memory.weights import TensorFile, Weights, load_weights
from executor.memory.workspace import Workspace
from executor.model.context import new_cache
from executor.model.matrices import repacked
from executor.model.spec import ModelSpec
from executor.model.split import loaded
from executor.model.step_graph import ModelGraph
from executor.model.step_launches import rows_attention
from executor.model.tensors import expected_tensors
from executor.model.token_launches import TokenLaunches, rope_cosines, token_attention
from executor.model.token_plans import TokenPlans
from ptxgen.errors import ArgumentError


class PreparedModel(ABC):
    """The launches of a token (token_plans.py) and what they are made of. That may change: the profile, the weights, the
    flagged inputs, the room for keys and values, the workspace. `prepare` then chooses, checks and captures anew."""

    profile: GpuProfile = checked("profile", GpuProfile, "Which kernels are used. It may be set anew at any time.")

    def __init__(
        self, file: TensorFile, spec: ModelSpec, weights: Weights, cache: KvCache, modules: Modules, profile: GpuProfile
    ) -> None:
        self.device: Device = modules.device
        self.spec = spec
        self.weights = weights
        self.cache = cache
        self.profile = profile
        self.calibration: Sequence[int] = ()
        """Tokens that are run to find outliers, where a kernel reads a single int8 plane."""
        self.flagged: frozenset[LayerOperation] = frozenset()
        """Operations whose output has an outlier: what reads it runs on an accurate kernel."""
        self._searched: int | None = None  # the generation of the weights that `flagged` was found with
        self._asked: object = None  # weights and profile that were last looked at for whether to search
        self.modules = modules
        self.launcher = Launcher(self.device, modules)
        watch(self.launcher)
        self.timing = ActiveProfiler()
        """Its `profiler` times every launch of the steps; the graphs are then stamped, and have the bits that they have. Those
        of a bundle cannot be: then launches are timed one by one."""
        self.workspace = Workspace(self.device)
        self.file = file
        """What the weights came from."""
        self._rope = RopeTable(cache, lambda room: rope_cosines(file, spec, room))
        self._plans: TokenPlans | None = None
        self._plans_of: object = None  # what they were made for
        self._captures = 0  # by plans that are gone

    @classmethod
    def build(
        cls,
        file: TensorFile,
        spec: ModelSpec,
        modules: Modules,
        context: int,
        progress: Progress | None,
        profile: GpuProfile | None = None,
        calibration: Sequence[int] = (),
    ) -> Self:
        """Upload the weights, allocate the buffers, load every kernel and check every launch once; without a `profile` the
        environment's counts. What was taken stays taken if that fails: the caller knows what to give back."""
        profile = profile or GpuProfile.from_environment()
        if profile.allows("repack") and modules.bundle is not None:
            raise ArgumentError("a bundle has kernels for the blocks of the file; the profile repacks them, which needs others")
        report = progress or (lambda stage, done, total: None)
        device = modules.device
        file, spec = loaded(file, spec, device.ranks)
        names = list(expected_tensors(spec))
        repacking = Repacking(repacked(file, spec, profile), Launcher(device, modules))
        weights = load_weights(device, file, names, lambda done, total: report("weights", done, total), repacking=repacking)
        cache = new_cache(device, spec, context)
        model = cls(file, spec, weights, cache, modules, profile)
        model.calibration = calibration
        model.prepare(lambda done, total: report("kernels", done, total))
        return model

    @property
    def profiler(self) -> TileProfiler | None:
        """That of `timing`."""
        return self.timing.profiler

    @profiler.setter
    def profiler(self, profiler: TileProfiler | None) -> None:
        self.timing.profiler = profiler

    @property
    def attention(self) -> AttentionChoice:
        """How the tokens of a prompt attend now, and why."""
        return rows_attention(self.spec, self.profile, self.device.target, "f32")

    @property
    def token_attention(self) -> TokenAttentionChoice:
        """How the token of a step attends now, and why."""
        return token_attention(self.spec, self.profile)

    @property
    def persistent(self) -> PersistentGrid | None:
        """By how many blocks a token goes from one attention to the next in one launch; None if it does not, as where devices
        share the model: each of them waits for the others in between."""
        if self.spec.ranks > 1:
            return None
        return choose_persistent(self.profile, self.device.target, GpuModel.of(self.device).multiprocessors)

    def model_graph(self, flagged: Collection[LayerOperation] = ()) -> ModelGraph:
        """What all steps of the model are made of now. flagged: operations whose output has an outlier."""
        return ModelGraph(self.spec, self.weights, self.profile, flagged, self.persistent)

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> TokenPlans:
        """The launches of a token for what the model is now: as they were, or chosen, loaded and checked anew."""
        if self._plans is not None and self._plans_of == self._dependencies():
            return self._plans
        self._drop_plans()
        dependent = self.profile.has_dependent_launches(self.device.target)
        launches = self._launches()
        if any(reads_one_digit(call.kernel) for call in launches.calls):
            self._find_outliers()
            launches = self._launches(self.flagged)
        self.modules.preload(
            kernels_of(launches.calls, self.modules.device.target, dependent=dependent), progress, dependent=dependent
        )
        self._asked = self.weights.generation, self.profile
        self._plans = TokenPlans(self.launcher, launches, dependent=dependent)
        self._plans_of = self._dependencies()
        return self._plans

    @property
    def captures(self) -> int:
        """How many graphs were captured so far."""
        return self._captures + (0 if self._plans is None else self._plans.captures)

    def graph(self, *, head: bool = True) -> LaunchGraph:
        """The graph of a step, captured now unless that has been done for what the model is now."""
        return self.prepare().graph(head=head, stamped=self._stamped)

    @abstractmethod
    def step(self, token: int | None = None, *, head: bool = True) -> None:
        """Run one more token of a sequence."""

    @abstractmethod
    def beside(self, profile: GpuProfile) -> AbstractContextManager[Self]:
        """In the block, another of these with the same weights and the same memory of keys and values."""

    def _dependencies(self) -> object:
        """What the launches depend on: equal while they need not be made anew."""
        return self.workspace.generation, self.cache.generation, self.weights.generation, self.profile, self.flagged

    def _launch(self, plans: TokenPlans, position: int, head: bool, *, draw: bool) -> None:
        if self.launcher.observers:
            plans.run(head=head, draw=draw)
            return
        profiler = self.timing.profiler
        if profiler is not None and not self._stamped:
            profiler.watch(self.launcher, plans.of(head=head, draw=draw), position + 1)
            return
        graph = plans.graph(head=head, stamped=self._stamped, draw=draw)
        graph.replay()
        if profiler is not None:
            profiler.add(graph, length=position + 1)

    @property
    def _stamped(self) -> bool:
        """Whether the launches of the graphs are to leave their times."""
        return self.timing.profiler is not None and self.modules.stamps

    @property
    def _watched(self) -> bool:
        """Whether each step is to be seen by itself."""
        return bool(self.launcher.observers) or self.profiler is not None or self.device.sanitize

    def _find_outliers(self) -> None:
        """Unless it has been done for these weights: run the calibration's tokens with every input taken for an outlier, so on
        accurate kernels, and see which operations give one. The answer depends on the model alone, not on what it was asked
        before. The sequence stays: they run in a workspace of their own, and its keys and values are set aside."""
        if self._searched == self.weights.generation:
            return
        tokens = self.calibration[: self.cache.max_len]
        with self.beside(self.profile.with_outputs) as trial:
            trial.flagged, trial._searched = frozenset(sites(self.spec.layers)), self.weights.generation
            self.flagged = find_outliers(trial.launcher, self.spec.layers, self.cache, tokens, trial.step)
            self._searched = self.weights.generation

    def _launches(self, flagged: Collection[LayerOperation] = ()) -> TokenLaunches:
        model, attention = self.model_graph(flagged), self.token_attention
        return TokenLaunches.build(
            model, self.cache, self.workspace, self._rope.buffer, fused=self.modules.fused, attention=attention
        )

    def _drop_plans(self) -> None:
        if self._plans is not None:
            self._captures += self._plans.captures
            self._plans.close()
            self._plans = None

    def _free_own(self) -> None:
        """Give back what this model alone uses."""
        self._drop_plans()
        self._rope.free()
        self.workspace.free()
