"""What a layer's products, norms and gates come to in float64, and how far from that the kernel may be: every error that it
makes, carried on through all that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.activation.functions import SILU_LOST
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.norm.rmsnorm import rms_bound, rms_normalised
from ptxgen.kernels.norm.row import NormRow
from ptxgen.kernels.persistent.stages import Stage, StageMatrix
from ptxgen.kernels.quantize.int8_planes import BLOCK, LARGEST, values

Vector = NDArray[np.float64]

STEEPEST = 1.1
"""silu(x) = x / (1 + exp(-x)) has a slope of at most 1.0999."""


class Bounded(NamedTuple):
    """Numbers, and how far from each the kernel's may be."""

    exact: Vector
    error: Vector


class LayerBound:
    """The results of one launch of these stages by name, each with its bound."""

    def __init__(self, stages: Sequence[Stage], arguments: Mapping[str, Any]) -> None:
        self.arguments = arguments
        output, gates, down, *following = stages
        attended = values(arguments["digits"], arguments["scales"])[0]
        stream = self._onto(_exactly(arguments["x"].astype("f8")), output, _exactly(attended))
        gate, up = self._products(gates, gates.matrices[0], self._quantised(gates, self._normalised(gates, stream)))
        gated = _gated(gate, up)
        stream = self._onto(stream, down, self._quantised(down, gated))
        self.results = {"x": stream, "gated": gated}
        for stage in following:
            normed = self._quantised(stage, self._normalised(stage, stream))
            for matrix in stage.matrices:
                (self.results[matrix.result],) = self._products(stage, matrix, normed)

    def exact(self) -> dict[str, Vector]:
        """The results in float64, without any planes."""
        return {name: result.exact for name, result in self.results.items()}

    def bounds(self) -> dict[str, Vector]:
        """What each may be off by."""
        return {name: result.error for name, result in self.results.items()}

    def _products(self, stage: Stage, matrix: StageMatrix, x: Bounded) -> list[Bounded]:
        """|W| times what x is off by, and what hw_dp4a rounds."""
        kernel = HwDp4aGemv(matrix.format, k=stage.k, n=matrix.n, digits=stage.digits)
        products = []
        for name in matrix.weights:
            raw = self.arguments[name]
            weights = matrix.format.dequantize(raw).astype("f8")
            sizes = np.abs(weights) + 2 * matrix.format.largest_minima(raw)
            rounded = kernel.relative_bound * (sizes @ (np.abs(x.exact) + x.error))
            products.append(Bounded(weights @ x.exact, np.abs(weights) @ x.error + rounded + np.finfo(np.float32).tiny))
        return products

    def _onto(self, stream: Bounded, stage: Stage, x: Bounded) -> Bounded:
        """A product on the stream: one more rounding."""
        (product,) = self._products(stage, stage.matrices[0], x)
        exact, error = stream.exact + product.exact, stream.error + product.error
        return Bounded(exact, error + UNIT * (np.abs(exact) + error))

    def _normalised(self, stage: Stage, x: Bounded) -> Bounded:
        """With R the root of the mean square, and E that of the errors: |R' - R| <= E, so x' / R' is off from x / R by at most
        e / (R - E) + |x| E / (R (R - E)); and what rmsnorm rounds. Where E is not below R: no |x' / R'| is above
        sqrt(hidden)."""
        gamma, eps = self.arguments[stage.gamma].astype("f8"), float(self.arguments["eps"])
        row, exact = NormRow(x.exact.size), rms_normalised(x.exact, gamma, eps)
        root, off = np.sqrt(np.mean(x.exact**2) + eps), np.sqrt(np.mean(x.error**2))
        error = np.abs(exact) + np.abs(gamma) * np.sqrt(row.hidden)
        if off < root:
            error = np.minimum(error, np.abs(gamma) * (x.error + np.abs(x.exact) * off / root) / (root - off))
        return Bounded(exact, error + rms_bound(np.abs(exact) + error, chain=row.chunks * row.width, tree=10))

    def _quantised(self, stage: Stage, x: Bounded) -> Bounded:
        """Half a step of a block's scale more, and the rounding of the scale."""
        largest = (np.abs(x.exact) + x.error).reshape(-1, BLOCK).max(axis=1)
        step = np.repeat(largest / LARGEST[stage.digits], BLOCK)
        return Bounded(x.exact, x.error + step * (0.5 + LARGEST[stage.digits] * 4 * UNIT))


def _exactly(numbers: Vector) -> Bounded:
    return Bounded(numbers, np.zeros_like(numbers))


def _gated(gate: Bounded, up: Bounded) -> Bounded:
    """What the gate and the factor are off by, and what fused_swiglu rounds."""
    silu = gate.exact / (1 + np.exp(-gate.exact))
    exact = silu * up.exact
    error = STEEPEST * gate.error * (np.abs(up.exact) + up.error) + np.abs(silu) * up.error
    return Bounded(exact, error + (np.abs(exact) + error) * 6 * UNIT + SILU_LOST * (np.abs(up.exact) + up.error))
