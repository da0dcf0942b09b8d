"""The operations of a step. Each says which values it reads and writes, and is bound to the launch that does it. Rules replace
operations one after another by one that does their work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from executor.layers.graph.binding import Binding, shaped
from executor.layers.graph.rows import enqueue_rows, for_rows
from executor.layers.graph.values import Form, StepValue
from executor.layers.shape import Activation, NormKind, Ungated, XieluNumbers
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import HalfForm, KernelType
from ptxgen.kernels.activation.activated import Activated
from ptxgen.kernels.activation.bias import BiasAdd
from ptxgen.kernels.activation.elementwise import AddInPlace, Gelu, Silu, SquaredRelu, Xielu
from ptxgen.kernels.activation.scales import AddScaled
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.norm.layernorm import LayerNorm
from ptxgen.kernels.norm.rmsnorm import RmsNorm

ACTIVATIONS: Final[Mapping[Activation, type[Activated]]] = {"silu": Silu, "gelu": Gelu, "relu2": SquaredRelu}
"""The kernels of activations without a gate."""


def activation_kernel(activation: Ungated, n: int) -> Activated:
    """That of n values."""
    return Xielu(n, **asdict(activation)) if isinstance(activation, XieluNumbers) else ACTIVATIONS[activation](n=n)


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation(ABC):
    """name: of the launch, such as `attn_q`; layer: None outside the layers."""

    name: str
    layer: int | None = None

    @property
    @abstractmethod
    def reads(self) -> tuple[StepValue, ...]:
        """The values that it needs."""

    @property
    @abstractmethod
    def writes(self) -> tuple[StepValue, ...]:
        """The values that it makes."""

    @property
    def reads_as(self) -> Form | None:
        """The form in which it reads activations instead of f32."""
        return None

    @abstractmethod
    def bind(self, b: Binding) -> None:
        """Launch what does it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlainLaunch(Operation):
    """A kernel that no rule knows. of_tokens: it is the kernel of one token; so many are launched in its form for several."""

    kernel: KernelType
    arguments: Mapping[str, Any] = field(hash=False)
    of_tokens: int | None = None
    writes: tuple[StepValue, ...] = ()
    reads: tuple[StepValue, ...] = ()

    def bind(self, b: Binding) -> None:
        if self.of_tokens is not None:
            enqueue_rows(b, self.name, self.kernel, self.of_tokens, **self.arguments)
        else:
            b(self.name, self.kernel, **shaped(self.kernel, **self.arguments))


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm(Operation):
    """y is the norm of x: RMSNorm, or LayerNorm where `kind` is "layer". gamma, beta: f32[width], which multiply and which are
    added at the end, where there are any. leaves: the form that is written for its readers, beside y. apart: they read it both
    before and after attention, which leaves that form too. by_many: so many blocks read it that each of them should find it
    whole. onto: it is added to this, in place: y lies where that does."""

    x: StepValue
    y: StepValue
    gamma: GpuBuffer | None
    eps: float
    kind: NormKind = "rms"
    beta: GpuBuffer | None = None
    leaves: Form | None = None
    apart: bool = False
    by_many: bool = False
    onto: StepValue | None = None

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.x,) if self.onto is None else (self.x, self.onto)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.y,)

    @property
    def completable(self) -> bool:
        """Whether its readers can complete it: an RMSNorm is one number of the row times what is known before."""
        return self.kind == "rms" and self.gamma is not None and self.onto is None

    @property
    def leaves_forms(self) -> bool:
        """Whether a kernel of it writes other forms than f32."""
        return self.kind == "layer" or self.gamma is not None

    def bind(self, b: Binding) -> None:
        tokens, width = self.x.tokens, self.x.width
        factors = {name: value for name, value in (("gamma", self.gamma), ("beta", self.beta)) if value is not None}
        arguments = {"y": self.y.flat, "x": self.x.flat, **factors}
        write = b.write_apart if self.apart else b.write
        kernel: RmsNorm | LayerNorm
        if self.kind == "rms":
            kernel = RmsNorm(hidden=width, weighted=self.gamma is not None, residual=self.onto is not None)
        else:
            kernel = LayerNorm(hidden=width, weighted=self.gamma is not None, bias=self.beta is not None)
        if self.leaves is None:
            enqueue_rows(b, self.name, kernel, tokens, **arguments, eps=self.eps)
        elif isinstance(self.leaves, HalfForm):
            split = replace(kernel, m=tokens, **asdict(self.leaves))
            write(self.name, split, self.y, self.leaves, **shaped(split, **arguments, eps=self.eps))
        else:
            planes = for_rows(replace(kernel, digits=self.leaves), tokens, **arguments)
            write(self.name, planes, self.y, self.leaves, **shaped(planes, **arguments, eps=self.eps))


