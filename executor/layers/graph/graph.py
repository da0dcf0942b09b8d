"""The operations of a step in order, and who reads what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from executor.choice.persistent import PersistentGrid
from executor.device.protocol import DeviceMemory
from executor.layers.graph.operations import Operation
from executor.layers.graph.values import StepValue

O = TypeVar("O", bound=Operation)  # noqa: E741


@dataclass(frozen=True)
class Setting:
    """What rules depend on beside the operations. fused: whether operations may share a launch at all; grid: of the kernels
    whose blocks stay resident for a layer, if those are wanted."""

    device: DeviceMemory
    fused: bool = True
    grid: PersistentGrid | None = None


class StepGraph:
    """Operations in the order in which they are launched. A rule replaces some that are there, each where it stands."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations = list(operations)
        self._readers: dict[StepValue, list[Operation]] = {}
        self._writer: dict[StepValue, Operation] = {}
        for operation in self.operations:
            for value in operation.reads:
                self._readers.setdefault(value, []).append(operation)
            for value in operation.writes:
                self._writer[value] = operation

    def readers(self, value: StepValue) -> list[Operation]:
        """The operations that read a value, in order."""
        return self._readers.get(value, [])

    def only_reader(self, value: StepValue, kind: type[O]) -> O | None:
        """The operation that reads a value, if it is one, of this kind."""
        readers = self.readers(value)
        return readers[0] if len(readers) == 1 and isinstance(readers[0], kind) else None

    def writer(self, value: StepValue) -> Operation | None:
        """The operation that writes a value; None for what the step is given."""
        return self._writer.get(value)

    def each(self, kind: type[O]) -> Iterator[O]:
        """The operations of a kind."""
        return (operation for operation in self.operations if isinstance(operation, kind))

    def replaced(self, changes: dict[Operation, Operation | None]) -> StepGraph:
        """With these operations in the place of others; None: without it."""
        kept = ((one, changes.get(one, one)) for one in self.operations)
        return StepGraph(now for _, now in kept if now is not None)
