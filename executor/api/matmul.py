"""A loaded weight times activations, as libraries of arrays have it: type and sizes are the weight's, rows are the input's.
What is launched is executor/layers' business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.layers.graph.products import project
from executor.layers.graph.rules import perform
from executor.layers.graph.values import StepValue
from executor.layers.operands import WeightLike, shape_of
from executor.layers.projection import Projection, bind
from executor.layers.session import Session
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import LoadedWeight
from ptxgen.arrays import FROM_NUMPY
from ptxgen.errors import ArgumentError
from ptxgen.types import F32


@dataclass(frozen=True)
class MatmulRunner:
    """Products of one session; see CudaExecutor for what the arguments may be."""

    session: Session

    def matmul(self, weight: WeightLike, x: Any, out: Any = None) -> GpuBuffer:
        """x W^T, f32[n] of f32[k] or f32[m, n] of f32[m, k], with the kernel that the profile chooses for the weight, n rows of
        k values, and for m rows: f32[k] gets the bits of gemv_dispatch, f32[m, k] those of batched_gemv_or_gemm.

        weight: a loaded one, which knows its type and sizes. x: on the device, or an array of NumPy, which is copied there.
        out: on the device, apart from x; it gets the product and is returned (default: a new buffer). Raises ArgumentError for
        wrong shapes and types and for a kernel that has no form for m rows, ModelError for a name that is not there,
        LaunchError for memory that is no loaded weight or was freed, and for an array of NumPy in a capture."""
        matrix = self.session.weight(weight)
        rows = self._rows(x, matrix)
        projection = bind(matrix, self.session.profile, rows=rows[0] if rows else 1)
        shape = (*rows, matrix.n)
        if out is not None:
            _require(out, "out", shape, f"{_of(matrix)} and x is {_words(x)}, so it must be f32{list(shape)}")
        activations = self._on_device(x)
        with self.session.result(*shape, out=out) as made:
            self._project(projection, activations, made)
        return made

    def _rows(self, x: Any, matrix: LoadedWeight) -> tuple[int, ...]:
        """(m,) of f32[m, k], () of f32[k]."""
        shape = shape_of(x, "x")
        expected = shape[:-1] if len(shape) == 2 and shape[0] > 0 else ()
        _require(x, "x", (*expected, matrix.k), f"{_of(matrix)}, so it must be f32[{matrix.k}] or f32[m, {matrix.k}]")
        return expected

    def _on_device(self, x: Any) -> GpuBuffer:
        if isinstance(x, np.ndarray):
            self.session.require_no_capture("x is an array of NumPy, which is copied to the device")
            return GpuBuffer.from_numpy(self.session.device, x, name="x")
        return self.session.vector(x, tuple(x.shape), "x")

    def _project(self, projection: Projection, x: GpuBuffer, y: GpuBuffer) -> None:
        with self.session.launches() as launch:
            perform(launch, [project("matmul", projection, StepValue.of(x), StepValue.of(y))])


def _require(value: Any, name: str, shape: tuple[int, ...], why: str) -> None:
    """ArgumentError with the reason for another shape than this, or for another known type than f32."""
    told = (
        value.dtype if isinstance(value, GpuBuffer) else FROM_NUMPY.get(value.dtype) if isinstance(value, np.ndarray) else F32
    )
    if shape_of(value, name) != shape or told != F32:
        raise ArgumentError(f"{name} is {_words(value)}; {why}")


def _of(matrix: LoadedWeight) -> str:
    return f"{matrix.name} is {matrix.n} x {matrix.k}"


def _words(value: Any) -> str:
    return f"{getattr(value, 'dtype', '')}{list(value.shape)}"
