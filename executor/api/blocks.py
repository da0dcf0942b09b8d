"""The steps of a layer between its matrices, one by one, for people who write layers of their own: norms, activations, sums,
and before the first layer and after the last embeddings and the largest value. What knows positions is attention.py beside it;
what is launched is executor/layers' business."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import Any

from executor.base.arguments import number, whole
from executor.layers.graph.binding import shaped
from executor.layers.graph.rows import enqueue_rows
from executor.layers.graph.values import lines
from executor.layers.operands import WeightLike, shape_of, vector
from executor.layers.session import Session
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import LoadedWeight
from ptxgen.errors import ArgumentError
from ptxgen.kernels.activation.bias import BiasAdd
from ptxgen.kernels.activation.element import Elementwise
from ptxgen.kernels.activation.elementwise import AddInPlace, ElementwiseMul, Gelu, Silu
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.token.argmax import ArgMax
from ptxgen.kernels.token.embedding_lookup import EmbeddingLookup
from ptxgen.types import U32


@dataclass(frozen=True)
class BlockRunner:
    """Steps of one session; see CudaExecutor for what the arguments may be. Each is launched at once, or recorded by a capture,
    with the same bits. gamma and delta may be loaded weights, by name too. out: on the device, of the result's shape and apart
    from what is read; it gets the result and is returned (default: a new buffer). Raises ArgumentError for wrong shapes and
    types, ModelError for a name that is not there, LaunchError for memory that was freed or that overlaps."""

    session: Session

    def rmsnorm(self, x: Any, gamma: Any, epsilon: float, out: Any = None) -> GpuBuffer:
        """gamma * x / sqrt(mean(x^2) + epsilon) over the last axis. x: f32[n] or f32[..., n], of which the result has the
        shape; gamma: f32[n]."""
        shape = _rows(x, "x")
        m, n = prod(shape[:-1]), shape[-1]
        epsilon = number("epsilon", epsilon, 0)
        read = self.session.vector(x, shape, "x")
        arguments = {"x": read, "gamma": self.session.vector(self._held(gamma), (n,), "gamma"), "eps": epsilon}
        with self.session.result(*shape, out=out) as y, self.session.launches() as launch:
            enqueue_rows(launch, "rmsnorm", RmsNorm(hidden=n), m, y=y, **arguments)
        return y

    def per_head_rmsnorm(self, x: Any, gamma: Any, epsilon: float) -> None:
        """As rmsnorm for each head by itself, in place: qwen3's norm of queries and keys, whose sums have another order than
        rmsnorm's. x: f32[..., heads, head_dim], or flat; gamma: f32[head_dim], 32, a multiple of 8 from 40 to 256, or 512."""
        gamma = self._held(gamma)
        shape, (head_dim,) = _rows(x, "x"), _rows(gamma, "gamma", axes=1)
        heads, rest = divmod(prod(shape), head_dim)
        if rest:
            raise ArgumentError(f"x is f32{list(shape)}, which are no heads of {head_dim} values, as gamma has")
        kernel = PerHeadRmsNorm(heads=heads, head_dim=head_dim)
        read = self.session.vector(gamma, (head_dim,), "gamma")
        arguments = {"x": self.session.vector(x, shape, "x"), "gamma": read, "eps": number("epsilon", epsilon, 0)}
        with self.session.launches() as launch:
            launch("per_head_rmsnorm", kernel, **shaped(kernel, **arguments))

    def silu(self, x: Any, out: Any = None) -> GpuBuffer:
        """x * sigmoid(x), f32 of any shape."""
        return self._elementwise(Silu, out, x=x)

    def gelu(self, x: Any, out: Any = None) -> GpuBuffer:
        """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as GGML has it; f32 of any shape."""
        return self._elementwise(Gelu, out, x=x)

    def swiglu(self, gate: Any, up: Any, out: Any = None) -> GpuBuffer:
        """silu(gate) * up, f32 of any shape, the same for both."""
        return self._elementwise(FusedSwiglu, out, gate=gate, up=up)

    def multiply(self, a: Any, b: Any, out: Any = None) -> GpuBuffer:
        """a * b, f32 of any shape, the same for both."""
        return self._elementwise(ElementwiseMul, out, a=a, b=b)

    def residual_add(self, x: Any, delta: Any) -> None:
        """x += delta, in place: f32 of one shape, or a delta of f32[n] (a bias) for every row of x, f32[..., n]."""
        shape, delta = _rows(x, "x"), self._held(delta)
        each = shape_of(delta, "delta") == shape[-1:] != shape
        stream = self.session.vector(x, shape, "x")
        added = self.session.vector(delta, shape[-1:] if each else shape, "delta")
        n = shape[-1]
        kernel = BiasAdd(n=n, m=prod(shape) // n) if each else AddInPlace(n=prod(shape))
        with self.session.launches() as launch:
            launch("residual_add", kernel, **shaped(kernel, x=stream, **{"bias" if each else "delta": added}))

    def embedding(self, table: WeightLike, token: Any, out: Any = None) -> GpuBuffer:
        """f32[k]: row `token` of a loaded table of n rows of k values, of any GGML type; f32[m, k] for m tokens.

        token: a number below n, or u32[m] on the device, which is read when the kernel runs: one of n or more there gives NaN.
        A capture takes no other."""
        matrix = self.session.weight(table)
        if isinstance(token, Integral):
            self.session.require_no_capture(f"token {token} would be the same in every replay")
            token = whole("token", token, 0, matrix.n - 1)
            m, kernel = 1, EmbeddingLookup(matrix.format, matrix.n, matrix.k)
        else:
            token = vector(self.session.device, token, None, "token", U32)
            m, kernel = token.size, EmbeddingLookup(matrix.format, matrix.n, matrix.k, indirect=True)
        with self.session.result(*lines(m, matrix.k), out=out) as y, self.session.launches() as launch:
            enqueue_rows(launch, "embedding", kernel, m, y=y, table=matrix.buffer, token=token)
        return y

    def argmax(self, x: Any, out: Any = None) -> GpuBuffer:
        """u32[1] of f32[n], or u32[m] of f32[m, n]: where the largest value of each row is, the first among equals; 0xFFFFFFFF
        for a row with a NaN in it."""
        shape = _rows(x, "x")
        m, n = prod(shape[:-1]), shape[-1]
        read = self.session.vector(x, shape, "x")
        with self.session.result(m, dtype=U32, out=out) as made, self.session.launches() as launch:
            enqueue_rows(launch, "argmax", ArgMax(n=n), m, out=made, x=read)
        return made

    def _held(self, value: Any) -> Any:
        """The buffer of a loaded weight, by its name or as `weights` has it; all else as it is."""
        if isinstance(value, str):
            value = self.session.weights[value]
        return value.buffer if isinstance(value, LoadedWeight) else value

    def _elementwise(self, kernel: type[Elementwise], out: Any, **sources: Any) -> GpuBuffer:
        """Of sources of one shape. Rows do not matter to it, so all go as one: a shape more is not a kernel more."""
        shape = _rows(next(iter(sources.values())), next(iter(sources)))
        read = {name: self.session.vector(value, shape, name) for name, value in sources.items()}
        whole = kernel(n=prod(shape))
        with self.session.result(*shape, out=out) as y, self.session.launches() as launch:
            launch(whole.name, whole, **shaped(whole, y=y, **read))
        return y


def _rows(value: Any, name: str, axes: int | None = None) -> tuple[int, ...]:
    """The shape of an array that has values, and so many axes. ArgumentError for another one."""
    shape = shape_of(value, name)
    if not shape or not prod(shape) or len(shape) != (axes or len(shape)):
        raise ArgumentError(f"{name} has the shape {list(shape)}; must be {'[n]' if axes else '[n] or [..., n]'}, n at least 1")
    return shape
