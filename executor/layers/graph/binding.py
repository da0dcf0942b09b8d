"""Where operations become launches: each is bound to a kernel and to buffers of a workspace. What is launched is decided before
(rules.py); what happens to the launches is up to the subclass (calls.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, Final

from executor.layers.graph.values import ActivationSource, Form, StepValue, form_name
from executor.memory.buffers import GpuBuffer, Writes
from executor.memory.workspace import Workspace
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import HalfForm, KernelType
from ptxgen.kernels.quantize.pack_f16 import PackF16
from ptxgen.kernels.quantize.quantize import Quantize

OWN_PLANES: Final = {"y_digits": "digits", "y_scales": "scales", "y_sums": "sums"}
"""The arguments of a kernel for int8 planes that it writes, where it also reads some; and what readers call them."""

_Slot = tuple[int, int, Form]
"""Tokens, width and form: what the buffers of packed activations are made for."""


class Binding(ABC):
    """Takes launches by name, and knows in which forms values are there. fused: whether kernels are wanted that do several
    operations at once; layer: the one whose operations are being bound; shared: forms made by calls before."""

    def __init__(
        self, workspace: Workspace, layer: int | None = None, *, fused: bool = True, shared: SharedForms | None = None
    ) -> None:
        self.workspace = workspace
        self.layer = layer
        self.fused = fused
        self._shared = shared
        self._packed: dict[_Slot, tuple[StepValue, ActivationSource]] = {}
        self._apart: dict[tuple[StepValue, Form], ActivationSource] = {}
        self._deferred: dict[StepValue, ActivationSource] = {}

    @abstractmethod
    def __call__(self, operation: str, kernel: KernelType, /, **arguments: Any) -> None:
        """Launch a kernel. Errors as Launcher.prepare, now or when the launch is prepared."""

    def scratch(self, operation: str, kernel: KernelType) -> Mapping[str, GpuBuffer]:
        """A kernel's scratch: of this operation alone, since launches of others may run at the same time; and of this kernel,
        since another layer may have a matrix of another format, whose kernel needs other arrays."""
        return self.workspace.arrays(kernel, f"{operation} by {kernel.name}", kernel.scratch)

    def source(self, operation: str, x: StepValue, form: Form | None) -> ActivationSource:
        """What stands for x in this form. It is made now unless it is there; `operation` is its reader."""
        if form is None:
            return ActivationSource(None, {"x": x.flat})
        if x in self._deferred:
            return self._deferred[x]
        if (x, form) in self._apart:
            return self._apart[x, form]
        slot = x.tokens, x.width, form
        value, source = self._packed.get(slot, (None, None))
        if value is x and source is not None:
            return source
        if self._shared is not None and (source := self._shared.find(slot, x)) is not None:
            return source
        kernel, what = _packing(form, x)
        buffers = self._buffers(x, form)
        self(f"{operation} input as {what}", kernel, x=x.buffer.view(0, (x.tokens, x.width)), **buffers)
        return self._keep(slot, x, ActivationSource(form, buffers))

    def write(
        self,
        operation: str,
        kernel: KernelType,
        y: StepValue,
        form: Form,
        sent: Mapping[str, Any] = MappingProxyType({}),
        parts: int = 1,
        /,
        **arguments: Any,
    ) -> None:
        """Launch a kernel that writes a form of y. `arguments`: all that it takes but the form's. sent: what readers take, too,
        where the kernel sends its part of y to `parts` ranks."""
        reads = "digits" in arguments
        buffers = self._buffers(y, form, " by who reads others" if reads else "")
        own = {name: buffers[planes] for name, planes in OWN_PLANES.items()} if reads else buffers
        self(operation, kernel, **arguments, **own)
        self._keep((y.tokens, y.width, form), y, ActivationSource(form, {**buffers, **sent}, parts=parts))

    def write_apart(self, operation: str, kernel: KernelType, y: StepValue, form: Form, /, **arguments: Any) -> None:
        """As `write`, in buffers that no other value of its width takes before its last reader has run."""
        buffers = self._buffers(y, form, " read past attention")
        self(operation, kernel, **arguments, **buffers)
        self._apart[y, form] = ActivationSource(form, buffers)

    def defer(self, normed: StepValue, source: ActivationSource) -> None:
        """`normed` is a norm that its readers complete."""
        self._deferred[normed] = source

    def keep_shared(self) -> None:
        """Let later calls find the forms that this one has made, after its writes have been counted."""
        if self._shared is not None:
            for slot, (value, source) in self._packed.items():
                self._shared.keep(slot, value, source)
            self._packed.clear()

    def _keep(self, slot: _Slot, value: StepValue, source: ActivationSource) -> ActivationSource:
        self._packed[slot] = value, source
        return source

    def _buffers(self, x: StepValue, form: Form, made: str = "") -> dict[str, GpuBuffer]:
        kernel, _ = _packing(form, x)
        written = [name for name, array in kernel.signature().items() if isinstance(array, Array) and array.direction == "out"]
        size = str(x.width) if x.tokens == 1 else f"{x.tokens} x {x.width}"
        return self.workspace.arrays(kernel, f"{form_name(form)} of {size}{made}", written)


@dataclass(frozen=True)
class _State:
    """A buffer as it was: the count of its memory's writes, its address, and how many there had been. Keeps no memory alive."""

    writes: Writes
    pointer: int
    count: int

    @classmethod
    def of(cls, buffer: GpuBuffer) -> _State:
        return cls(buffer.allocation.writes, buffer.pointer, buffer.version)


class SharedForms:
    """Forms of activations that calls of one session share. One is valid while neither the activations that it was made from
    nor the form itself have been written since, by `version` of a buffer: no flag has to be cleared."""

    def __init__(self) -> None:
        self._made: dict[_Slot, tuple[_State, _State, ActivationSource]] = {}

    def find(self, slot: _Slot, x: StepValue) -> ActivationSource | None:
        """The form of x, if it was made and is valid."""
        made = self._made.get(slot)
        if made is None:
            return None
        of, itself, source = made
        return source if (of, itself) == (_State.of(x.buffer), _State.of(_first(source))) else None

    def keep(self, slot: _Slot, x: StepValue, source: ActivationSource) -> None:
        """x has this form now."""
        self._made[slot] = _State.of(x.buffer), _State.of(_first(source)), source

    def forget(self) -> None:
        """No form is valid any more: launches that should have made it did not happen."""
        self._made.clear()


def shaped(kernel: KernelType, /, **arguments: Any) -> dict[str, Any]:
    """The arguments in the shapes of the kernel's signature, where they have as many elements."""
    signature = kernel.signature()
    return {name: _shaped(signature.get(name), value) for name, value in arguments.items()}


def _shaped(argument: object, value: Any) -> Any:
    if not isinstance(argument, Array) or not isinstance(value, GpuBuffer) or value.shape == argument.shape:
        return value
    return value.view(0, argument.shape) if (prod(value.shape), value.dtype) == (argument.size, argument.dtype) else value


def _first(source: ActivationSource) -> GpuBuffer:
    buffer: GpuBuffer = next(iter(source.arguments.values()))
    return buffer


def _packing(form: Form, x: StepValue) -> tuple[KernelType, str]:
    """The kernel that makes the form of f32[tokens, width], and what that is in words."""
    if isinstance(form, HalfForm):
        return PackF16(m=x.tokens, k=x.width, parts=form.parts, lane_run=form.lane_run), "halves"
    return Quantize(form, n=x.width, rows=x.tokens), "digits"