@dataclass(frozen=True, kw_only=True, eq=False)
class Add(Operation):
    """y = x + scale * delta, in place: y lies where x does."""

    x: StepValue
    delta: StepValue
    y: StepValue
    scale: float = 1.0

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.x, self.delta)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.y,)

    def bind(self, b: Binding) -> None:
        n, scale = self.y.width, self.scale
        kernel = AddInPlace(n) if scale == 1.0 else AddScaled(n, scale=scale)
        enqueue_rows(b, self.name, kernel, self.y.tokens, x=self.y.flat, delta=self.delta.flat)


@dataclass(frozen=True, kw_only=True, eq=False)
class AddBias(Operation):
    """y = x + bias for each token, in place: y lies where x does. bias: f32[width]."""

    x: StepValue
    y: StepValue
    bias: GpuBuffer

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.y,)

    def bind(self, b: Binding) -> None:
        tokens, width = self.y.tokens, self.y.width
        b(self.name, BiasAdd(n=width, m=tokens), x=self.y.buffer.view(0, (tokens, width)), bias=self.bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class Swiglu(Operation):
    """y = activation(gate) * up; leaves: the form that is written for its reader."""

    gate: StepValue
    up: StepValue
    y: StepValue
    activation: Activation = "silu"
    leaves: Form | None = None

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.gate, self.up)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.y,)

    def bind(self, b: Binding) -> None:
        kernel = FusedSwiglu(n=self.y.width, activation=self.activation)
        _activate(b, self.name, kernel, self.y, self.leaves, gate=self.gate.flat, up=self.up.flat)


@dataclass(frozen=True, kw_only=True, eq=False)
class Activate(Operation):
    """y = activation(x); leaves: the form that is written for its reader."""

    x: StepValue
    y: StepValue
    activation: Ungated
    leaves: Form | None = None

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.y,)

    def bind(self, b: Binding) -> None:
        kernel = activation_kernel(self.activation, self.y.width)
        _activate(b, self.name, kernel, self.y, self.leaves, x=self.x.flat)


def _activate(b: Binding, name: str, kernel: Activated, y: StepValue, form: Form | None, **read: GpuBuffer) -> None:
    """Launch an activation for all tokens. An f16 split is all that is written: nothing reads the f32 values, which would be a
    quarter of the traffic."""
    arguments = {"y": y.flat, **read}
    if form is None:
        enqueue_rows(b, name, kernel, y.tokens, **arguments)
    elif isinstance(form, HalfForm):
        split = replace(kernel, m=y.tokens, **asdict(form))
        b.write(name, split, y, form, **shaped(split, **read))
    else:
        planes = for_rows(replace(kernel, digits=form), y.tokens, **arguments)
        b.write(name, planes, y, form, **shaped(planes, **arguments))


@dataclass(frozen=True, kw_only=True, eq=False)
class Attend(Operation):
    """out is what each query attends to. Biases, head norms and rotation come first, and keys and values join the cache:
    `enqueue` does that, which knows the layout of the cache. leaves: the form that is written for the reader of out."""

    q: StepValue
    k: StepValue
    v: StepValue
    out: StepValue
    enqueue: Callable[[Binding, StepValue, Form | None], None]
    leaves: Form | None = None

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.q, self.k, self.v)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.out,)

    def bind(self, b: Binding) -> None:
        self.enqueue(b, self.out, self.leaves)
