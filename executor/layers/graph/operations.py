"""The operations of a step. Each says which values it reads and writes, and is bound to the launch that does it. Rules replace
operations one after another by one that does their work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from executor.layers.graph.binding import Binding, shaped
from executor.layers.graph.rows import enqueue_rows, for_rows
from executor.layers.graph.values import Form, StepValue
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import HalfForm, KernelType
from ptxgen.kernels.activation.elementwise import AddInPlace, Gelu
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.norm.rmsnorm import RmsNorm


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
    """y is the RMSNorm of x; gamma: f32[width]. leaves: the form that is written for its readers, beside y. by_many: so many
    blocks read it that each of them should find it whole."""

    x: StepValue
    y: StepValue
    gamma: GpuBuffer
    eps: float
    leaves: Form | None = None
    by_many: bool = False

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.y,)

    def bind(self, b: Binding) -> None:
        tokens, width = self.x.tokens, self.x.width
        arguments = {"y": self.y.flat, "x": self.x.flat, "gamma": self.gamma, "eps": self.eps}
        if self.leaves is None:
            enqueue_rows(b, self.name, RmsNorm(hidden=width), tokens, **arguments)
            return
        kernel: KernelType
        if isinstance(self.leaves, HalfForm):
            kernel = RmsNorm(hidden=width, m=tokens, **asdict(self.leaves))
        else:
            one = RmsNorm(hidden=width, digits=self.leaves)
            kernel = for_rows(one, tokens, y=self.y.flat, x=self.x.flat, gamma=self.gamma)
        b.write(self.name, kernel, self.y, self.leaves, **shaped(kernel, **arguments))


@dataclass(frozen=True, kw_only=True, eq=False)
class Add(Operation):
    """y = x + delta, in place: y lies where x does."""

    x: StepValue
    delta: StepValue
    y: StepValue

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.x, self.delta)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.y,)

    def bind(self, b: Binding) -> None:
        kernel = AddInPlace(n=self.y.width)
        enqueue_rows(b, self.name, kernel, self.y.tokens, x=self.y.flat, delta=self.delta.flat)


@dataclass(frozen=True, kw_only=True, eq=False)
class Swiglu(Operation):
    """y = silu(gate) * up. leaves: the form that is written for its reader. An f16 split is all that is written: nothing reads
    the f32 values, which would be a quarter of the traffic."""

    gate: StepValue
    up: StepValue
    y: StepValue
    leaves: Form | None = None

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.gate, self.up)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.y,)

    def bind(self, b: Binding) -> None:
        n, tokens, form = self.y.width, self.y.tokens, self.leaves
        read = {"gate": self.gate.flat, "up": self.up.flat}
        arguments = {"y": self.y.flat, **read}
        if form is None:
            enqueue_rows(b, self.name, FusedSwiglu(n=n), tokens, **arguments)
        elif isinstance(form, HalfForm):
            split = FusedSwiglu(n=n, m=tokens, **asdict(form))
            b.write(self.name, split, self.y, form, **shaped(split, **read))
        else:
            planes = for_rows(FusedSwiglu(n=n, digits=form), tokens, **arguments)
            b.write(self.name, planes, self.y, form, **shaped(planes, **arguments))


@dataclass(frozen=True, kw_only=True, eq=False)
class GeluOf(Operation):
    """y = gelu(x)."""

    x: StepValue
    y: StepValue

    @property
    def reads(self) -> tuple[StepValue, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        return (self.y,)

    def bind(self, b: Binding) -> None:
        enqueue_rows(b, self.name, Gelu(n=self.y.width), self.y.tokens, y=self.y.flat, x=self.x.flat)


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
