"""What is done with a product before it is stored: nothing, or it is added to what y holds. Arguments, reference, bound, work
and emission of both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.memory import Element
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT
from ptxgen.types import F32

F64 = NDArray[np.float64]

Place = Callable[[], AbstractContextManager[Element]]
"""Opens a branch of the threads whose result is inside y, and gives its place."""


@dataclass(frozen=True)
class GemmEpilogue:
    """y = product; with `residual` y += product, with the bits of the product and residual_add."""

    residual: bool

    def argument(self, *shape: int) -> Array:
        """y: f32[*shape]."""
        return (update if self.residual else write)(F32, *shape)

    def inputs(self, rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
        """What y holds before the launch in a test."""
        return rng.standard_normal(shape).astype(np.float32) if self.residual else np.full(shape, np.nan, np.float32)

    def reference(self, y: NDArray[np.float32], product: F64) -> F64:
        """What y holds afterwards."""
        return y.astype("f8") + product if self.residual else product

    def bound(self, y: NDArray[np.float32], product: F64, bound: F64) -> F64:
        """The bound of the product, and of a residual the rounding of one more addition."""
        return bound + UNIT * (np.abs(self.reference(y, product)) + bound) if self.residual else bound

    def work(self, results: int) -> Work:
        """Of so many results, beside their products and one access to y."""
        added = results if self.residual else 0
        return Work(flops=added, bytes=F32.bytes * added)

    def load(self, k: KernelBuilder, place: Place, before: Value | None = None) -> Value | None:
        """What y holds there; None without residual. before: a register with zero for it, if there is one already."""
        if not self.residual:
            return None
        before = k.f32(0.0) if before is None else before
        with place() as element:
            k.assign(before, k.load(element))
        return before

    def value(self, before: Value | None, product: Value) -> Value:
        """What is to be stored where y held `before`."""
        return product if before is None else before + product
