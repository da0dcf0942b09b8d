"""The epilogue that adds to the residual stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ptxgen.dsl.arguments import Signature, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.memory import Element
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.epilogue import Epilogue, Exact, Float64
from ptxgen.kernels.gemv.samples import NARROW
from ptxgen.types import F32


@dataclass(frozen=True)
class AddResidual(Epilogue):
    """y: f32[n], in place: the result is added to it, with the bits of the product and residual_add."""

    suffix: ClassVar[str] = "_residual"
    summary: ClassVar[str] = "added to y in place"
    onto: ClassVar[bool] = True
    paced: ClassVar[bool] = True

    def signature(self, blocks: Blocks, arguments: Signature) -> Signature:
        return {**arguments, "y": update(F32, blocks.n)}

    def needs(self, k: KernelBuilder, row: Value) -> Element:
        element: Element = k.arg.y[row]
        return element

    def result(self, k: KernelBuilder, values: Sequence[Value], loaded: Value | None) -> Value:
        assert loaded is not None
        return loaded + values[0]

    def reference(self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64]) -> Exact:
        return Exact(arguments["y"].astype("f8") + values[0], {})

    def tolerance(
        self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64], bounds: Sequence[Float64]
    ) -> Exact:
        """The rounding of one more addition."""
        y = self.reference(blocks, arguments, values).y
        return Exact(bounds[0] + UNIT * (np.abs(y) + bounds[0]), {})

    def inputs(self, blocks: Blocks, rng: np.random.Generator) -> dict[str, Any]:
        return {"y": rng.standard_normal(blocks.n).astype(np.float32)}

    def work(self, blocks: Blocks) -> Work:
        return Work(flops=blocks.n, bytes=F32.bytes * blocks.n)

    @classmethod
    def samples(cls, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"k": 512, "n": 5, "digits": 3, **NARROW}  # the sum is tested in hw_dp4a
        if fixed["format"].name == "Q4_K":
            yield {"k": 512, "n": 4, "digits": 3, **NARROW}  # every warp has rows, so y is loaded early
            yield {"k": 14336, "n": 5, "digits": 3, "row_parts": 2, "stages": 2, **NARROW}
