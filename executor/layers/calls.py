"""What becomes of launches: they are prepared and started together, or collected for later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from executor.launch.launch import Launcher, LayerOperation, Plan
from executor.layers.graph.binding import Binding, SharedForms
from executor.memory.workspace import Workspace
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels import compose


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


def in_order(calls: Sequence[KernelCall], *, dependent: bool) -> tuple[KernelCall, ...]:
    """The calls with the kernels that are fastest one after the other (compose.between), if they are dependent launches; else
    as they were."""
    if not dependent:
        return tuple(calls)
    kernels = [None, *(call.kernel for call in calls), None]
    neighbours = zip(kernels, kernels[2:], strict=False)
    chosen = [_between(call.kernel, *two) for call, two in zip(calls, neighbours, strict=True)]
    behind = [*(call.arguments for call in calls[1:]), {}]
    return tuple(
        call._replace(kernel=kernel, arguments=call.arguments | _borrowed(kernel, after))
        for call, kernel, after in zip(calls, chosen, behind, strict=True)
    )


def _borrowed(kernel: KernelType, after: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are those of the launch after it."""
    return {own: after[name] for own, name in compose.borrowed(kernel).items()}


@lru_cache(maxsize=256)
def _between(kernel: KernelType, before: KernelType | None, behind: KernelType | None) -> KernelType:
    """Found once, since layers have the same kernels."""
    return compose.between(kernel, before, behind)


def kernels_of(calls: Iterable[KernelCall], *, dependent: bool) -> list[KernelType]:
    """What `plans_of` loads, each once."""
    return list(dict.fromkeys(compose.as_dependent(call.kernel) if dependent else call.kernel for call in calls))


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
