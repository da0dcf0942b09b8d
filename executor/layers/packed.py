"""Activations in the forms that kernels read instead of f32, made once for all that read them: int8 digits or f16 halves. What
these are is defined in ptxgen/kernels/quantize."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import Any, Protocol

from executor.memory.buffers import GpuBuffer, Writes
from executor.memory.workspace import Workspace
from ptxgen.dsl.kernel_type import Array, HalfForm, KernelType
from ptxgen.kernels.quantize.pack_halves import PackHalves
from ptxgen.kernels.quantize.quantize import Quantize

Form = int | HalfForm
"""What activations become for the kernels that read them: so many int8 digits, or halves."""


def form_of(kernel: KernelType) -> Form | None:
    """What a kernel multiplies a matrix by instead of f32 activations; None if it takes these."""
    return kernel.activation_halves or kernel.activation_digits or None


class Enqueue(Protocol):
    """Takes the name of an operation (`attn_q`), a kernel and its arguments by name, to be launched."""

    def __call__(self, operation: str, kernel: KernelType, /, **arguments: Any) -> None:
        """Errors as Launcher.prepare, now or when the launch is prepared."""


State = tuple[Writes, int, int]
"""A buffer as it was: the count of its memory's writes, its address, and how many there had been. It keeps no memory alive."""


@dataclass(frozen=True)
class _Packed:
    source: State
    made: State


class PackedActivations:
    """The digits and halves of whatever was packed last, by rows, length and form, in buffers of the workspace.

    They are valid while neither the activations that they came from nor they themselves have been written since, by `version`
    of a buffer; no flag has to be cleared. workspace: where the buffers of launches are."""

    def __init__(self, workspace: Workspace, version: Callable[[GpuBuffer], int] = attrgetter("version")) -> None:
        self.workspace = workspace
        self._version = version
        self._packed: dict[tuple[int, int, Form], _Packed] = {}

    def of(self, launch: Enqueue, operation: str, x: GpuBuffer, form: Form) -> Mapping[str, GpuBuffer]:
        """The arguments that stand for x, f32[k] or f32[rows, k]: `digits`, `scales` and `sums`, or `halves` and `scales`; made
        now unless that has been done. `operation` is the one that wants them."""
        rows, k = _size(x)
        kernel, what = _packing(form, rows, k)
        buffers = self._buffers(rows, k, form)
        if self._packed.get((rows, k, form)) != self._as_they_are(x, buffers):
            launch(f"{operation} input as {what}", kernel, x=x.view(0, (rows, k)), **buffers)
            self._packed[rows, k, form] = self._as_they_are(x, buffers)
        return buffers

    def write(
        self, launch: Enqueue, operation: str, kernel: KernelType, activations: GpuBuffer, form: Form, /, **arguments: Any
    ) -> None:
        """Launch a kernel that writes a form of activations, f32[k] or f32[rows, k], and these, too, unless all that is read is
        this form; `arguments`: all that it takes but the form's."""
        rows, k = _size(activations)
        buffers = self._buffers(rows, k, form)
        launch(operation, kernel, **arguments, **buffers)
        self._packed[rows, k, form] = self._as_they_are(activations, buffers)

    def forget(self) -> None:
        """Nothing counts as packed any more: launches that should have done it did not happen."""
        self._packed.clear()

    def _buffers(self, rows: int, k: int, form: Form) -> dict[str, GpuBuffer]:
        kernel, what = _packing(form, rows, k)
        written = [name for name, array in kernel.signature().items() if isinstance(array, Array) and array.direction == "out"]
        size = str(k) if rows == 1 else f"{rows} x {k}"
        count = form if isinstance(form, int) else f"{form.parts} by {form.lane_run}"
        return self.workspace.arrays(kernel, f"{count} {what} of {size}", written)

    def _as_they_are(self, activations: GpuBuffer, buffers: Mapping[str, GpuBuffer]) -> _Packed:
        return _Packed(self._state(activations), self._state(next(iter(buffers.values()))))

    def _state(self, buffer: GpuBuffer) -> State:
        return buffer.allocation.writes, buffer.pointer, self._version(buffer)


def _size(x: GpuBuffer) -> tuple[int, int]:
    """How many rows, of how many values."""
    return prod(x.shape[:-1]), x.shape[-1]


def _packing(form: Form, rows: int, k: int) -> tuple[KernelType, str]:
    """The kernel that makes the form of f32[rows, k], and what that is in words."""
    if isinstance(form, HalfForm):
        return PackHalves(m=rows, k=k, parts=form.parts, lane_run=form.lane_run), "halves"
    return Quantize(form, n=k, rows=rows), "digits"
