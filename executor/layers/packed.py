"""Activations in the forms that kernels read instead of f32, made once for all that read them: int8 digits or f16 halves. What
these are is defined in ptxgen/kernels/quantize."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Protocol

from executor.base.errors import LaunchError
from executor.memory.buffers import GpuBuffer, Writes
from executor.memory.workspace import Workspace
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import HalfForm, KernelType
from ptxgen.kernels.quantize.pack_halves import PackF16
from ptxgen.kernels.quantize.quantize import Quantize

OWN_DIGITS: Final = {"y_digits": "digits", "y_scales": "scales", "y_sums": "sums"}
"""What a kernel that reads digits calls those that it writes, and what their readers do."""

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
    buffers: Mapping[str, Any]


@dataclass(frozen=True)
class _Norm:
    """An RMSNorm that is not complete: what it is the norm of and where that would go, as they were, the gammas, and the
    arguments that stand for it. alone: of what it is the norm of, nothing else was gathered."""

    x: State
    normed: State
    gamma: int
    form: Form
    made: State
    arguments: Mapping[str, Any]
    alone: bool = False


class PackedActivations:
    """The digits and halves of whatever was packed last, by rows, length and form, in buffers of the workspace.

    They are valid while neither the activations that they came from nor they themselves have been written since, by `version`
    of a buffer; no flag has to be cleared. workspace: where the buffers of launches are."""

    def __init__(self, workspace: Workspace, version: Callable[[GpuBuffer], int] = attrgetter("version")) -> None:
        self.workspace = workspace
        self._version = version
        self._packed: dict[tuple[int, int, Form], _Packed] = {}
        self._norm: _Norm | None = None

    def of(self, launch: Enqueue, operation: str, x: GpuBuffer, form: Form) -> Mapping[str, Any]:
        """The arguments that stand for x, f32[k] or f32[rows, k]: `digits`, `scales` and `sums`, or `halves` and `scales`; made
        now unless that has been done. `operation` is the one that wants them. Of a norm that was left to its readers these are
        the digits of gamma * x, and `squares` and `eps` (KernelType.with_norm). LaunchError if it was left in another form."""
        if self._norm is not None and self._norm.normed == self._state(x):
            if self._norm.form != form:
                raise LaunchError(
                    f"{operation} reads {_named(form)} of a norm that was left to its readers in {_named(self._norm.form)}; "
                    "all of them must read these"
                )
            return self._norm.arguments
        rows, k = _size(x)
        kernel, what = _packing(form, rows, k)
        made = self._packed.get((rows, k, form))
        if made is None or made != self._as_they_are(x, made.buffers):
            buffers = self._buffers(rows, k, form)
            launch(f"{operation} input as {what}", kernel, x=x.view(0, (rows, k)), **buffers)
            made = self._packed[rows, k, form] = self._as_they_are(x, buffers)
        return made.buffers

    def write(
        self, launch: Enqueue, operation: str, kernel: KernelType, activations: GpuBuffer, form: Form,
        received: Mapping[str, Any] = MappingProxyType({}), /, **arguments: Any,
    ) -> None:  # fmt: skip
        """Launch a kernel that writes a form of activations, f32[k] or f32[rows, k], and these, too, unless all that is read is
        this form; `arguments`: all that it takes but the form's. A kernel that also reads digits, from memory that it may not
        write, calls those that it writes OWN_DIGITS. received: what readers take, too, where it sends its part of the row
        (KernelType.in_parts)."""
        rows, k = _size(activations)
        reads = "digits" in arguments
        buffers = self._buffers(rows, k, form, " by who reads others" if reads else "")
        launch(
            operation, kernel, **arguments, **({own: buffers[name] for own, name in OWN_DIGITS.items()} if reads else buffers)
        )
        self._packed[rows, k, form] = self._as_they_are(activations, {**buffers, **received})

    def leave_norm(
        self, launch: Enqueue, operation: str, kernel: KernelType, *, x: GpuBuffer, normed: GpuBuffer, gamma: GpuBuffer,
        eps: float, **arguments: Any,
    ) -> None:  # fmt: skip
        """Launch a kernel that writes x, f32[k], as `y`, and what its norm needs (KernelType.with_residual_norm): `normed` is
        not written, but counts as the norm for whoever reads it by `of`. `arguments`: all that it takes but these."""
        form = kernel.parameters()["out_digits"]
        made = self.workspace.arrays(kernel, f"norm of {x.shape[-1]} in {form} digits", (*OWN_DIGITS, "squares"))
        launch(operation, kernel, y=x, gamma=gamma, **arguments, **made)
        read = {name: made[digits] for digits, name in OWN_DIGITS.items()} | {"squares": made["squares"], "eps": eps}
        self._norm = _Norm(self._state(x), self._state(normed), gamma.pointer, form, self._state(made["y_digits"]), read)

    def gather_norm(
        self, launch: Enqueue, operation: str, kernel: KernelType, *, x: GpuBuffer, whole: GpuBuffer, normed: GpuBuffer,
        gamma: GpuBuffer, eps: float, received: Mapping[str, Any], **arguments: Any,
    ) -> None:  # fmt: skip
        """Launch a kernel that makes of the x of all ranks, parts of `whole`, f32[k], what the norm of that needs: `normed` and
        `whole` are not written, but the first counts as the norm as after `leave_norm`. received: as of `write`. `arguments`:
        all that it takes but these."""
        form = kernel.parameters()["digits"]
        made = self.workspace.arrays(kernel, f"norm of {whole.size} in {form} digits", (*OWN_DIGITS.values(), "squares"))
        launch(operation, kernel, x=x, gamma=gamma, **arguments, **made)
        read, states = {**made, "eps": eps, **received}, (self._state(whole), self._state(normed))
        self._norm = _Norm(*states, gamma.pointer, form, self._state(made["digits"]), read, alone=True)

    def lacks(self, x: GpuBuffer) -> bool:
        """Whether x itself is not there: its norm alone was gathered."""
        return self._norm is not None and self._norm.alone and self._norm.x == self._state(x)

    def has_norm(self, x: GpuBuffer, normed: GpuBuffer, gamma: GpuBuffer, form: Form | None) -> bool:
        """Whether `normed` counts as this norm of x, for readers of this form."""
        norm = self._norm
        if norm is None:
            return False
        digits: GpuBuffer = norm.arguments["digits"]
        now = self._state(x), self._state(normed), gamma.pointer, form, self._state(digits)
        return now == (norm.x, norm.normed, norm.gamma, norm.form, norm.made)

    def forget(self) -> None:
        """Nothing counts as packed any more: launches that should have done it did not happen."""
        self._packed.clear()
        self._norm = None

    def _buffers(self, rows: int, k: int, form: Form, made: str = "") -> dict[str, GpuBuffer]:
        kernel, _ = _packing(form, rows, k)
        written = [name for name, array in kernel.signature().items() if isinstance(array, Array) and array.direction == "out"]
        size = str(k) if rows == 1 else f"{rows} x {k}"
        return self.workspace.arrays(kernel, f"{_named(form)} of {size}{made}", written)

    def _as_they_are(self, activations: GpuBuffer, buffers: Mapping[str, Any]) -> _Packed:
        return _Packed(self._state(activations), self._state(next(iter(buffers.values()))), buffers)

    def _state(self, buffer: GpuBuffer) -> State:
        return buffer.allocation.writes, buffer.pointer, self._version(buffer)


def _size(x: GpuBuffer) -> tuple[int, int]:
    """How many rows, of how many values."""
    return prod(x.shape[:-1]), x.shape[-1]


def _named(form: Form) -> str:
    return f"{form.parts} by {form.lane_run} halves" if isinstance(form, HalfForm) else f"{form} digits"


def _packing(form: Form, rows: int, k: int) -> tuple[KernelType, str]:
    """The kernel that makes the form of f32[rows, k], and what that is in words."""
    if isinstance(form, HalfForm):
        return PackF16(m=rows, k=k, parts=form.parts, lane_run=form.lane_run), "halves"
    return Quantize(form, n=k, rows=rows), "digits"
