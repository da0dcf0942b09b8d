"""How a list of launches is run: together, or collected for later. What is launched is the caller's business (the layer, an
FFN)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from executor.launch.launch import Launcher, LayerOperation, Plan
from executor.layers.packed import Enqueue, PackedActivations
from executor.memory.buffers import GpuBuffer, Writes
from executor.memory.workspace import Workspace
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.compose import start_early


class LaunchQueue(Enqueue, Protocol):
    """What layers give their launches to."""

    @property
    def packed(self) -> PackedActivations:
        """The activation digits and halves that its launches share."""

    @property
    def fused(self) -> bool:
        """Whether kernels are wanted that do several operations at once."""


def scratch_of(launch: LaunchQueue, operation: str, kernel: KernelType) -> Mapping[str, GpuBuffer]:
    """What a kernel has as scratch: of this operation alone, since launches of others may run at the same time, and of this
    kernel, since another layer may have a matrix of another format, whose kernel wants other arrays."""
    return launch.packed.workspace.arrays(kernel, f"{operation} by {kernel.name}", kernel.scratch)


class LaunchBatch:
    """The launches that one call makes: each is checked when it is named, and `start` launches them when all have been. What
    they will write counts as written from the moment they are named, so that what is derived from it is derived anew.

    packed: where activations are shared with calls before; layer: the one that runs, for messages and profiles."""

    def __init__(self, launcher: Launcher, packed: PackedActivations, layer: int | None = None, *, fused: bool = True) -> None:
        self.packed = packed
        self.fused = fused
        self.layer = layer
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


def in_order(calls: Sequence[KernelCall], *, early: bool) -> tuple[KernelCall, ...]:
    """The calls with the kernels that are fastest where they are launched one behind the other (KernelType.between). early:
    whether they start early; else all are as they were."""
    if not early:
        return tuple(calls)
    kernels = [None, *(call.kernel for call in calls), None]
    neighbours = zip(kernels, kernels[2:], strict=False)
    chosen = [_between(call.kernel, *two) for call, two in zip(calls, neighbours, strict=True)]
    behind = [*(call.arguments for call in calls[1:]), {}]
    return tuple(
        call._replace(kernel=kernel, arguments=call.arguments | {own: after[name] for own, name in kernel.borrowed.items()})
        for call, kernel, after in zip(calls, chosen, behind, strict=True)
    )


@lru_cache(maxsize=256)
def _between(kernel: KernelType, before: KernelType | None, behind: KernelType | None) -> KernelType:
    """Found once, since layers have the same kernels."""
    return kernel.between(before, behind)


def kernels_of(calls: Iterable[KernelCall], *, early: bool) -> list[KernelType]:
    """What `plans_of` loads, each once."""
    return list(dict.fromkeys(start_early(call.kernel) if early else call.kernel for call in calls))


def plans_of(launcher: Launcher, calls: Iterable[KernelCall], *, early: bool) -> tuple[Plan, ...]:
    """The launches, checked; early: as Launcher.prepare_early."""
    prepare = launcher.prepare_early if early else launcher.prepare
    return tuple(prepare(call.kernel, call.place, **call.arguments) for call in calls)


class Recorder:
    """Collects calls and launches none. `layer`: the one that is being recorded. Nothing is written on the device yet, so the
    recorder counts by itself what its calls are going to write: what they derive from it is then derived anew."""

    def __init__(self, workspace: Workspace, layer: int | None = None, *, fused: bool = True) -> None:
        writes: Counter[Writes] = Counter()  # not `self` in the lambda: the cycle would keep a dropped model's workspace
        self.packed = PackedActivations(workspace, lambda buffer: writes[buffer.allocation.writes])
        self.fused = fused
        self.layer = layer
        self._calls: list[KernelCall] = []
        self._writes = writes

    def __call__(self, operation: str, kernel: KernelType, /, **arguments: Any) -> None:
        self._calls.append(KernelCall(kernel, arguments, LayerOperation(self.layer, operation)))
        for name, argument in kernel.signature().items():
            if isinstance(argument, Array) and argument.direction != "in":
                self._writes[arguments[name].allocation.writes] += 1

    def take(self) -> tuple[KernelCall, ...]:
        """What was collected since the last time."""
        calls, self._calls = tuple(self._calls), []
        return calls
