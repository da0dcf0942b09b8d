"""Matrix times vector, or times each of several tokens, for any weight type, with the epilogues that rules add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from executor.base.errors import LaunchError
from executor.base.row_tiles import TILE, tiles
from executor.launch.checks import require_apart
from executor.layers.batched import gemv_of_rows, takes_rows
from executor.layers.graph.binding import OWN_PLANES, Binding, shaped
from executor.layers.graph.messages import messages
from executor.layers.graph.operations import AddBias, Operation, PlainLaunch
from executor.layers.graph.values import ActivationSource, Form, StepValue, form_of
from executor.layers.projection import Projection
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels import compose
from ptxgen.kernels.activation.bias import MatrixScale


@dataclass(frozen=True)
class Segment:
    """A matrix, by the name of its operation, and where its product goes: f32[n] or f32[tokens, n]."""

    name: str
    projection: Projection
    y: StepValue


@dataclass(frozen=True)
class OntoStream:
    """The epilogue that adds the product to a stream, in place."""

    stream: StepValue


@dataclass(frozen=True)
class DeferNorm:
    """The epilogue that adds the product to a stream, in place, and leaves what an RMSNorm of that needs: int8 planes of gamma
    * stream, and the squares. `normed` is not written: its readers complete it."""

    stream: StepValue
    normed: StepValue
    gamma: GpuBuffer
    eps: float
    planes: int


@dataclass(frozen=True)
class GateSwiglu:
    """The epilogue of two segments, gate and up, that writes y = silu(gate) * up and int8 planes of y. whole: the row that y is
    a rank's part of, where the planes are sent to the other ranks."""

    y: StepValue
    planes: int
    whole: StepValue | None = None


Epilogue = OntoStream | DeferNorm | GateSwiglu


@dataclass(frozen=True, kw_only=True, eq=False)
class Project(Operation):
    """y = x W^T for the matrix of each segment. kernel: of all segments and the epilogue, as this rank launches it; None: that
    of the only segment. Several tokens go in tiles of 8, each of which reads the weights once, unless the kernel takes all."""

    x: StepValue
    segments: tuple[Segment, ...]
    epilogue: Epilogue | None = None
    kernel: KernelType | None = None

    @property
    def reads(self) -> tuple[StepValue, ...]:
        stream = getattr(self.epilogue, "stream", None)
        return (self.x,) if stream is None else (self.x, stream)

    @property
    def writes(self) -> tuple[StepValue, ...]:
        if isinstance(self.epilogue, DeferNorm):
            return (self.segments[0].y, self.epilogue.normed)
        if isinstance(self.epilogue, GateSwiglu):
            return (self.epilogue.y,) if self.epilogue.whole is None else (self.epilogue.y, self.epilogue.whole)
        return tuple(one.y for one in self.segments)

    @property
    def projection(self) -> Projection:
        """The first matrix."""
        return self.segments[0].projection

    @property
    def plain(self) -> bool:
        """Whether it is one matrix, and no rule has made it more."""
        return self.kernel is None and self.epilogue is None

    @property
    def at_once(self) -> KernelType | None:
        """The kernel that takes all tokens in one launch; None if there is none. What rules make of it is up to it."""
        kernel, tokens = self.projection.kernel, self.x.tokens
        if tokens == 1 or takes_rows(kernel, tokens):
            return kernel
        return gemv_of_rows(kernel, tokens) if tokens <= TILE else None

    def allows(self, rule: str) -> bool:
        """Whether the product may take part in this rule of the profile: they are about products of one token."""
        return self.x.tokens > 1 or self.projection.allows(rule)

    @property
    def reads_as(self) -> Form | None:
        return form_of(self.projection.kernel)

    def bind(self, b: Binding) -> None:
        first, tokens = self.projection, self.x.tokens
        self._require_apart(first)
        kernel, source = _reading(b, self.name, self.kernel or first.kernel, self.x)
        if tokens > 1 and not takes_rows(kernel, tokens):
            self._bind_tiles(b, first, kernel, source)
            return
        if self.kernel is None:
            kernel = first.own(kernel)
        if tokens == 1 and first.allows("weight_pipelines"):
            kernel = _pipelined(kernel)
        self._bind_epilogue(b, kernel, source)

    def _require_apart(self, first: Projection) -> None:
        """LaunchError if the product overlaps the input, also where the kernel does not read the input itself."""
        if isinstance(self.epilogue, OntoStream | DeferNorm):
            return  # whose stream may be anywhere: the launch is checked
        written = {f"output of {one.name}": one.y.buffer for one in self.segments}
        if len(self.segments) == 1 or isinstance(self.epilogue, GateSwiglu):
            written = {"output": self.writes[0].buffer}
        require_apart(f"{self.name} by {self.kernel or first.kernel}", {"input": self.x.buffer}, written)

    def _bind_epilogue(self, b: Binding, kernel: KernelType, source: ActivationSource) -> None:
        matrices = {
            name if number == 1 else f"{name}{number}": buffer
            for number, one in enumerate(self.segments, 1)
            for name, buffer in (("w", one.projection.weight.buffer), ("y", one.y.flat))
        }
        match self.epilogue:
            case DeferNorm() as norm:
                self._defer_norm(b, kernel, matrices | dict(source.arguments), norm)
            case GateSwiglu() as gated:
                del matrices["y2"]
                self._gate(b, kernel, matrices | dict(source.arguments), gated)
            case _:
                given = {**matrices, **source.arguments}
                b(self.name, kernel, **shaped(kernel, **given), **b.scratch(self.name, kernel))

    def _defer_norm(self, b: Binding, kernel: KernelType, given: dict[str, Any], norm: DeferNorm) -> None:
        scratch = b.scratch(self.name, kernel)
        width = norm.normed.width
        made = b.workspace.arrays(kernel, f"norm of {width} in {norm.planes} digits", (*OWN_PLANES, "squares"))
        b(self.name, kernel, **shaped(kernel, **given), gamma=norm.gamma, **scratch, **made)
        read = {name: made[planes] for planes, name in OWN_PLANES.items()} | {"squares": made["squares"], "eps": norm.eps}
        b.defer(norm.normed, ActivationSource(norm.planes, read, deferred=True))

    def _gate(self, b: Binding, kernel: KernelType, given: dict[str, Any], gated: GateSwiglu) -> None:
        sending: Mapping[str, Any] = {}
        received: Mapping[str, Any] = {}
        ranks = b.workspace.device.ranks
        if gated.whole is not None:
            sends = compose.send_part(kernel, ranks)
            assert sends is not None  # a pipeline changes no epilogue
            kernel = sends
            sending, received = messages(b.workspace, kernel, "y_")
        arguments = {**shaped(kernel, **given | {"y": gated.y.flat}), **sending, **b.scratch(self.name, kernel)}
        made, parts = (gated.y, 1) if gated.whole is None else (gated.whole, ranks)
        b.write(self.name, kernel, made, gated.planes, received, parts, **arguments)

    def _bind_tiles(self, b: Binding, projection: Projection, kernel: KernelType, source: ActivationSource) -> None:
        tokens = self.x.tokens
        of_rows = {"y": self.segments[0].y.flat, **source.arguments}
        for tile, starts in tiles(tokens):
            form = projection.own(gemv_of_rows(kernel, tile))
            for start in starts:
                parts = {name: _tile(buffer, tokens, start, tile) for name, buffer in of_rows.items()}
                b(self.name, form, w=projection.weight.buffer, **shaped(form, **parts))


