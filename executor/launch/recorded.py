"""The launches of a graph, to be printed or compared, and what captures one without code: a dry run. What a model launches is
executor/model/recorded_step.py's business."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from executor.device.protocol import Device, Grid, LoadedKernel
from executor.launch.graph import LaunchGraph
from executor.launch.launch import LayerOperation
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.parts import usual_parameters


@dataclass(frozen=True)
class RecordedLaunch:
    """A launch of a graph. arguments: buffers and scalars by name; after: the numbers of the launches that must have ended
    before it; dependent: it starts before the launch before it has ended, and waits by itself."""

    place: LayerOperation
    kernel: KernelType
    grid: Grid
    block: Grid
    arguments: Mapping[str, Any]
    after: tuple[int, ...]
    dependent: bool

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the weights among its arguments: norms, biases and matrices, in the order of its signature."""
        buffers = (value for value in self.arguments.values() if isinstance(value, GpuBuffer))
        return tuple(dict.fromkeys(buffer.name for buffer in buffers if buffer.name.endswith((".weight", ".bias"))))

    def facts(self) -> dict[str, Any]:
        """Ready for JSON. A buffer is its name, dtype and shape."""
        return {
            "layer": self.place.layer,
            "operation": self.place.operation,
            "kernel": self.kernel.name,
            "parameters": {name: _fact(value) for name, value in self.kernel.parameters().items()},
            "tensors": list(self.tensors),
            "grid": list(self.grid),
            "block": list(self.block),
            "arguments": {name: _fact(value) for name, value in self.arguments.items()},
            "after": list(self.after),
            "dependent": self.dependent,
        }


def launches_of(graph: LaunchGraph) -> tuple[RecordedLaunch, ...]:
    """The launches of a graph, in order, whether it was captured on a device or in a dry run."""
    return tuple(
        RecordedLaunch(plan.place, plan.kernel, node.grid, node.block, plan.arguments, node.after, node.dependent)
        for plan, node in zip(graph.plans, graph.nodes, strict=True)
    )


@dataclass(frozen=True)
class FoldedLaunch:
    """Launches one after another that are alike: of one operation, by one kernel. launches: how many."""

    operation: str
    kernel: KernelType
    dependent: bool
    launches: int

    @property
    def parameters(self) -> dict[str, Any]:
        """Those that are not the kernel's defaults, its shape included."""
        usual = usual_parameters(self.kernel)
        return {name: value for name, value in self.kernel.parameters().items() if name not in usual or usual[name] != value}


@dataclass(frozen=True)
class FoldedLayers:
    """What each of some layers launches, in order. layers: their numbers; none for what comes before or after all layers."""

    layers: tuple[int, ...]
    launches: tuple[FoldedLaunch, ...]

    @property
    def numbers(self) -> str:
        """As `0-3, 6`; `-` for none."""
        runs = [list(run) for _, run in groupby(enumerate(self.layers), lambda one: one[1] - one[0])]
        return ", ".join(f"{run[0][1]}-{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs) or "-"


def folded(launches: Sequence[RecordedLaunch]) -> list[FoldedLayers]:
    """The launches of a step in order, layers that launch the same as one of them, where the first of them stands."""
    found: list[FoldedLayers] = []
    for layer, own in groupby(launches, lambda launch: launch.place.layer):
        alike = tuple(_alike(own))
        at = next((at for at, one in enumerate(found) if layer is not None and one.layers and one.launches == alike), None)
        if at is None:
            found.append(FoldedLayers(() if layer is None else (layer,), alike))
        else:
            found[at] = replace(found[at], layers=(*found[at].layers, layer))
    return found


def _alike(launches: Iterator[RecordedLaunch]) -> Iterator[FoldedLaunch]:
    for (operation, kernel, dependent), own in groupby(launches, lambda one: (one.place.operation, one.kernel, one.dependent)):
        yield FoldedLaunch(operation, kernel, dependent, len(list(own)))


class NoCode:
    """In the place of Modules: all kernels count as loaded."""

    bundle = None
    fused = True
    stamps = False

    def __init__(self, device: Device) -> None:
        self.device = device

    def load(self, kernel: KernelType, *, dependent: bool = False, stamped: bool = False) -> LoadedKernel:
        """No code."""
        return LoadedKernel(kernel.name, handle=None)

    def preload(self, kernels: Sequence[KernelType], progress: object = None, *, dependent: bool = False) -> None:
        """Nothing to load."""


def _fact(value: Any) -> Any:
    """A buffer, a scalar, or a parameter of a kernel, as a weight format, by its name."""
    if isinstance(value, GpuBuffer):
        return {"buffer": value.name, "dtype": value.dtype.name, "shape": list(value.shape)}
    return value if isinstance(value, bool | int | float | str) else str(value)
