"""Feed-forward networks on weights that were loaded, from one vector to one vector. What they launch is
executor/layers/ffn.py's business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from executor.api.gemv import digits_of
from executor.base.errors import ModelError
from executor.layers.ffn import FeedForward, FfnBuffers, feed_forward
from executor.layers.graph.rules import perform
from executor.layers.graph.values import StepValue
from executor.layers.operands import WeightLike
from executor.layers.projection import Projection, bind
from executor.layers.session import Session
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv


@dataclass(frozen=True)
class FeedForwardRunner:
    """Feed-forward networks of one session; see CudaExecutor for what the arguments may be. Sizes are the weights' and may be
    left out; ModelError if they contradict them. dp4a: on int8 planes, whatever the profile's kernels."""

    session: Session
    dp4a: bool = False

    def gelu_host(
        self,
        input: ArrayLike,
        output: NDArray[np.float32] | None,
        up_name: str,
        down_name: str,
        hidden_dim: int | None = None,
        intermediate_dim: int | None = None,
    ) -> NDArray[np.float32]:
        """down(gelu(up(input))) on host arrays, f32[hidden_dim], in one round trip; weights of any type."""
        up = self._bound(up_name, n=intermediate_dim, k=hidden_dim)
        down = self._bound(down_name, n=hidden_dim, k=intermediate_dim)
        _require_way_back(down, up)
        hidden, ff = down.shape
        buffers = FfnBuffers.of(self.session.workspace, ff)
        with self.session.round_trip(input, (hidden,), output, (hidden,)) as (launch, x, y, result):
            perform(
                launch, [*feed_forward(FeedForward(up, down, activation="gelu"), buffers, x=StepValue.of(x), y=StepValue.of(y))]
            )
        return result

    def swiglu(
        self,
        input: Any,
        gate: WeightLike,
        up: WeightLike,
        down: WeightLike,
        hidden_dim: int | None = None,
        intermediate_dim: int | None = None,
        digits: int | None = None,
    ) -> GpuBuffer:
        """down(silu(gate(input)) * up(input)), f32[hidden_dim], in a new buffer. digits: int8 planes of the activations,
        instead of the profile's kernels."""
        if self.dp4a:
            digits = digits_of(self.session.profile, digits)
        network = self._gated(gate, up, down, hidden_dim, intermediate_dim, digits)
        hidden, ff = network.down.shape
        x = self.session.vector(input, (hidden,), "input")
        buffers = FfnBuffers.of(self.session.workspace, ff)
        with self.session.result(hidden) as y, self.session.launches() as launch:
            perform(launch, [*feed_forward(network, buffers, x=StepValue.of(x), y=StepValue.of(y))])
        return y

    def swiglu_indexed(
        self,
        input: Any,
        gate: WeightLike,
        up: WeightLike,
        down: WeightLike,
        hidden_dim: int | None = None,
        intermediate_dim: int | None = None,
    ) -> GpuBuffer:
        """As fused_ffn_swiglu_gpu with addresses of loaded weights, which have their type, or roles of an indexed layer."""
        return self.swiglu(input, gate, up, down, hidden_dim, intermediate_dim)

    def swiglu_host(
        self,
        input: ArrayLike,
        output: NDArray[np.float32] | None,
        gate_name: str,
        up_name: str,
        down_name: str,
        hidden_dim: int | None = None,
        intermediate_dim: int | None = None,
    ) -> NDArray[np.float32]:
        """As fused_ffn_swiglu_gpu on host arrays, in one round trip."""
        network = self._gated(gate_name, up_name, down_name, hidden_dim, intermediate_dim)
        hidden, ff = network.down.shape
        buffers = FfnBuffers.of(self.session.workspace, ff)
        with self.session.round_trip(input, (hidden,), output, (hidden,)) as (launch, x, y, result):
            perform(launch, [*feed_forward(network, buffers, x=StepValue.of(x), y=StepValue.of(y))])
        return result

    def _gated(
        self,
        gate: WeightLike,
        up: WeightLike,
        down: WeightLike,
        hidden: int | None,
        ff: int | None,
        digits: int | None = None,
    ) -> FeedForward:
        gates = self._bound(gate, n=ff, k=hidden, digits=digits)
        ups = self._bound(up, n=ff, k=hidden, digits=digits)
        downs = self._bound(down, n=hidden, k=ff, digits=digits)
        _require_way_back(downs, gates, ups)
        return FeedForward(ups, downs, gates)

    def _bound(self, weight: WeightLike, *, n: int | None, k: int | None, digits: int | None = None) -> Projection:
        """With the profile's kernel, or with one that reads so many int8 planes."""
        matrix = self.session.weight(weight, n=n, k=k)
        if digits is None:
            return bind(matrix, self.session.profile)
        if not matrix.format.packed_width:
            raise ArgumentError(f"{matrix.name} is {matrix.format.name}, which has no packed codes for int8 planes")
        digits = digits_of(self.session.profile, digits)
        kernel = HwDp4aGemv(matrix.format, k=matrix.k, n=matrix.n, digits=digits)
        return Projection(matrix, kernel, f"{digits} int8 planes were asked for")


def _require_way_back(down: Projection, *ways: Projection) -> None:
    """ModelError unless these go from where `down` leads to where it starts."""
    hidden, ff = down.shape
    for one in ways:
        if one.shape != (ff, hidden):
            (n, k), name = one.shape, one.weight.name
            raise ModelError(f"{name} is {n} x {k}; with {down.weight.name} of {hidden} x {ff} it must be {ff} x {hidden}")