def project(name: str, projection: Projection, x: StepValue, y: StepValue, layer: int | None = None) -> Project:
    """y = x W^T."""
    return Project(name=name, layer=layer, x=x, segments=(Segment(name, projection, y),))


def project_with_bias(
    name: str, projection: Projection, x: StepValue, y: StepValue, bias: GpuBuffer | None, layer: int | None = None
) -> Iterator[Operation]:
    """y = x W^T, times the scale of the matrix, plus the bias, f32[n], where there are any."""
    scaled = y if bias is None else StepValue.of(y.buffer, y.tokens)
    product = scaled if projection.scale is None else StepValue.of(y.buffer, y.tokens)
    yield project(name, projection, x, product, layer)
    if projection.scale is not None:
        arguments = {"x": scaled.buffer, "scale": projection.scale}
        kernel, reads, writes = MatrixScale(n=y.width, m=y.tokens), (product,), (scaled,)
        yield PlainLaunch(name=f"{name}_scale", layer=layer, kernel=kernel, arguments=arguments, reads=reads, writes=writes)
    if bias is not None:
        yield AddBias(name=f"{name}_bias", layer=layer, x=scaled, y=y, bias=bias)


def _reading(b: Binding, operation: str, kernel: KernelType, x: StepValue) -> tuple[KernelType, ActivationSource]:
    """The kernel with the source that x has for it. LaunchError if it cannot complete a norm, or not receive parts."""
    source = b.source(operation, x, form_of(kernel))
    if source.deferred:
        completing = compose.complete_norm(kernel)
        if completing is None or source.form != form_of(kernel):
            raise LaunchError(f"{operation}: {kernel} cannot complete the norm that was deferred to it; launch the norm")
        kernel = completing
    if source.parts > 1:
        receiving = compose.receive_parts(kernel, source.parts)
        if receiving is None:
            raise LaunchError(f"{operation}: {kernel} cannot receive the parts that were sent to it; gather them")
        kernel = receiving
    return kernel, source


@lru_cache(maxsize=256)
def _pipelined(kernel: KernelType) -> KernelType:
    """With a pipeline of weights if there is one: found once, since layers have the same kernels and looking takes
    milliseconds."""
    return compose.pipeline_weights(kernel) or kernel


def _tile(buffer: GpuBuffer, m: int, start: int, tile: int) -> GpuBuffer:
    """Some rows of a buffer of m."""
    return buffer.view(start * buffer.nbytes // m, (tile, *buffer.shape[1:]))
