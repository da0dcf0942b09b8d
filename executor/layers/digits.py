"""Activation digits, made once for all kernels that read them. What they are is defined in ptxgen/kernels/quantize."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import Any, Protocol

from executor.memory.buffers import GpuBuffer, Writes
from executor.memory.workspace import Workspace
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.quantize.quantize import Quantize


class Enqueue(Protocol):
    """Takes the name of an operation (`attn_q`), a kernel and its arguments by name, to be launched."""

    def __call__(self, operation: str, kernel: KernelType, /, **arguments: Any) -> None:
        """Errors as Launcher.prepare, now or when the launch is prepared."""


State = tuple[Writes, int, int]
"""A buffer as it was: the count of its memory's writes, its address, and how many there had been. It keeps no memory alive."""


@dataclass(frozen=True)
class _Quantised:
    source: State
    digits: State


class DigitCache:
    """The digits of whatever was quantised last, by rows, length and number of digits, in buffers of the workspace.

    They are valid while neither the activations that they came from nor they themselves have been written since, by `version`
    of a buffer; no flag has to be cleared."""

    def __init__(self, workspace: Workspace, version: Callable[[GpuBuffer], int] = attrgetter("version")) -> None:
        self._workspace = workspace
        self._version = version
        self._quantised: dict[tuple[int, int, int], _Quantised] = {}

    def of(self, launch: Enqueue, operation: str, x: GpuBuffer, count: int) -> Mapping[str, GpuBuffer]:
        """The arguments `digits`, `scales` and `sums` that stand for x, f32[k] or f32[rows, k]; quantised now unless that has
        been done. `operation` is the one that wants them."""
        rows, k = prod(x.shape[:-1]), x.shape[-1]
        kernel = Quantize(count, n=k, rows=rows)
        buffers = self._buffers(kernel, rows, k, count)
        if self._quantised.get((rows, k, count)) != _Quantised(self._state(x), self._state(buffers["digits"])):
            launch(f"{operation} input as digits", kernel, x=x.view(0, (rows, k)), **buffers)
            self._quantised[rows, k, count] = _Quantised(self._state(x), self._state(buffers["digits"]))
        return buffers

    def write(
        self, launch: Enqueue, operation: str, kernel: KernelType, activations: GpuBuffer, count: int, /, **arguments: Any
    ) -> None:
        """Launch a kernel that writes activations, f32[k] or f32[rows, k], and their digits; `arguments`: all that it takes but
        the digits."""
        rows, k = prod(activations.shape[:-1]), activations.shape[-1]
        buffers = self._buffers(kernel, rows, k, count)
        launch(operation, kernel, **arguments, **buffers)
        self._quantised[rows, k, count] = _Quantised(self._state(activations), self._state(buffers["digits"]))

    def forget(self) -> None:
        """Nothing counts as quantised any more: launches that should have done it did not happen."""
        self._quantised.clear()

    def _buffers(self, kernel: KernelType, rows: int, k: int, count: int) -> dict[str, GpuBuffer]:
        size = str(k) if rows == 1 else f"{rows} x {k}"
        return self._workspace.arrays(kernel, f"{count} digits of {size}", ("digits", "scales", "sums"))

    def _state(self, buffer: GpuBuffer) -> State:
        return buffer.allocation.writes, buffer.pointer, self._version(buffer)
