"""Matrices times vectors by the names people know, and the feed-forward networks made of them. Which kernels run is decided
in executor/layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from executor.api.loaded import Loaded
from executor.base.arguments import whole
from executor.choice.strategies import DIGITS
from executor.layers.batched import project_rows
from executor.layers.calls import Launch
from executor.layers.ffn import FfnBuffers, gelu_ffn, swiglu_ffn
from executor.layers.gemv import project
from executor.layers.indexed import Projection, bind
from executor.layers.operands import WeightLike, host_output, host_values, vector, weight
from executor.memory.buffers import GpuBuffer
from executor.memory.single_weight import format_of
from executor.memory.weights import Weight
from ptxgen.errors import ArgumentError
from ptxgen.formats.format import Format
from ptxgen.kernels.gemv import tiled
from ptxgen.kernels.registry import find
from ptxgen.types import F32


class Matrices(Loaded):
    """GEMVs and feed-forward networks. See CudaExecutor for what the arguments may be."""

    def gemv_dispatch(self, type: str | int | Format, weight: WeightLike, input: Any, output: Any, n: int, k: int) -> None:
        """output = W input by the profile's kernel for the type; W: n rows of k values, input: f32[k], output: f32[n]."""
        self._project(bind(self._weight(weight, n, k, format_of(type)), self.profile), input, output)

    def q4k_gemv_into(self, weight: WeightLike, input: Any, output: Any, n: int, k: int) -> None:
        """output = W input by the profile's kernel for Q4_K."""
        self.gemv_dispatch("Q4_K", weight, input, output, n, k)

    def q6k_gemv_into(self, weight: WeightLike, input: Any, output: Any, n: int, k: int) -> None:
        """output = W input by the profile's kernel for Q6_K."""
        self.gemv_dispatch("Q6_K", weight, input, output, n, k)

    def q4k_gemv_into_legacy(self, weight: WeightLike, input: Any, output: Any, n: int, k: int) -> None:
        """Tiled where the input fits its shared memory, else in chunks. A k that is no multiple of 256 is an error: rows of
        Q4_K are whole super-blocks, for the basic kernel too."""
        self._named(
            "tiled_q4k_gemv" if whole("k", k) <= tiled.LARGEST else "chunked_tiled_q4k_gemv", weight, input, output, n, k
        )

    def coalesced_q4k_gemv_into(self, weight: WeightLike, input: Any, output: Any, n: int, k: int) -> None:
        """output = W input by `coalesced_q4k_gemv`, whatever the profile; the next ones in the same way by theirs."""
        self._named("coalesced_q4k_gemv", weight, input, output, n, k)

    def wide_q4k_gemv_into(self, weight: WeightLike, input: Any, output: Any, n: int, k: int) -> None:
        self._named("wide_q4k_gemv", weight, input, output, n, k)

    def vectorized_q4k_gemv_into(self, weight: WeightLike, input: Any, output: Any, n: int, k: int) -> None:
        self._named("vectorized_q4k_gemv", weight, input, output, n, k)

    def mwv_q4k_gemv_into(self, weight: WeightLike, input: Any, output: Any, n: int, k: int) -> None:
        self._named("mwv_q4k_gemv", weight, input, output, n, k)

    def mwv_dp4a_q4k_gemv_into(
        self, weight: WeightLike, input: Any, output: Any, n: int, k: int, digits: int | None = None
    ) -> None:
        """On the input as int8 digits, 1 to 3 (default: those of the profile's precision); the next ones in the same way."""
        self._named("mwv_dp4a_q4k_gemv", weight, input, output, n, k, digits=self._digits(digits))

    def hw_dp4a_q4k_gemv_into(
        self, weight: WeightLike, input: Any, output: Any, n: int, k: int, digits: int | None = None
    ) -> None:
        self._named("hw_dp4a_q4k_gemv", weight, input, output, n, k, digits=self._digits(digits))

    def dp4a_q6k_gemv_into(
        self, weight: WeightLike, input: Any, output: Any, n: int, k: int, digits: int | None = None
    ) -> None:
        self._named("dp4a_q6k_gemv", weight, input, output, n, k, digits=self._digits(digits))

    def hw_dp4a_q6k_gemv_into(
        self, weight: WeightLike, input: Any, output: Any, n: int, k: int, digits: int | None = None
    ) -> None:
        self._named("hw_dp4a_q6k_gemv", weight, input, output, n, k, digits=self._digits(digits))

    def q4k_gemv_cached_async(self, name: str, input: Any, n: int, k: int) -> GpuBuffer:
        """f32[n]: the Q4_K weight of this name times the input, in a new buffer."""
        return self._product("Q4_K", name, input, n, k)

    def q4k_gemv_indexed_async(self, weight: WeightLike, input: Any, n: int, k: int) -> GpuBuffer:
        """f32[n]: Q4_K blocks at an address times the input, in a new buffer."""
        return self._product("Q4_K", weight, input, n, k)

    def q6k_gemv_indexed_async(self, weight: WeightLike, input: Any, n: int, k: int) -> GpuBuffer:
        """f32[n]: Q6_K blocks at an address times the input, in a new buffer."""
        return self._product("Q6_K", weight, input, n, k)

    def batched_q4k_gemv_cached(
        self, name: str, input: ArrayLike, output: NDArray[np.float32] | None, m: int, k: int, n: int
    ) -> NDArray[np.float32]:
        """f32[m, n]: the rows of the host array input, f32[m, k], times the Q4_K weight, read once for 8 rows; into `output` if
        there is one. Row i has the bits of `q4k_gemv_into` on row i where both are of one strategy."""
        m, p = whole("m", m, 1), bind(self._weight(name, n, k, format_of("Q4_K")), self.profile)
        n, k = p.shape

        def run(launch: Launch, x: GpuBuffer, y: GpuBuffer) -> None:
            project_rows(launch, "batched_gemv", p, x=x, y=y)

        return self._on_host(run, input, (m, k), output, (m, n))

    def fused_ffn_q4k(
        self,
        input: ArrayLike,
        output: NDArray[np.float32] | None,
        up_name: str,
        down_name: str,
        hidden_dim: int,
        intermediate_dim: int,
    ) -> NDArray[np.float32]:
        """down(gelu(up(input))) on host arrays, f32[hidden_dim], in one round trip; weights of any type."""
        up = bind(self._weight(up_name, intermediate_dim, hidden_dim), self.profile)
        down = bind(self._weight(down_name, hidden_dim, intermediate_dim), self.profile)
        hidden, ff = down.shape
        buffers = FfnBuffers.of(self.workspace, ff)

        def run(launch: Launch, x: GpuBuffer, y: GpuBuffer) -> None:
            gelu_ffn(launch, up, down, buffers, x=x, y=y)

        return self._on_host(run, input, (hidden,), output, (hidden,))

    def fused_ffn_swiglu_gpu(
        self,
        input: Any,
        gate: WeightLike,
        up: WeightLike,
        down: WeightLike,
        hidden_dim: int,
        intermediate_dim: int,
        digits: int | None = None,
    ) -> GpuBuffer:
        """down(silu(gate(input)) * up(input)), f32[hidden_dim], in a new buffer. digits: int8 digits of the activations,
        instead of the profile's kernels."""
        projections = self._ffn(gate, up, down, hidden_dim, intermediate_dim, digits)
        hidden, ff = projections[2].shape
        x = vector(self.device, input, (hidden,), "input")
        buffers = FfnBuffers.of(self.workspace, ff)

        def run(y: GpuBuffer) -> None:
            with self._together() as launch:
                swiglu_ffn(launch, *projections, buffers, x=x, y=y)

        return self._into_new((hidden,), run)

    def fused_ffn_swiglu_indexed_gpu(
        self, input: Any, gate: WeightLike, up: WeightLike, down: WeightLike, hidden_dim: int, intermediate_dim: int
    ) -> GpuBuffer:
        """As fused_ffn_swiglu_gpu with addresses of loaded weights, which have their type, or roles of an indexed layer."""
        return self.fused_ffn_swiglu_gpu(input, gate, up, down, hidden_dim, intermediate_dim)

    def fused_ffn_swiglu_gpu_true_dp4a(
        self,
        input: Any,
        gate: WeightLike,
        up: WeightLike,
        down: WeightLike,
        hidden_dim: int,
        intermediate_dim: int,
        digits: int | None = None,
    ) -> GpuBuffer:
        """As fused_ffn_swiglu_gpu, on int8 digits whatever the profile (default: as many as its precision has). ArgumentError
        for weights without packed codes."""
        return self.fused_ffn_swiglu_gpu(input, gate, up, down, hidden_dim, intermediate_dim, self._digits(digits))

    def fused_ffn_swiglu_host(
        self,
        input: ArrayLike,
        output: NDArray[np.float32] | None,
        gate_name: str,
        up_name: str,
        down_name: str,
        hidden_dim: int,
        intermediate_dim: int,
    ) -> NDArray[np.float32]:
        """As fused_ffn_swiglu_gpu on host arrays, in one round trip."""
        projections = self._ffn(gate_name, up_name, down_name, hidden_dim, intermediate_dim, None)
        hidden, ff = projections[2].shape
        buffers = FfnBuffers.of(self.workspace, ff)

        def run(launch: Launch, x: GpuBuffer, y: GpuBuffer) -> None:
            swiglu_ffn(launch, *projections, buffers, x=x, y=y)

        return self._on_host(run, input, (hidden,), output, (hidden,))

    def _weight(self, given: WeightLike, n: int, k: int, format: Format | None = None) -> Weight:
        return weight(self.device, self.weights, given, n, k, format)

    def _named(self, name: str, given: WeightLike, input: Any, output: Any, n: int, k: int, **parameters: int) -> None:
        """output = W input by the kernel of this name."""
        entry = find(name)
        found = self._weight(given, n, k, entry.fixed["format"])
        kernel = entry.make(k=found.k, n=found.n, **parameters)
        self._project(Projection(found, kernel, f"{name} was asked for"), input, output)

    def _product(self, type: str, weight: WeightLike, input: Any, n: int, k: int) -> GpuBuffer:
        """f32[n]: W input in a new buffer."""
        return self._into_new((whole("n", n, 1),), lambda output: self.gemv_dispatch(type, weight, input, output, n, k))

    def _project(self, p: Projection, input: Any, output: Any) -> None:
        n, k = p.shape
        x, y = vector(self.device, input, (k,), "input"), vector(self.device, output, (n,), "output")
        with self._together() as launch:
            project(launch, "gemv", p, x=x, y=y)

    def _ffn(
        self, gate: WeightLike, up: WeightLike, down: WeightLike, hidden: int, ff: int, digits: int | None
    ) -> tuple[Projection, Projection, Projection]:
        def bound(given: WeightLike, n: int, k: int) -> Projection:
            found = self._weight(given, n, k)
            if digits is None:
                return bind(found, self.profile)
            if not found.format.packed_width:
                raise ArgumentError(f"{found.name} is {found.format.name}, which has no packed codes for int8 digits")
            kernel = find(f"hw_dp4a_{found.format.id}_gemv").make(k=found.k, n=found.n, digits=self._digits(digits))
            return Projection(found, kernel, f"{digits} int8 digits were asked for")

        return bound(gate, ff, hidden), bound(up, ff, hidden), bound(down, hidden, ff)

    def _digits(self, asked: int | None) -> int:
        return DIGITS[self.profile.precision] if asked is None else whole("digits", asked, 1, 3)

    def _into_new(self, shape: tuple[int, ...], run: Callable[[GpuBuffer], None]) -> GpuBuffer:
        """A new buffer that `run` has filled, or is going to: freed if that fails."""
        made = GpuBuffer.empty(self.device, F32, shape, "result")
        try:
            run(made)
        except BaseException:
            if made.alive:
                made.free()
            raise
        return made

    def _on_host(
        self,
        run: Callable[[Launch, GpuBuffer, GpuBuffer], None],
        input: ArrayLike,
        input_shape: tuple[int, ...],
        output: NDArray[np.float32] | None,
        output_shape: tuple[int, ...],
    ) -> NDArray[np.float32]:
        """One copy to the device, the launches, one copy back, which waits for them."""
        self._at_once("host arrays are copied to the device and back")
        values, made = host_values(input, input_shape, "input"), host_output(output, output_shape)
        x, y = (self.workspace.buffer(f"host {name}", s) for name, s in (("input", input_shape), ("output", output_shape)))
        x.upload(values)
        with self._together() as launch:
            run(launch, x, y)
        self.device.download(y.pointer, made)
        return made
