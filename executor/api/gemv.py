"""Matrices times vectors, by the format of the weight or by the name of a kernel. How a product is launched is
executor/layers/graph's business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from executor.base.arguments import whole
from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.choice.strategies import DIGITS
from executor.layers.graph.products import project
from executor.layers.graph.rules import perform
from executor.layers.graph.values import StepValue
from executor.layers.operands import WeightLike
from executor.layers.projection import Projection, bind
from executor.layers.session import Session
from executor.memory.buffers import GpuBuffer
from executor.memory.single_weight import format_of
from ptxgen.formats.format import Format
from ptxgen.kernels.gemv import tiled
from ptxgen.kernels.registry import find


@dataclass(frozen=True)
class GemvRunner:
    """GEMVs of one session; see CudaExecutor for what the arguments may be. n and k may be left out where the weight knows
    them; ModelError if they contradict it."""

    session: Session

    def dispatch(
        self,
        type: str | int | Format,
        weight: WeightLike,
        input: Any,
        output: Any,
        n: int | None = None,
        k: int | None = None,
    ) -> None:
        """output = W input by the profile's kernel for the type; W: n rows of k values, input: f32[k], output: f32[n]."""
        self._project(self._bound(type, weight, n=n, k=k), input, output)

    def by_kernel(
        self, kernel: str, weight: WeightLike, input: Any, output: Any, n: int | None = None, k: int | None = None
    ) -> None:
        """output = W input by the kernel of this name, whatever the profile."""
        self._by_kernel(kernel, weight, input, output, n, k)

    def by_digit_kernel(
        self,
        kernel: str,
        weight: WeightLike,
        input: Any,
        output: Any,
        n: int | None = None,
        k: int | None = None,
        digits: int | None = None,
    ) -> None:
        """output = W input by the kernel of this name, whatever the profile, on the input as 1 to 3 int8 planes (default: those
        of the profile's precision)."""
        self._by_kernel(kernel, weight, input, output, n, k, digits=digits_of(self.session.profile, digits))

    def legacy(self, weight: WeightLike, input: Any, output: Any, n: int | None = None, k: int | None = None) -> None:
        """Q4_K, tiled where the input fits its shared memory, else in chunks. A k that is no multiple of 256 is an error: rows
        of Q4_K are whole super-blocks, for the basic kernel too."""
        matrix = self.session.weight(weight, n=n, k=k, format=format_of("Q4_K"))
        kernel = "tiled_q4k_gemv" if matrix.k <= tiled.LARGEST else "chunked_tiled_q4k_gemv"
        self._by_kernel(kernel, matrix, input, output, n, k)

    def product(self, type: str, weight: WeightLike, input: Any, n: int | None = None, k: int | None = None) -> GpuBuffer:
        """f32[n]: W input, for blocks of this type at an address, in a new buffer."""
        projection = self._bound(type, weight, n=n, k=k)
        with self.session.result(projection.weight.n) as output:
            self._project(projection, input, output)
        return output

    def product_by_name(self, name: str, input: Any, n: int | None = None, k: int | None = None) -> GpuBuffer:
        """f32[n]: the Q4_K weight of this name times the input, in a new buffer."""
        return self.product("Q4_K", name, input, n, k)

    def batched(
        self,
        name: str,
        input: ArrayLike,
        output: NDArray[np.float32] | None,
        m: int,
        k: int | None = None,
        n: int | None = None,
    ) -> NDArray[np.float32]:
        """f32[m, n]: the rows of the host array input, f32[m, k], times the Q4_K weight, read once for 8 rows; into `output` if
        there is one. Row i has the bits of `q4k_gemv_into` on row i where both are of one strategy."""
        m, projection = whole("m", m, 1), self._bound("Q4_K", name, n=n, k=k)
        n, k = projection.shape
        with self.session.round_trip(input, (m, k), output, (m, n)) as (launch, x, y, result):
            perform(launch, [project("batched_gemv", projection, StepValue.of(x), StepValue.of(y))])
        return result

    def _bound(self, type: str | int | Format, weight: WeightLike, *, n: int | None, k: int | None) -> Projection:
        return bind(self.session.weight(weight, n=n, k=k, format=format_of(type)), self.session.profile)

    def _by_kernel(
        self, name: str, weight: WeightLike, input: Any, output: Any, n: int | None, k: int | None, **parameters: int
    ) -> None:
        entry = find(name)
        matrix = self.session.weight(weight, n=n, k=k, format=entry.fixed["format"])
        kernel = entry.make(k=matrix.k, n=matrix.n, **parameters)
        self._project(Projection(matrix, kernel, f"{name} was asked for"), input, output)

    def _project(self, projection: Projection, input: Any, output: Any) -> None:
        n, k = projection.shape
        x, y = self.session.vector(input, (k,), "input"), self.session.vector(output, (n,), "output")
        with self.session.launches() as launch:
            perform(launch, [project("gemv", projection, StepValue.of(x), StepValue.of(y))])


def digits_of(profile: GpuProfile, digits: int | None) -> int:
    """How many int8 planes an activation has, 1 to 3: as the caller says, or those of the profile's precision."""
    return DIGITS[profile.precision] if digits is None else whole("digits", digits, 1, 3)


def require_one_input(first: Projection, *others: Projection) -> None:
    """ModelError unless these weights have rows of one length, so that they can be multiplied by one input."""
    for other in others:
        if other.weight.k != first.weight.k:
            name, k = first.weight.name, first.weight.k
            raise ModelError(f"{other.weight.name} has rows of {other.weight.k} values, {name} of {k}; they read one input")
