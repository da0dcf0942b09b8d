"""What becomes of launches: they are prepared and started together, or collected for later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from executor.launch.launch import Launcher, LayerOperation, Plan
from executor.layers.graph.binding import Binding, SharedForms
from executor.memory.workspace import Workspace
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels import compose
from ptxgen.target import Target


class LaunchBatch(Binding):
    """The launches that one call makes: each is checked when it is named, and `start` launches them when all have been. What
    they will write counts as written from the moment they are named, so that what is derived from it is derived anew."""

    def __init__(
        self,
        launcher: Launcher,
        workspace: Workspace,
        layer: int | None = None,
        *,
        fused: bool = True,
        shared: SharedForms | None = None,
    ) -> None:
        super().__init__(workspace, layer, fused=fused, shared=shared)
        self._launcher = launcher
        self._plans: list[Plan] = []

    def __call__(self, operation: str, kernel: KernelType, /, **arguments: Any) -> None:
        plan = self._launcher.prepare(kernel, LayerOperation(self.layer, operation), **arguments)
        plan.count_writes()
        self._plans.append(plan)

    def take(self) -> list[Plan]:
        """What was named since the last time, for others to launch."""
        plans, self._plans = self._plans, []
        return plans

    def start(self) -> None:
        """Launch what was named, or have it recorded by the capture under way."""
        for plan in self.take():
            plan.start()


class KernelCall(NamedTuple):
    """A kernel, its arguments by name, and the place in the model that it works at."""

    kernel: KernelType
    arguments: dict[str, Any]
    place: LayerOperation


def kernels_of(calls: Iterable[KernelCall], target: Target, *, dependent: bool) -> list[KernelType]:
    """What `plans_of` loads, each once."""
    return list(dict.fromkeys(compose.as_dependent(call.kernel, target) if dependent else call.kernel for call in calls))


def plans_of(launcher: Launcher, calls: Iterable[KernelCall], *, dependent: bool) -> tuple[Plan, ...]:
    """The launches, checked; dependent: as Launcher.prepare_dependent."""
    prepare = launcher.prepare_dependent if dependent else launcher.prepare
    return tuple(prepare(call.kernel, call.place, **call.arguments) for call in calls)


class Recorder(Binding):
    """Collects calls and launches none."""

    def __init__(self, workspace: Workspace, layer: int | None = None, *, fused: bool = True) -> None:
        super().__init__(workspace, layer, fused=fused)
        self._calls: list[KernelCall] = []

    def __call__(self, operation: str, kernel: KernelType, /, **arguments: Any) -> None:
        self._calls.append(KernelCall(kernel, arguments, LayerOperation(self.layer, operation)))

    def take(self) -> tuple[KernelCall, ...]:
        """What was collected since the last time."""
        calls, self._calls = tuple(self._calls), []
        return calls
